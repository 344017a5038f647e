"""The table of a run over several settings: one row a problem, the arms side by side.

For convolutions, whose passes, layouts and images would make the long table many screens.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from microbench import fmt
from microbench.payoff import subject_of
from microbench.report.arms import arms_of, groups_of, rate_unit, representative
from microbench.report.grid import Column, Grid, Row
from microbench.report.run_table import RunTable
from microbench.results.types import Result, Run
from microbench.roofline.causes import conversion_share

Arm = tuple[str, str]  # precision, back end
SHOWN_CONVERSION = 0.02
MOST_REASONS = 3


def wide_table(run: Run, width: int) -> RunTable:
    """A block for each setting of the run, no wider than `width`."""
    arms = arms_of(run)
    found = list(dict.fromkeys((r.case.precision_name, r.case.backend) for r in run.results))
    unit = rate_unit(run.results)
    subjects: dict[str, list[list[Result]]] = {}
    for group in groups_of(run):
        subjects.setdefault(subject_of(group[0], run), []).append(group)
    several = len({backend for _, backend in found}) > 1
    grid = Grid(_columns(found, arms.asked, arms.baselines, unit.name, several))
    for subject, groups in subjects.items():
        grid.rows += [None] * bool(grid.rows)
        if subject:
            grid.rows.append(fmt.clean(subject))
        for group in sorted(groups, key=lambda group: group[0].flops):
            grid.rows.append(_row(group, found, arms.asked, arms.baselines, unit))
    lines, left_out = grid.lines(width)
    return RunTable([*lines, *missing_reasons(run)], left_out, [])


def _columns(
    arms: Sequence[Arm], asked: Sequence[str], baselines: Sequence[str], unit: str, several: bool
) -> list[Column]:
    rates = [
        Column(f"{name}\n{backend if several else unit}", right=True, drop=0 if i < 6 else 3)
        for i, (name, backend) in enumerate(arms)
    ]
    gains = [
        Column(f"{name}\nx {baseline}", right=True, drop=2 + i)
        for i, (name, baseline) in enumerate(_pairs(asked, baselines))
    ]
    first = Column("channels\nC or CxK", right=True, bold=True)
    return [first, *rates, *gains, Column("layout\nchange", right=True, drop=9),
            Column("rel.\nerror", right=True, drop=12), Column("limited\nby", drop=8)]  # fmt: skip


def _pairs(asked: Sequence[str], baselines: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, base) for name in asked for base in baselines if name != base]


def _row(
    group: Sequence[Result], arms: Sequence[Arm], asked: Sequence[str], baselines: Sequence[str],
    unit: fmt.Unit,
) -> Row:  # fmt: skip
    by_arm = {(r.case.precision_name, r.case.backend): r for r in group}
    best = representative(group, asked)
    chosen = {name: representative(group, [name]) for name in asked}
    gains = [
        fmt.ratio(found.speedup[base]) if found and base in found.speedup else ""
        for name, base in _pairs(asked, baselines)
        for found in [chosen[name]]
    ]
    share = conversion_share(best) if best else 0.0
    return Row([
        fmt.size(group[0].case),
        *(_rate(by_arm.get(arm), unit) for arm in arms),
        *gains,
        fmt.per_cent(100 * share) if share >= SHOWN_CONVERSION else "",
        fmt.error(best.total_error) if best else "",
        fmt.clean(best.bound or "") if best else "",
    ])  # fmt: skip


def _rate(result: Result | None, unit: fmt.Unit) -> str:
    if result is None:
        return ""
    return unit.text(result.flop_per_s) if result.flop_per_s else result.status


def missing_reasons(run: Run) -> list[Text]:
    """Why results are missing: each reason once, with how many it is about."""
    seen: dict[str, list[str]] = {}
    for result in run.results:
        if result.measurement is None:
            key = f"{result.status}: {fmt.clean(result.reason or 'no reason given')}"
            seen.setdefault(key, []).append(fmt.name(result.case))
    lines = [
        Text(f"{reason} [{fmt.listed(names, most=2)}]", "dim")
        for reason, names in list(seen.items())[:MOST_REASONS]
    ]
    if len(seen) > MOST_REASONS:
        lines.append(Text(f"and {len(seen) - MOST_REASONS} more reasons (show --csv)", "dim"))
    return lines
