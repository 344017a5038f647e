"""The tables of convolutions, classes of shapes and techniques in docs/, made from run files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from statistics import geometric_mean

from kernels import is_library
from kernels.case import Case
from microbench import fmt
from microbench.break_even import Payoff, payoffs
from microbench.libraries import beside
from microbench.report.arms import arms_of
from microbench.report.layers_table import PASSES, Layer, layers_of
from microbench.report.table import Column, Row, Table, markdown
from microbench.results.types import NetworkUse, Result, Run


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


@dataclass(frozen=True)
class LeftOut:
    """A GEMM with every technique, and with one left out."""

    full: Result
    without: Result
    used: bool  # whether the technique was in use

    @property
    def loss(self) -> float:
        """Time without the technique over time with it."""
        return (self.without.median_s or 0.0) / (self.full.median_s or 1.0)

    @property
    def other(self) -> bool:
        """Whether another configuration ran."""
        return self.full.variant != self.without.variant


def left_out(full: Run, without: Run) -> list[LeftOut]:
    """The shapes of two runs, the second without the patterns of its --without."""
    patterns = str(without.settings["without"]).split(",")
    found = {result.case.group: result for result in without.results}
    return [
        LeftOut(result, found[result.case.group], _matches(result, patterns))
        for result in full.results
    ]


def _matches(result: Result, patterns: Sequence[str]) -> bool:
    return any(fnmatch(result.variant or "", pattern) for pattern in patterns)


def ablation_table(full: Run, runs: Mapping[str, Run]) -> str:
    """What each technique gains: a row for each run, by the technique that it left out."""
    lines = [
        "| left out | mean | used by | another ran | largest loss | at | with it | without it |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- | --- |",
    ]
    for name, run in runs.items():
        rows = left_out(full, run)
        used = [row for row in rows if row.used]
        most = max(used, key=lambda row: row.loss)
        lines.append(
            f"| {name} | {geometric_mean([row.loss for row in rows]):.3f} | {len(used)} "
            f"| {sum(row.other for row in rows)} | {most.loss:.2f} | {fmt.size(most.full.case)} "
            f"{most.full.case.layout} | `{most.full.variant}` | `{most.without.variant}` |"
        )
    return "\n".join(lines)
