"""A run as a Markdown table, for READMEs and issues."""

from __future__ import annotations

from microbench.report import words
from microbench.results import Result, Run

HEADER = ("size", "precision", "back end", "time", "TFLOP/s", "% of peak", "x fp32", "x tf32",
          "rel. error", "bound by")  # fmt: skip


def to_markdown(run: Run) -> str:
    """One row a result, in the order measured; what was skipped says why."""
    lines = [_row(HEADER), _row(("---:", "---", "---", *["---:"] * 6, "---"))]
    return "\n".join([*lines, *(_row(_cells(result)) for result in run.results)]) + "\n"


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _cells(result: Result) -> tuple[str, ...]:
    case = result.case
    name = (words.size(case), words.clean(case.precision_name), words.clean(case.backend))
    if result.measurement is None or not result.flop_per_s:
        return (*name, f"{result.status}: {words.clean(result.reason)}", *[""] * 6)
    speedups = (result.speedup.get(baseline) for baseline in ("fp32", "tf32"))
    return (
        *name,
        words.duration(result.measurement.median_s),
        words.rate(result.flop_per_s),
        words.per_cent(result.ceiling_pct),
        *(words.interval(ratio) if ratio else "" for ratio in speedups),
        words.error(result.total_error),
        words.clean(result.bound or ""),
    )
