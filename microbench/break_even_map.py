"""The break-even map: chooses which cell of channels x image x batch to measure next.

Along a column (one image, batch, layout, pass) the precision is slower up to some width and faster
from there on. So the boundary is found by bisection, starting where the previous column had it.
Cells on either side of it are not measured; the map shows which.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kernels import OPS
from kernels.case import Case
from microbench.break_even import BASELINES, gain
from microbench.results.types import Run
from microbench.runner import weight
from microbench.sweep import Group

CELL_S = {"large": 0.4, "small": 0.15}  # of sampling per variant: less than for a result
LARGE_WEIGHT = 1.0  # seconds: a case of more `runner.weight` is large


@dataclass
class Search:
    """Bisection for the first of `count` steps that is faster: above `low`, at most `high`."""

    count: int
    guess: int
    low: int = -1
    high: int = field(init=False)

    def __post_init__(self) -> None:
        self.high = self.count

    def next(self) -> int | None:
        """The step to measure; None when the boundary is known."""
        if self.high - self.low <= 1:
            return None
        if self.low < 0 and self.high == self.count:
            return min(max(self.guess, 0), self.count - 1)
        if self.low < 0:
            return self.high - 1
        if self.high == self.count:
            return self.low + 1
        return (self.low + self.high) // 2

    def learn(self, step: int, pays: bool) -> None:
        """Note whether the precision is faster at a step."""
        if pays:
            self.high = min(self.high, step)
        else:
            self.low = max(self.low, step)


@dataclass
class Column:
    """The widths of one setting, narrowest first, and a search against each baseline."""

    groups: Sequence[Group]
    asked: Collection[str]
    searches: dict[str, Search]

    def next(self, run: Run) -> Group | None:
        """The next cell that a search needs and the run lacks; None when all have ended."""
        while True:
            wanted = next((s for search in self.searches.values()
                           if (s := search.next()) is not None), None)  # fmt: skip
            if wanted is None:
                return None
            if not any(run.result(case.key) for case in self.groups[wanted].cases):
                return self.groups[wanted]
            for baseline, search in self.searches.items():
                search.learn(wanted, pays(self.groups[wanted], self.asked, baseline, run))


def pays(group: Group, asked: Collection[str], baseline: str, run: Run) -> bool:
    """Whether one of the asked precisions is faster than the baseline, see `gain`."""
    results = [run.result(case.key) for case in group.cases]
    return any(
        gain(result, result.speedup.get(baseline)) == "faster"
        for result in results
        if result and result.case.precision_name in asked
    )


class Refine:
    """The schedule of a map, a `runner.Schedule`; `budget_s` is seconds of sampling in all."""

    def __init__(
        self, groups: Sequence[Group], asked: Collection[str], budget_s: float | None = None
    ) -> None:
        self._asked = asked
        self.cases: Sequence[Case] = [case for group in groups for case in group.cases]
        self._columns = _columns(groups)
        self._baselines = [b for b in BASELINES if any(c.precision_name == b for c in self.cases)]
        self._budget_s = budget_s
        self._guesses: dict[str, int] = {}
        self._open: Column | None = None
        self._done = 0

    def next(self, run: Run) -> tuple[Group, float] | None:
        """The next cell and its seconds of sampling; None when every boundary is known."""
        while True:
            if self._open is None:
                if self._done == len(self._columns):
                    return None
                groups = self._columns[self._done]
                guesses = {b: self._guesses.get(b, len(groups) // 2) for b in self._baselines}
                searches = {b: Search(len(groups), guess) for b, guess in guesses.items()}
                self._open = Column(groups, self._asked, searches)
            group = self._open.next(run)
            if group is not None:
                return group, self._cell_s(group)
            self._guesses = {b: search.high for b, search in self._open.searches.items()}
            self._open = None
            self._done += 1

    def left_s(self) -> float:
        """Estimated seconds of sampling left: three cells per remaining column."""
        rest = self._columns[self._done :]
        return 3 * sum(self._cell_s(groups[len(groups) // 2]) for groups in rest)

    def _cell_s(self, group: Group) -> float:
        if self._budget_s is not None:
            return self._budget_s / (3 * len(self._columns))
        return sum(
            CELL_S["large" if weight(case) > LARGE_WEIGHT else "small"] for case in group.cases
        )


def _columns(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups of one setting together, narrowest first; neighbours in the map stay neighbours."""
    found: dict[tuple[tuple[str, str], ...], list[Group]] = {}
    for group in groups:
        case = group.cases[0]
        setting: Mapping[str, str] = OPS[case.op].setting(case)
        found.setdefault(tuple(setting.items()), []).append(group)
    return [sorted(column, key=lambda g: OPS[g.cases[0].op].flops(g.cases[0]))
            for column in found.values()]  # fmt: skip
