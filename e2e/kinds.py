"""The kinds of results and documents of this package (see `microbench.results.kinds`)."""

from __future__ import annotations

from typing import Any

from e2e.report import run_report
from e2e.results import codec, loader_types
from microbench.results.kinds import Document, Kind, register, register_document
from microbench.results.types import Json


def _diagnosis(data: Json) -> Any:
    from e2e.report.diagnosis import report  # imports torch

    return report(data)


register("train", Kind(codec, run_report, noise_pct=3.0))
register("load", Kind(loader_types, run_report, noise_pct=5.0))  # processes share cores
register_document(Document("diagnose", {"check": "diagnose"}, _diagnosis))
