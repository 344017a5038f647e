"""Answers to the tests of claims, from measured cells.

An answer is a number with an interval. A test is undecided where the interval holds its limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import stdev
from typing import Any

from e2e.results.baselines import scaled
from e2e.studies.cells import Cell, baseline_of
from e2e.studies.types import Test

YES, NO, UNKNOWN, UNTESTABLE = "yes", "no", "cannot tell", "not testable here"
BETWEEN = ("to", "column")  # what a function takes beside the factors of a cell
UNLEARNT = "neither learnt anything: train longer"
EXACT = ("allocated_mb", "model_mb", "checkpoint_mb")  # the same in every run: no error
Interval = tuple[float, float]


@dataclass(frozen=True)
class Answer:
    """What a test found: `answer` is YES, NO, UNKNOWN or UNTESTABLE, `reason` why not."""

    answer: str
    value: float | None = None
    interval: Interval | None = None
    reason: str = ""
    cell: str = ""  # the id of the cell whose number it is

    @property
    def number(self) -> str:
        """ "1.94 [1.90, 1.98]"; "" where there is none."""
        if self.value is None:
            return ""
        ends = self.interval and " [{:.3g}, {:.3g}]".format(*self.interval)
        return f"{self.value:.3g}{ends or ''}"


def answer(test: Test, cells: Sequence[Cell]) -> Answer:
    """What the cells say to a test. The first cell that fits, in the study's order, answers."""
    where = {name: value for name, value in test.where.items() if name not in BETWEEN}
    fitting = [cell for cell in cells if cell.fits(where)]
    if not fitting:
        asked = ", ".join(f"{name} {value}" for name, value in where.items())
        return Answer(UNTESTABLE, reason=f"no such cell in this run ({asked})")
    reason = next((cell.reason for cell in fitting if cell.reason), "it was not measured")
    for cell in fitting:
        found = ANSWERS[test.function](cell, cells, test.where)
        if found is not None:
            said = judged(test, cell, *found)
            if _unlearnt(test, cell, cells):
                return replace(said, answer=UNKNOWN, reason=UNLEARNT)
            return said
    return Answer(UNTESTABLE, reason=reason)


def _unlearnt(test: Test, cell: Cell, cells: Sequence[Cell]) -> bool:
    """Whether a test compares accuracies of two recipes that both learnt nothing."""
    if test.function != "difference" or not test.where.get("column", "accuracy").startswith("acc"):
        return False
    pair = (cell, baseline_of(cell, cells, test.where.get("to")))
    trainings = [one.training for one in pair if one and one.training]
    return bool(trainings) and all(t.convergence and not t.converged for t in trainings)


def judged(test: Test, cell: Cell, value: float, ends: Interval | None) -> Answer:
    """The answer of a value and its interval to a test; without an interval it is undecided."""
    low, high = ends or (-math.inf, math.inf)
    above, below = low >= test.number, high < test.number
    if test.sign == "<=":
        above, below = high <= test.number, low > test.number
    verdict = YES if above else NO if below else UNKNOWN
    reason = ""
    if verdict == UNKNOWN:
        reason = "the interval holds the limit" if ends else "one reading has no interval"
    return Answer(verdict, value, ends, reason, cell.id)


# ---------------------------------------------------------------- functions

Found = tuple[float, Interval | None] | None
Function = Callable[[Cell, Sequence[Cell], Mapping[str, str]], Found]


def _speedup(cell: Cell, cells: Sequence[Cell], where: Mapping[str, str]) -> Found:
    """Times faster than fp32 (or O0), interleaved with it."""
    return cell.speedup


def _ratio(cell: Cell, cells: Sequence[Cell], where: Mapping[str, str]) -> Found:
    """A column over the same column of the recipe `to`; by repeats where the column has them."""
    pair = _pair(cell, cells, where)
    if pair is None or not pair[1][0]:
        return None
    (a, a_error), (b, b_error) = pair
    if a_error is None or b_error is None:
        return a / b, None
    return _around(a / b, abs(a / b) * math.hypot(a_error / a if a else 0.0, b_error / b))


def _difference(cell: Cell, cells: Sequence[Cell], where: Mapping[str, str]) -> Found:
    """A column less the same column of the recipe `to`."""
    pair = _pair(cell, cells, where)
    if pair is None:
        return None
    (a, a_error), (b, b_error) = pair
    if a_error is None or b_error is None:
        return a - b, None
    return _around(a - b, math.hypot(a_error, b_error))


def _accuracy(cell: Cell, cells: Sequence[Cell], where: Mapping[str, str]) -> Found:
    """Held-out accuracy in per cent, mean of the repeats."""
    found = _with_error(cell, "accuracy_pct")
    return found and _around(*found)


def _around(value: float, error: float | None) -> Found:
    return value, None if error is None else (value - error, value + error)


def _converged(cell: Cell, cells: Sequence[Cell], where: Mapping[str, str]) -> Found:
    """1 where the recipe converged in all of two or more repeats, 0 where it did in none."""
    found = cell.values.get("converged")
    if found is None:
        return None
    number = float(found)
    return number, (number, number) if len(cell.repeats("accuracy_pct")) > 1 else None


def _efficiency(cell: Cell, cells: Sequence[Cell], where: Mapping[str, str]) -> Found:
    """Throughput over that of one GPU times the number of GPUs; None where that was not timed."""
    trainings = [one.training for one in cells if one.part == cell.part and one.training]
    found = next((row for row in scaled(trainings) if row.many is cell.training), None)
    return found and (found.efficiency.ratio, found.efficiency.ci95)


ANSWERS: dict[str, Function] = {
    "speedup": _speedup, "ratio": _ratio, "difference": _difference, "accuracy": _accuracy,
    "converged": _converged, "efficiency": _efficiency,
}  # fmt: skip


def _pair(
    cell: Cell, cells: Sequence[Cell], where: Mapping[str, str]
) -> tuple[tuple[float, float | None], tuple[float, float | None]] | None:
    """(value, error) of a column in the cell and in that with the recipe `to`."""
    other = baseline_of(cell, cells, where.get("to"))
    column = where.get("column", "accuracy_pct")
    own = _with_error(cell, column)
    base = _with_error(other, column) if other else None
    return (own, base) if own and base else None


def _with_error(cell: Cell, column: str) -> tuple[float, float | None] | None:
    """A column's value and two standard errors of its mean; None for the error of one reading."""
    value: Any = cell.values.get(column)
    if not isinstance(value, int | float):
        return None
    readings = cell.repeats(column)
    if column in EXACT:
        return float(value), 0.0
    if len(readings) < 2:
        return float(value), None
    return float(value), 2 * stdev(readings) / math.sqrt(len(readings))
