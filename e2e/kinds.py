"""The kinds of results and documents of this package (see `microbench.results.kinds`)."""

from __future__ import annotations

from typing import Any

from e2e.report import run_report
from e2e.results import codec, loader_types
from microbench.results.kinds import DOCUMENTS, KINDS, Document, Kind
from microbench.results.types import Json


def _diagnosis(data: Json) -> Any:
    from e2e.report.diagnosis import report  # imports torch

    return report(data)


for op, module, noise_pct in (("train", codec, 3.0), ("load", loader_types, 5.0)):  # shared cores
    KINDS[op] = Kind(module.to_json, module.from_json, run_report.report, run_report.cells,
                     run_report.ratio, noise_pct)  # fmt: skip
DOCUMENTS.append(Document("diagnose", {"check": "diagnose"}, _diagnosis))
