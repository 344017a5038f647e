"""The tables of convolutions and of classes of shapes in docs/, made from run files."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean

from kernels import is_library
from kernels.case import Case
from microbench import fmt
from microbench.break_even import Payoff, payoffs
from microbench.libraries import beside
from microbench.report.arms import arms_of
from microbench.report.layers_table import PASSES, Layer, layers_of
from microbench.report.table import Column, Row, Table, markdown
from microbench.results.types import NetworkUse, Run


def payoff_table(run: Run, precision: str) -> str:
    """For each setting: from which size the precision pays off, and how much at each end."""
    columns: list[Column[Payoff]] = [
        Column("", lambda payoff: payoff.subject),
        Column("faster than", lambda payoff: payoff.baseline),
        Column("from", _start, right=True),
        Column("there", _at_start, right=True),
        Column("at most", _at_best, right=True),
        Column("below it", _below),
    ]
    return markdown(Table(columns, [Row(payoff) for payoff in payoffs(run, precision)]))


def _start(payoff: Payoff) -> str:
    return fmt.size(payoff.from_start[0][0].case) if payoff.from_start else "nowhere"


def _at_start(payoff: Payoff) -> str:
    return fmt.interval(payoff.from_start[0][1]) if payoff.from_start else ""


def _at_best(payoff: Payoff) -> str:
    result, ratio = payoff.best
    return f"{fmt.interval(ratio)} at {fmt.size(result.case)}"


def _below(payoff: Payoff) -> str:
    if not payoff.from_start:
        return ""
    below = [f"{fmt.size(r.case)}: {fmt.short_ratio(q)}" for r, q in payoff.rows[: payoff.start]]
    return ", ".join(below[-3:])


def rival_table(run: Run, network: NetworkUse) -> str:
    """Each convolution of the network: our kernels against the library, by pass.

    Time of the library over time of ours, in the precision asked for.
    """
    precision = arms_of(run).asked[0]
    ratios = {
        (r.case.group, rival): ratio
        for r in run.results
        if r.case.precision_name == precision and not is_library(r.case)
        for rival, ratio in r.vs_backend.items()
    }

    def cell(layer: Layer, which: str) -> str:
        use = layer.uses.get(which)
        found = ratios.get((use.group, "cudnn")) if use else None
        return fmt.interval(found) if found else ""

    def pass_column(which: str) -> Column[Layer]:
        return Column(which, lambda layer: cell(layer, which), right=True)

    compared = [layer for layer in layers_of(run, network) if any(cell(layer, p) for p in PASSES)]
    columns = [
        Column[Layer]("layer", lambda layer: layer.label.replace(">", "→")),
        *map(pass_column, PASSES),
    ]
    return markdown(Table(columns, [Row(layer) for layer in compared]))


def classes_table(runs: Sequence[Run]) -> str:
    """Shapes that no table holds, by class: how our kernels do against the better library."""
    lines = [
        "| | shapes | geometric mean | at least 0.90 | least |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for run in runs:
        found: dict[str, list[float]] = {}
        for result in run.results:
            row = beside(result) if result.case.backend == "triton" else None
            if row:
                for name in (
                    _kind(result.case),
                    f"{_kind(result.case)}, {_alignment(result.case)}",
                ):
                    found.setdefault(name, []).append(row.ratio.ratio)
        for name, ratios in sorted(found.items()):
            share = sum(ratio >= 0.9 for ratio in ratios) / len(ratios)
            lines.append(
                f"| {name} | {len(ratios)} | {geometric_mean(ratios):.2f} | {share:.0%} "
                f"| {min(ratios):.2f} |"
            )
    return "\n".join(lines)


def _kind(case: Case) -> str:
    return "GEMM" if case.op == "gemm" else f"convolution {case.dims['pass']}"


def _alignment(case: Case) -> str:
    """Whether rows of every tensor of 16-bit elements start on 16 bytes: multiples of 8."""
    names = "mnk" if case.op == "gemm" else "ck"
    return "aligned" if all(case.dim(name) % 8 == 0 for name in names) else "not aligned"
