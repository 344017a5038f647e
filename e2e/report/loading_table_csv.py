"""Loaders as rows of CSV: every unit in its column's name, names that do not change."""

from __future__ import annotations

from dataclasses import asdict, fields

from e2e.report.table_csv import Cell
from e2e.results.loader_types import OP, LoadCase, Loading

CASE = tuple(field.name for field in fields(LoadCase))
COLUMNS = (
    "op", *CASE, "status", "reason", "images_per_s", "ci95_low_per_s", "ci95_high_per_s", "samples",
    "images_per_s_per_core", "read_bytes_per_s", "first_s",
)  # fmt: skip


def loading_row(loading: Loading) -> dict[str, Cell]:
    """The loader by column; what is not known is None."""
    low, high = loading.ci95_per_s or (None, None)
    return {
        "op": OP,
        **asdict(loading.case),
        "status": loading.status,
        "reason": loading.reason,
        "images_per_s": loading.per_s,
        "ci95_low_per_s": low,
        "ci95_high_per_s": high,
        "samples": len(loading.blocks),
        "images_per_s_per_core": loading.per_s_per_core,
        "read_bytes_per_s": loading.bytes_per_s,
        "first_s": loading.first_s,
    }
