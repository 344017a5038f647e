"""A run as a Markdown table, for READMEs and issues."""

from __future__ import annotations

from kernels import is_library
from microbench import fmt
from microbench.payoff import payoffs
from microbench.report.arms import arms_of
from microbench.report.layers_table import PASSES, layers_of
from microbench.results.kinds import reports
from microbench.results.types import NetworkUse, Result, Run

HEADER = ("size", "precision", "back end", "time", "TFLOP/s", "% of peak", "x fp32", "x tf32",
          "rel. error", "bound by")  # fmt: skip


def to_markdown(run: Run) -> str:
    """One row a result, in the order measured; what was skipped says why. Kernels, trainings and
    loaders are tables of their own."""
    lines = [_row(HEADER), _row(("---:", "---", "---", *["---:"] * 6, "---"))]
    kernels = "\n".join([*lines, *(_row(_cells(result)) for result in run.results)]) + "\n"
    tables = [kernels] if run.results else []
    tables += [table for report in reports(run) for table in report.markdown(run)]
    return "\n".join(tables or [kernels])


def payoff_table(run: Run, precision: str) -> str:
    """For each setting: from which size the precision pays off, and how much at each end."""
    header = ("", "faster than", "from", "there", "at most", "below it")
    lines = [_row(header), _row(("---", "---", "---:", "---:", "---:", "---"))]
    for payoff in payoffs(run, precision):
        rows, start = payoff.rows, payoff.start
        best = max(rows, key=lambda row: row[1].ratio)
        at_best = f"{fmt.interval(best[1])} at {fmt.size(best[0].case)}"
        if start == len(rows):
            lines.append(_row((payoff.subject, payoff.baseline, "nowhere", "", at_best, "")))
            continue
        first, ratio = rows[start]
        below = [f"{fmt.size(r.case)}: {fmt.short_ratio(q)}" for r, q in rows[:start]][-3:]
        lines.append(_row((payoff.subject, payoff.baseline, fmt.size(first.case),
                           fmt.interval(ratio), at_best, ", ".join(below))))  # fmt: skip
    return "\n".join(lines) + "\n"


def rival_table(run: Run, network: NetworkUse) -> str:
    """Each convolution of the network: our kernels against the library, by pass.

    Time of the library over time of ours, in the precision asked for.
    """
    precision = arms_of(run).asked[0]
    lines = [_row(("layer", *PASSES)), _row(("---", *["---:"] * len(PASSES)))]
    ratios = {
        (r.case.group, rival): ratio
        for r in run.results
        if r.case.precision_name == precision and not is_library(r.case)
        for rival, ratio in r.vs_backend.items()
    }
    for layer in layers_of(run, network):
        cells = [
            fmt.interval(ratio) if use and (ratio := ratios.get((use.group, "cudnn"))) else ""
            for use in (layer.uses.get(which) for which in PASSES)
        ]
        if any(cells):
            lines.append(_row((layer.label.replace(">", "→"), *cells)))
    return "\n".join(lines) + "\n"


def _row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _cells(result: Result) -> tuple[str, ...]:
    case = result.case
    name = (fmt.problem(case), fmt.clean(case.precision_name), fmt.clean(case.backend))
    if result.measurement is None or not result.flop_per_s:
        return (*name, f"{result.status}: {fmt.clean(result.reason)}", *[""] * 6)
    speedups = (result.speedup.get(baseline) for baseline in ("fp32", "tf32"))
    return (
        *name,
        fmt.duration(result.measurement.median_s),
        fmt.rate(result.flop_per_s),
        fmt.per_cent(result.ceiling_pct),
        *(fmt.interval(ratio) if ratio else "" for ratio in speedups),
        fmt.error(result.total_error),
        fmt.clean(result.bound or ""),
    )
