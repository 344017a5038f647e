"""The ledger from one recording to another: changes of terms, exact, with one residual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

RESIDUAL, STEP = "profiler, and other speed of the CPU", "step"
NS = 10**9


@dataclass(frozen=True)
class Change:
    """A line of the ledger: nanoseconds a step in both recordings, as exact fractions."""

    term: str
    base_ns: Fraction
    other_ns: Fraction

    @property
    def ns(self) -> Fraction:
        """Nanoseconds a step that the other takes more."""
        return self.other_ns - self.base_ns


class Term(Protocol):
    """Time of a term in all steps."""

    @property
    def term(self) -> str: ...

    @property
    def ns(self) -> int: ...


class Run(Protocol):
    """A divided recording."""

    @property
    def steps(self) -> int: ...

    @property
    def window_ns(self) -> int: ...

    @property
    def bare_step_s(self) -> float | None: ...

    @property
    def terms(self) -> Sequence[Term]: ...


def step_ns(run: Run) -> Fraction:
    """Nanoseconds of a step: without the profiler where that is known."""
    if run.bare_step_s is None:
        return Fraction(run.window_ns, run.steps)
    return Fraction(run.bare_step_s) * NS


def changes(base: Run, other: Run) -> list[Change]:
    """Every term of both, the largest change first; then the residual; last the step.

    The lines before the last add up to it, exactly: the residual is what steps without the profiler
    take more or less than the recorded ones.
    """
    names = dict.fromkeys(term.term for run in (base, other) for term in run.terms)
    terms = [Change(name, _ns(base, name), _ns(other, name)) for name in names]
    terms.sort(key=lambda change: (-abs(change.ns), change.term))
    rest = [step_ns(run) - Fraction(run.window_ns, run.steps) for run in (base, other)]
    return [*terms, Change(RESIDUAL, *rest), Change(STEP, step_ns(base), step_ns(other))]


def _ns(run: Run, name: str) -> Fraction:
    return Fraction(sum(term.ns for term in run.terms if term.term == name), run.steps)
