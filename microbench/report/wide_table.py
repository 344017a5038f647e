"""The table of a run over several settings: one row a problem, the arms side by side.

For convolutions, whose passes, layouts and images would make the long table many screens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text

from microbench import fmt
from microbench.payoff import subject_of
from microbench.report.arms import arms_of, groups_of, rate_unit, representative
from microbench.report.run_table import conversion
from microbench.report.table import Column, Row, Table
from microbench.results.types import Result, Run

Problem = Sequence[Result]  # the results of one
Arm = tuple[str, str]  # precision, back end
MOST_REASONS = 3
ALWAYS_SHOWN = 6  # arms


def wide_table(run: Run) -> Table[Problem]:
    """A block for each setting of the run."""
    subjects: dict[str, list[Problem]] = {}
    for group in groups_of(run):
        subjects.setdefault(subject_of(group[0], run), []).append(group)
    table = Table(_columns(run))
    for subject, groups in subjects.items():
        table.block(fmt.clean(subject), map(Row, sorted(groups, key=lambda group: group[0].flops)))
    return table


def _columns(run: Run) -> list[Column[Problem]]:
    found, asked = arms_of(run), arms_of(run).asked
    arms = list(dict.fromkeys((r.case.precision_name, r.case.backend) for r in run.results))
    several, unit = len({backend for _, backend in arms}) > 1, rate_unit(run.results)
    pairs = [(name, base) for name in asked for base in found.baselines if name != base]
    return [
        Column("channels\nC or CxK", lambda group: fmt.size(group[0].case), right=True, bold=True),
        *(Column(f"{arm[0]}\n{arm[1] if several else unit.name}", _rate(arm, unit), right=True,
                 drop=0 if i < ALWAYS_SHOWN else 3) for i, arm in enumerate(arms)),
        *(Column(f"{name}\nx {base}", _gain(name, base), right=True, drop=2 + i)
          for i, (name, base) in enumerate(pairs)),
        Column("layout\nchange", _of_best(asked, conversion), right=True, drop=9),
        Column("rel.\nerror", _of_best(asked, lambda r: fmt.error(r.total_error)), right=True,
               drop=12),
        Column("limited\nby", _of_best(asked, lambda r: fmt.clean(r.bound or "")), drop=8),
    ]  # fmt: skip


def _rate(arm: Arm, unit: fmt.Unit) -> Callable[[Problem], str]:
    def cell(group: Problem) -> str:
        found = {(r.case.precision_name, r.case.backend): r for r in group}.get(arm)
        if found is None:
            return ""
        return unit.text(found.flop_per_s) if found.flop_per_s else found.status

    return cell


def _gain(name: str, baseline: str) -> Callable[[Problem], str]:
    def cell(group: Problem) -> str:
        found = representative(group, [name])
        return fmt.ratio(found.speedup[baseline]) if found and baseline in found.speedup else ""

    return cell


def _of_best(asked: Sequence[str], text: Callable[[Result], str]) -> Callable[[Problem], str]:
    """The text of the result that the verdict speaks of."""

    def cell(group: Problem) -> str:
        best = representative(group, asked)
        return text(best) if best else ""

    return cell


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
