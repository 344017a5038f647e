"""The verdict on one case in two runs, A and B: B is faster, slower, the same, or cannot tell.

Runs happen at different times on different allocations of memory and at different temperatures, so
the interval of one process is too narrow for the ratio of two. Where both runs measured a case in
several processes, the interval is of the ratio of the means over processes, with a variance between
processes that is learnt from all cases of both runs (`microbench.timing.processes`), and a verdict
needs it beyond LEAST_PCT. That of a kernel in one process has in it what kernels like it were seen
to differ by, and must be beyond NOISE_PCT. For trainings and loaders of one process a `Noise`
stands for what is not known. Where both runs know their clock, a verdict must be the same in
cycles. Steps that the CPU limits are compared as they would be at one CPU speed. Where the figures
come from: docs/method.md, "Comparing runs".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from microbench.results.kinds import kinds
from microbench.results.values import RUINED_PCT, Interval, ProcessTime, Ratio, Timed
from microbench.timing.processes import (
    DEFAULT_PRIOR,
    PRIORS,
    Variance,
    VariancePrior,
    over_processes,
    pooled,
    prior_of,
    ratio_over,
    variance_between,
)

LEAST_PCT = 1.0  # that a difference must exceed, where runs know how processes differ
NOISE_PCT = (
    3.0  # likewise, of kernels in one process; and within which their own interval is the same
)
CPU_BOUND_PCT = 30.0  # at one CPU speed; 98.5 % of 1,065 pairs of one step were within it


@dataclass(frozen=True)
class Noise:
    """What two runs of one case may differ by, in per cent.

    Within `near_pct` they are the same; None: within `pct`. `op` is that whose usual differences
    between processes the interval of one process gets; "" for none.
    """

    pct: float
    near_pct: float | None = None
    op: str = ""

    @property
    def beyond(self) -> float:
        """The share beyond which they differ."""
        return self.pct / 100

    @property
    def near(self) -> float:
        """The share within which they are the same."""
        return (self.pct if self.near_pct is None else self.near_pct) / 100


class Judgement(NamedTuple):
    """A verdict on B, a detail for the notes ("" for none), and why."""

    verdict: str
    note: str
    reason: str


class Times(NamedTuple):
    """A ratio of two times, A over B, and its 95 % interval, None where it is not known."""

    ratio: float
    interval: Interval | None

    def scaled(self, by: float) -> Times:
        """Both times `by`."""
        ends = self.interval
        return Times(self.ratio * by, ends and (ends[0] * by, ends[1] * by))


def processes_of(timed: Timed) -> int:
    """How many processes measured it."""
    return max(1, len(timed.processes))


def in_processes(a: Timed, b: Timed) -> bool:
    """Whether several processes measured both."""
    return min(processes_of(a), processes_of(b)) > 1


def is_learnt(op: str) -> bool:
    """Whether it is known what processes differ by, of cases of this op."""
    return op in PRIORS


def noise_of(op: str, a: Timed, b: Timed, threshold_pct: float | None = None) -> Noise:
    """What these two may differ by; `threshold_pct` replaces the per cent in it."""
    usual_pct = kinds()[op].noise_pct if op in kinds() else NOISE_PCT
    if a.cpu_bound or b.cpu_bound:
        noise = Noise(CPU_BOUND_PCT)
    elif in_processes(a, b):
        noise = Noise(LEAST_PCT, usual_pct)
    elif is_learnt(op):
        noise = Noise(usual_pct, op=op)
    else:
        noise = Noise(usual_pct)
    return noise if threshold_pct is None else replace(noise, pct=threshold_pct, near_pct=None)


# ---------------------------------------------------------------- what varies between processes

Reading = Callable[[ProcessTime], float]


def _seconds(process: ProcessTime) -> float:
    return process.median_s


def _cycles(process: ProcessTime) -> float:
    return process.median_s * (process.sm_clock_mhz or 0.0)


def _at_one_speed(process: ProcessTime) -> float:
    return process.median_s / (process.host_pace or 1.0)


def _know_paces(*runs: Timed) -> bool:
    return all(process.host_pace for timed in runs for process in timed.processes)


def _know_clocks(*runs: Timed) -> bool:
    return all(process.sm_clock_mhz for timed in runs for process in timed.processes)


@dataclass(frozen=True)
class Learnt:
    """What is usual between processes, in seconds and in cycles, and at one CPU speed."""

    seconds: VariancePrior = DEFAULT_PRIOR
    cycles: VariancePrior = DEFAULT_PRIOR
    at_one_speed: VariancePrior = DEFAULT_PRIOR  # of steps that the CPU limits


def learn(pairs: Sequence[tuple[Timed, Timed]]) -> Learnt:
    """What is usual, from the cases that several processes measured in both runs."""
    every = [(a, b) for a, b in pairs if in_processes(a, b)]
    several = [(a, b) for a, b in every if not (a.cpu_bound or b.cpu_bound)]
    paced = [(a, b) for a, b in every if (a.cpu_bound or b.cpu_bound) and _know_paces(a, b)]
    clocked = [(a, b) for a, b in several if _know_clocks(a, b)]
    return Learnt(
        VariancePrior.fit([_own(a, b, _seconds) for a, b in several]),
        VariancePrior.fit([_own(a, b, _cycles) for a, b in clocked]),
        VariancePrior.fit([_own(a, b, _at_one_speed) for a, b in paced]),
    )


def _own(a: Timed, b: Timed, reading: Reading) -> Variance:
    """How much one case varies between the processes of each run."""
    return pooled([variance_between([reading(p) for p in timed.processes]) for timed in (a, b)])


def _over_processes(a: Timed, b: Timed, reading: Reading, usual: VariancePrior) -> Times:
    ours, theirs = ([reading(p) for p in timed.processes] for timed in (a, b))
    return Times(*ratio_over(ours, theirs, usual.posterior(_own(a, b, reading))))


# ---------------------------------------------------------------- ratios and verdicts


RUINED = f"interval is beyond ±{RUINED_PCT:.0f} %"


def ratio_between(a: Timed, b: Timed, learnt: Learnt | None = None, op: str = "") -> Times:
    """Time in A over time in B.

    Of the means over processes, where both have several; else from the medians' intervals, taken
    as independent. That of one process has in it what processes differ by, of kernels of this `op`.
    """
    if in_processes(a, b):
        return _over_processes(a, b, _seconds, (learnt or Learnt()).seconds)
    ratio = a.median_s / b.median_s
    a_s, b_s = _interval(a, op), _interval(b, op)
    if a_s is None or b_s is None:
        return Times(ratio, None)
    below = math.hypot(math.log(a.median_s / a_s[0]), math.log(b_s[1] / b.median_s))
    above = math.hypot(math.log(a_s[1] / a.median_s), math.log(b.median_s / b_s[0]))
    return Times(ratio, (ratio * math.exp(-below), ratio * math.exp(above)))


def _interval(timed: Timed, op: str) -> Interval | None:
    own = timed.ci95_s
    if own is None or processes_of(timed) > 1 or not op:
        return own
    return over_processes(timed.median_s, own, prior_of(op, timed.median_s))


def judge(a: Timed, b: Timed, noise: Noise, learnt: Learnt | None = None) -> Judgement:
    """The verdict on B. The whole interval must lie beyond the noise of two runs."""
    own, times = (ratio_between(a, b, learnt, op) for op in ("", noise.op))
    if own.interval is None or times.interval is None:
        return Judgement("cannot tell", "one round only", "one round only")
    if a.cpu_bound or b.cpu_bound:
        return _judge_at_one_speed(own, a, b, noise, learnt or Learnt())
    if Ratio(*own).ruined_pct:
        return Judgement("cannot tell", "", RUINED)
    differs = _differs(times.interval, noise)
    cycles = _in_cycles(times, a, b, learnt) if differs else None
    if cycles and cycles.interval and _differs(cycles.interval, noise) != differs:
        clocks = f"{a.sm_clock_mhz or 0:.0f} and {b.sm_clock_mhz or 0:.0f} MHz"
        note = f"the clocks differ ({clocks}): {cycles.ratio:.2f}x in cycles"
        return Judgement("cannot tell", note, "clocks differ")
    return _judged(differs, own.interval, noise)


def _in_cycles(times: Times, a: Timed, b: Timed, learnt: Learnt | None) -> Times | None:
    """The ratio in cycles of the SM; None where a run does not know its clock."""
    if in_processes(a, b) and _know_clocks(a, b):
        return _over_processes(a, b, _cycles, (learnt or Learnt()).cycles)
    if not a.sm_clock_mhz or not b.sm_clock_mhz:
        return None
    return times.scaled(a.sm_clock_mhz / b.sm_clock_mhz)


def _judge_at_one_speed(
    times: Times, a: Timed, b: Timed, noise: Noise, learnt: Learnt
) -> Judgement:
    """The verdict on a step that the CPU limits: of the times at one CPU speed.

    Of several processes each time is at the speed that its own process read.
    """
    if a.host_pace is None or b.host_pace is None:
        note = "the CPU limits the step, and a run does not know its CPU's speed meanwhile"
        return Judgement("cannot tell", note, "CPU-bound")
    at_one = times.scaled(b.host_pace / a.host_pace)
    if in_processes(a, b) and _know_paces(a, b):
        at_one = _over_processes(a, b, _at_one_speed, learnt.at_one_speed)
    assert at_one.interval is not None
    note = f"{at_one.ratio:.2f}x at one CPU speed"
    if Ratio(*at_one).ruined_pct:
        return Judgement("cannot tell", note, RUINED)
    differs = _differs(at_one.interval, noise)
    if differs and (at_one.ratio > 1) != (times.ratio > 1):
        return Judgement("cannot tell", note, "CPU speeds differ")
    return _judged(differs, at_one.interval, noise)._replace(note=note)


def _differs(interval: Interval, noise: Noise) -> str:
    """What an interval says that is wholly beyond the noise; "" for any other."""
    low, high = interval
    if low > 1 + noise.beyond:
        return "faster"
    return "slower" if high < 1 / (1 + noise.beyond) else ""


def _judged(differs: str, own: Interval, noise: Noise) -> Judgement:
    """The verdict with its reason, from how the runs differ, and their own interval."""
    low, high = own
    least, most = 1 / (1 + noise.near), 1 + noise.near
    near = f"{100 * noise.near:g} %"
    if differs:
        return Judgement(differs, "", "interval is beyond it")
    if least <= low and high <= most:
        return Judgement("same", "", f"interval is within {near}")
    if noise.op and (low > most or high < least):
        return Judgement("cannot tell", "", "processes may differ by as much")
    return Judgement("cannot tell", "", f"interval reaches beyond {near}")
