"""What a launch is expected to take, from the cases seen so far; what does not fit is not begun."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from kernels.case import Case, Target
from kernels.op import Session
from microbench.timing import FEWEST_ROUNDS

PROBE_LAUNCHES = 3
PROBE_S = 0.05  # a shorter launch may be overhead, which does not grow with the work
LAUNCHES_NEEDED = FEWEST_ROUNDS + 3  # two to check, one to estimate, others to time in a process
MORE = "--budget SECONDS allows more"  # in the reason of what is skipped for want of time

Kind = tuple[str, str, str]  # op, precision, back end


class TooLong(Exception):
    """The case does not fit its budget; the message has the expected time."""


@dataclass
class Estimator:
    """Seconds per launch of the largest case seen so far, by op, precision and back end.

    A case that does not fit the budget is not begun: half-precision GEMMs on many CPUs, which have
    no hardware for them, run 500 times slower than float32, and one launch of a large one takes
    minutes.
    """

    known: dict[Kind, tuple[int, float]] = field(default_factory=dict[Kind, tuple[int, float]])

    def learn(self, case: Case, flops: int, seconds: float) -> None:
        """Note the seconds that a launch of this case took; `flops` are its FLOPs."""
        if flops >= self.known.get(_kind(case), (0, 0.0))[0]:
            self.known[_kind(case)] = (flops, seconds)

    def expected_s(self, case: Case) -> float:
        """Expected seconds per launch, by FLOPs from the largest case seen; 0 when none was."""
        flops, seconds = self.known.get(_kind(case), (1, 0.0))
        return seconds * case.problem.flops / flops

    def admit(self, case: Case, target: Target, budget_s: float, spoken_for_s: float) -> None:
        """TooLong when checking and timing the case would exceed the budget in seconds.

        `spoken_for_s` is the seconds of one launch of each variant already admitted. A kind of case
        never seen is timed at a small size first; what that raises is passed on. Before a case is
        refused, that size grows until a launch takes PROBE_S, or is the case itself: on a busy CPU
        a small one is mostly waiting for threads.
        """
        if _kind(case) not in self.known:
            self._probe(replace(case, problem=case.problem.probe()), target)
        left_s = budget_s - LAUNCHES_NEEDED * spoken_for_s
        scale = 1
        while LAUNCHES_NEEDED * self.expected_s(case) > left_s:
            flops, seconds = self.known[_kind(case)]
            if seconds >= PROBE_S or flops >= case.problem.flops:
                break
            scale *= 2
            larger = replace(case, problem=case.problem.probe(scale))
            if larger.problem.flops > flops:
                self._probe(larger, target)
        launch_s = self.expected_s(case)
        if LAUNCHES_NEEDED * launch_s > left_s:
            raise TooLong(
                f"about {_words(launch_s)} a launch, estimated from a smaller size; "
                f"{LAUNCHES_NEEDED} launches do not fit the {_words(max(left_s, 0.0))} left for it "
                f"({MORE})"
            )

    def _probe(self, small: Case, target: Target) -> None:
        """Learn the shortest of a few launches: one that another program delays says nothing."""
        session = Session(target, seed=0)  # its own: the others keep operands
        prepared = session.prepare(small)
        prepared.candidates[0].call()
        found: list[float] = []
        while len(found) < PROBE_LAUNCHES and sum(found) < 1.0:
            start = time.perf_counter()
            prepared.candidates[0].call()
            found.append(time.perf_counter() - start)
        self.learn(small, small.problem.flops, min(found))
        session.close()


def _kind(case: Case) -> Kind:
    return case.op, case.precision_name, case.backend


def _words(seconds: float) -> str:
    if seconds < 1:
        return f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
