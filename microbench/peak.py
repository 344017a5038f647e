"""`peak`: the shape, layout and back end of the highest rate of each precision.

It climbs: all layouts of a middle shape in all back ends, then from the best one along M, N and K
while the rate grows. The best three are then measured again for longer, and the peak is the best of
these: a short reading may be lucky.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from kernels import OPS
from kernels.case import DATA, Case
from microbench.conditions import Conditions
from microbench.plans import group_of, plan_arms
from microbench.results.types import Result, Run
from microbench.sweep import Group, parse_choice, parse_numbers

TRY_S = 0.3  # of sampling per variant, of a try
LAST_S = 2.5  # of sampling of what is best, again
PEAK_S = 100.0  # of searching in all: two minutes with the start
AGAIN = 3  # shapes that are measured again
DIMENSIONS = ("m", "n", "k")
BACKENDS = "cublaslt,triton"


def best_of(results: Sequence[Result]) -> Result | None:
    """The result of the highest rate; None where none was measured."""
    timed = [result for result in results if result.measurement and result.flop_per_s]
    return max(timed, key=lambda result: result.flop_per_s or 0.0, default=None)


def peak_of(results: Sequence[Result]) -> Result | None:
    """The highest rate among those sampled in many rounds; None where none was measured."""
    rounds = {id(r): len(r.measurement.blocks) for r in results if r.measurement}
    most = max(rounds.values(), default=0)
    return best_of([r for r in results if rounds.get(id(r), 0) >= most / 2])


class Climb:
    """The schedule of `peak`, a `runner.Schedule`; `budget_s` is seconds of searching in all.

    Each precision has an equal share of what is left. `now` is a clock in seconds.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        sides: Sequence[int],
        budget_s: float = PEAK_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cases: Sequence[Case] = [case for group in groups for case in group.cases]
        self._sides = sorted(sides)
        self._open = dict.fromkeys(case.precision_name for case in self.cases)
        self._budget_s, self._now = budget_s, now
        self._began_s: float | None = None
        self._share_ends_s = 0.0
        self._current = ""
        self._again: set[str] = set()

    def next(self, run: Run) -> tuple[Group, float] | None:
        """The next shape to try and its seconds of sampling; None when all peaks are known."""
        if self._began_s is None:
            self._began_s = self._now()
        while self._open:
            name = next(iter(self._open))
            if name != self._current:
                self._begin(name)
            found = self._next_of(name, run)
            if found is not None:
                return found
            del self._open[name]
        return None

    def left_s(self) -> float:
        """Seconds of the search that are left, at most."""
        spent_s = 0.0 if self._began_s is None else self._now() - self._began_s
        return max(0.0, self._budget_s - spent_s) if self._open else 0.0

    def _begin(self, name: str) -> None:
        self._current, self._again = name, set()
        self._share_ends_s = self._now() + self.left_s() / len(self._open)

    def _next_of(self, name: str, run: Run) -> tuple[Group, float] | None:
        cases = [case for case in self.cases if case.precision_name == name]
        known = {
            r.case.key: r
            for r in run.results
            if r.case.precision_name == name and {*map(r.case.dim, DIMENSIONS)} <= {*self._sides}
        }
        in_time = self._now() < self._share_ends_s
        middle = self._sides[len(self._sides) // 2]
        for layout in dict.fromkeys(case.layout for case in cases):
            if known and not in_time:
                break
            first = _at(cases, dict.fromkeys(DIMENSIONS, middle), layout)
            if not any(case.key in known for case in first):
                return Group(tuple(first)), TRY_S * len(first)
        best = best_of([*known.values()])
        if best is None:
            return None
        if in_time and (tried := self._beside(best.case, known)):
            return Group((tried,)), TRY_S
        left = best_of([known[key] for key in known.keys() - self._again])
        if left is None or len(self._again) == AGAIN:
            return None
        self._again.add(left.case.key)
        return Group((left.case,)), LAST_S

    def _beside(self, case: Case, known: dict[str, Result]) -> Case | None:
        """The first case that was not tried, one step from this one in one dimension."""
        for dimension in DIMENSIONS:
            place = self._sides.index(case.dim(dimension))
            for other in (place + 1, place - 1):
                if 0 <= other < len(self._sides):
                    beside = replace(case, dims={**case.dims, dimension: self._sides[other]})
                    if beside.key not in known:
                        return beside
        return None


def _at(cases: Sequence[Case], dims: dict[str, int], layout: str) -> list[Case]:
    """The cases of one shape and layout, of every back end."""
    backends = dict.fromkeys(case.backend for case in cases)
    return [replace(cases[0], dims=dims, layout=layout, backend=backend) for backend in backends]


def plan_peak(asked: Conditions, kind: str, sides: str) -> list[Group]:
    """The corners of the search: the middle and the largest shape, in each layout and precision.

    UserError for sides that cannot be read, and for an unknown precision or back end.
    """
    if kind == "cuda" and asked.backend is None:
        asked = replace(asked, backend=BACKENDS)
    arms = plan_arms("gemm", asked, kind)
    parse_choice(asked.data, DATA, "--data")
    found = sides_of(sides)
    ends = dict.fromkeys([found[len(found) // 2], found[-1]])
    return [
        group_of(
            Case("gemm", dict.fromkeys(DIMENSIONS, side), name, "", layout, asked.data),
            [arm for arm in arms if arm[0] == name],
        )
        for name in dict.fromkeys(name for name, _ in arms)
        for side in ends
        for layout in OPS["gemm"].layouts
    ]


def sides_of(text: str) -> list[int]:
    """The sides that M, N and K may have, smallest first. UserError for what cannot be read."""
    return sorted(parse_numbers(text, "--sizes"))
