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


KINDS["train"] = Kind(codec, run_report, noise_pct=3.0)
KINDS["load"] = Kind(loader_types, run_report, noise_pct=5.0)  # processes share cores
DOCUMENTS.append(Document("diagnose", {"check": "diagnose"}, _diagnosis))
