"""How long a case would take, from smaller ones: what does not fit the budget is not begun.

Needed where a precision has no hardware: half-precision products on many CPUs run 500 times slower
than float32, and one launch of a large one would take minutes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from kernels import OPS
from kernels.case import Case, Target
from microbench.timing.interleave import FEWEST_ROUNDS

LAUNCHES_NEEDED = FEWEST_ROUNDS + 2  # one to check, one to estimate, the rest to time


class TooLong(Exception):
    """The case would not fit its budget; the message says how long it would take."""


@dataclass(frozen=True)
class _Known:
    flops: int
    seconds: float


@dataclass
class Estimator:
    """Times seen so far, by precision and back end; the largest case of each counts."""

    known: dict[tuple[str, str, str], _Known] = field(
        default_factory=dict[tuple[str, str, str], _Known]
    )

    @staticmethod
    def _kind(case: Case) -> tuple[str, str, str]:
        return case.op, case.precision_name, case.backend

    def learn(self, case: Case, flops: int, seconds: float) -> None:
        """Note that a launch of this case took so long."""
        before = self.known.get(self._kind(case))
        if before is None or flops >= before.flops:
            self.known[self._kind(case)] = _Known(flops, seconds)

    def expected_s(self, case: Case) -> float:
        """Seconds a launch, scaled by FLOPs from the largest seen; 0 when nothing is known."""
        known = self.known.get(self._kind(case))
        return known.seconds * OPS[case.op].flops(case) / known.flops if known else 0.0

    def admit(self, case: Case, target: Target, budget_s: float, spoken_for_s: float) -> None:
        """TooLong when checking and timing the case would break the budget.

        `spoken_for_s` is what one launch of each arm already admitted takes. A kind of case never
        seen is probed at a small size first.
        """
        if self._kind(case) not in self.known:
            self._probe(case, target)
        launch_s = self.expected_s(case)
        needed_s = LAUNCHES_NEEDED * launch_s
        left_s = budget_s - LAUNCHES_NEEDED * spoken_for_s
        if needed_s > left_s:
            raise TooLong(
                f"about {_words(launch_s)} a launch, estimated from a smaller size; "
                f"{LAUNCHES_NEEDED} launches do not fit the {_words(max(left_s, 0.0))} left for it "
                "(--budget SECONDS allows more)"
            )

    def _probe(self, case: Case, target: Target) -> None:
        small = OPS[case.op].probe(case)
        session = OPS[case.op].session(target, seed=0)  # its own: the arms keep their operands
        prepared = session.prepare(small)
        prepared.candidates[0].call()
        start = time.perf_counter()
        prepared.candidates[0].call()
        self.learn(small, prepared.flops, time.perf_counter() - start)
        session.close()


def _words(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
