"""A run as CSV: one row a result, every unit in its column's name, names that do not change.

Kernels, trainings and loaders have their own columns; a run that holds several has all of them.
"""

from __future__ import annotations

import csv
import io

from microbench.results.kinds import reports
from microbench.results.types import Ratio, Result, Run

BASELINES = ("fp32", "tf32")
COLUMNS: tuple[str, ...] = (
    "op", "m", "n", "k", "c", "h", "w", "r", "s", "stride", "padding", "dilation", "groups", "pass",
    "layout", "data", "precision", "backend", "status", "reason",
    "median_s", "ci95_low_s", "ci95_high_s", "samples", "flops", "min_bytes", "tflops", "gb_per_s",
    "ceiling_pct",
    "rel_error", "bound", "why", "sm_clock_mhz", "power_w", "energy_j", "temperature_c", "throttle",
    "tensor_core", "variant", "kernels", "timer", "l2", "regime",
    *(f"speedup_{name}{end}" for name in BASELINES for end in ("", "_low", "_high")),
)  # fmt: skip
JOIN = "; "
Cell = str | int | float | bool | None


def to_csv(run: Run) -> str:
    """The whole table with its header; what is not known is empty."""
    rows = [_case(result) | _measurement(result) | _meaning(result) for result in run.results]
    kinds = [COLUMNS] * bool(run.results or not run.others)
    for report in reports(run):
        its_columns, its_rows = report.csv(run)
        kinds.append(tuple(its_columns))
        rows += its_rows
    columns = list(dict.fromkeys(name for kind in kinds for name in kind))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(row.get(name)) for name in columns})
    return text.getvalue()


def _case(result: Result) -> dict[str, Cell]:
    case = result.case
    return {
        **case.dims,
        "op": case.op,
        "layout": case.layout,
        "data": case.data,
        "precision": case.precision_name,
        "backend": case.backend,
        "status": result.status,
        "reason": result.reason,
    }


def _measurement(result: Result) -> dict[str, Cell]:
    measurement = result.measurement
    if measurement is None:
        return {}
    low, high = measurement.ci95_s or (None, None)
    return {
        "median_s": measurement.median_s,
        "ci95_low_s": low,
        "ci95_high_s": high,
        "samples": len(measurement.times_s),
        "flops": result.flops,
        "min_bytes": result.min_bytes,
        "tflops": (result.flop_per_s or 0.0) / 1e12,
        "gb_per_s": (result.byte_per_s or 0.0) / 1e9,
        "sm_clock_mhz": measurement.sm_clock_mhz,
        "power_w": measurement.power_w,
        "energy_j": measurement.energy_j,
        "temperature_c": measurement.temperature_c,
        "throttle": JOIN.join(measurement.throttle),
        "timer": measurement.timer,
        "l2": measurement.l2,
        "regime": measurement.regime,
    }


def _meaning(result: Result) -> dict[str, Cell]:
    row: dict[str, Cell] = {
        "ceiling_pct": result.ceiling_pct,
        "rel_error": result.rel_error,
        "total_error": result.total_error,
        "bound": result.bound,
        "why": result.why,
        "tensor_core": result.tensor_core,
        "variant": result.variant,
        "kernels": JOIN.join(result.kernels),
    }
    for name in BASELINES:
        row |= speedup(name, result.speedup.get(name))
    return row


def _cell(value: Cell) -> str:
    """Nine significant digits: finer than any timer here, without binary noise."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def speedup(name: str, ratio: Ratio | None) -> dict[str, Cell]:
    """The columns of one speed-up: the ratio and the ends of its interval."""
    if ratio is None:
        return {}
    low, high = ratio.ci95 or (None, None)
    return {
        f"speedup_{name}": ratio.ratio,
        f"speedup_{name}_low": low,
        f"speedup_{name}_high": high,
    }
