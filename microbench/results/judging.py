"""The verdict on one case in two runs, A and B: B is faster, slower, the same, or cannot tell.

Runs happen at different times on different allocations of memory and at different temperatures, so
the interval of one process is too narrow for the ratio of two. Where both runs measured a case in
several processes, the interval is of the ratio of the means over processes, with a variance between
processes that is learnt from all cases of both runs (`microbench.timing.processes`), and a verdict
needs it beyond LEAST_PCT. Elsewhere a `Noise` stands for what is not known. Where both runs know
their clock, a verdict must be the same in cycles. Steps that the CPU limits are compared as they
would be at one CPU speed. Where the figures come from: docs/method.md, "Comparing runs".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from microbench.results.kinds import kinds
from microbench.results.values import RUINED_PCT, Interval, ProcessTime, Ratio, Timed
from microbench.timing.processes import (
    DEFAULT_PRIOR,
    Variance,
    VariancePrior,
    pooled,
    ratio_over,
    variance_between,
)

LEAST_PCT = 1.0  # that a difference must exceed, where runs know how processes differ
# For cases of one process:
NOISE_PCT = 3.0
NOISE_S = 1.3e-6  # where the matrices lie in memory: up to 1.22 us between runs, stable in each
CPU_BOUND_PCT = 30.0  # at one CPU speed; 98.5 % of 1,065 pairs of one step were within it


@dataclass(frozen=True)
class Noise:
    """What two runs of one case may differ by: the larger of a share and of an absolute time.

    Within `near_pct` they are the same; None: within `pct`.
    """

    pct: float
    seconds: float = 0.0
    near_pct: float | None = None

    def share(self, a_s: float, b_s: float) -> float:
        """The larger of the two as a share of the shorter time."""
        return max(self.pct / 100, self.seconds / min(a_s, b_s))

    @property
    def near(self) -> float:
        """The share within which they are the same."""
        return (self.pct if self.near_pct is None else self.near_pct) / 100


KERNELS = Noise(NOISE_PCT, NOISE_S)


class Judgement(NamedTuple):
    """A verdict on B, a detail for the notes ("" for none), why, and the threshold (a share)."""

    verdict: str
    note: str
    reason: str
    threshold: float


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


def noise_of(op: str, a: Timed, b: Timed, threshold_pct: float | None = None) -> Noise:
    """What these two may differ by; `threshold_pct` replaces the share in it."""
    noise = Noise(kinds()[op].noise_pct) if op in kinds() else KERNELS
    if a.cpu_bound or b.cpu_bound:
        noise = Noise(CPU_BOUND_PCT)
    elif in_processes(a, b):
        noise = Noise(LEAST_PCT, near_pct=noise.pct)
    return noise if threshold_pct is None else Noise(threshold_pct, noise.seconds)


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


def ratio_between(a: Timed, b: Timed, learnt: Learnt | None = None) -> Times:
    """Time in A over time in B.

    Of the means over processes, where both have several; else from the medians' intervals, taken
    as independent.
    """
    if in_processes(a, b):
        return _over_processes(a, b, _seconds, (learnt or Learnt()).seconds)
    ratio = a.median_s / b.median_s
    if a.ci95_s is None or b.ci95_s is None:
        return Times(ratio, None)
    below = math.hypot(math.log(a.median_s / a.ci95_s[0]), math.log(b.ci95_s[1] / b.median_s))
    above = math.hypot(math.log(a.ci95_s[1] / a.median_s), math.log(b.median_s / b.ci95_s[0]))
    return Times(ratio, (ratio * math.exp(-below), ratio * math.exp(above)))


def judge(a: Timed, b: Timed, noise: Noise = KERNELS, learnt: Learnt | None = None) -> Judgement:
    """The verdict on B. The whole interval must lie beyond the noise of two runs."""
    times = ratio_between(a, b, learnt)
    share = noise.share(a.median_s, b.median_s)
    if times.interval is None:
        return Judgement("cannot tell", "one round only", "one round only", share)
    if a.cpu_bound or b.cpu_bound:
        return _judge_at_one_speed(times, a, b, noise, share, learnt or Learnt())
    if Ratio(*times).ruined_pct:
        return Judgement("cannot tell", "", RUINED, share)
    verdict = _verdict(times.interval, share, noise.near)
    if verdict in ("faster", "slower"):
        cycles = _in_cycles(times, a, b, learnt)
        if cycles and cycles.interval and _verdict(cycles.interval, share, noise.near) != verdict:
            clocks = f"{a.sm_clock_mhz or 0:.0f} and {b.sm_clock_mhz or 0:.0f} MHz"
            note = f"the clocks differ ({clocks}): {cycles.ratio:.2f}x in cycles"
            return Judgement("cannot tell", note, "clocks differ", share)
    return Judgement(verdict, "", _reason(verdict, times.interval, noise, share), share)


def _in_cycles(times: Times, a: Timed, b: Timed, learnt: Learnt | None) -> Times | None:
    """The ratio in cycles of the SM; None where a run does not know its clock."""
    if in_processes(a, b) and _know_clocks(a, b):
        return _over_processes(a, b, _cycles, (learnt or Learnt()).cycles)
    if not a.sm_clock_mhz or not b.sm_clock_mhz:
        return None
    return times.scaled(a.sm_clock_mhz / b.sm_clock_mhz)


def _judge_at_one_speed(
    times: Times, a: Timed, b: Timed, noise: Noise, share: float, learnt: Learnt
) -> Judgement:
    """The verdict on a step that the CPU limits: of the times at one CPU speed.

    Of several processes each time is at the speed that its own process read.
    """
    if a.host_pace is None or b.host_pace is None:
        note = "the CPU limits the step, and a run does not know its CPU's speed meanwhile"
        return Judgement("cannot tell", note, "CPU-bound", share)
    at_one = times.scaled(b.host_pace / a.host_pace)
    if in_processes(a, b) and _know_paces(a, b):
        at_one = _over_processes(a, b, _at_one_speed, learnt.at_one_speed)
    assert at_one.interval is not None
    note = f"{at_one.ratio:.2f}x at one CPU speed"
    if Ratio(*at_one).ruined_pct:
        return Judgement("cannot tell", note, RUINED, share)
    verdict = _verdict(at_one.interval, share, noise.near)
    if verdict in ("faster", "slower") and (at_one.ratio > 1) != (times.ratio > 1):
        return Judgement("cannot tell", note, "CPU speeds differ", share)
    return Judgement(verdict, note, _reason(verdict, at_one.interval, noise, share), share)


def _reason(verdict: str, interval: Interval, noise: Noise, share: float) -> str:
    """Why a verdict, from where the interval lies."""
    if verdict in ("faster", "slower"):
        return "interval is beyond it"
    if verdict == "same":
        return f"interval is within {100 * noise.near:g} %"
    low, high = interval
    if share > noise.pct / 100:
        floor = f"{noise.seconds * 1e6:g} us"
        if 1 / (1 + share) <= low and high <= 1 + share:
            return f"interval is within {floor}"
        if low > 1 + noise.near or high < 1 / (1 + noise.near):
            return f"interval reaches within {floor}"
    return f"interval reaches beyond {100 * noise.near:g} %"


def _verdict(interval: Interval, beyond: float, near: float) -> str:
    """Shares of a ratio: `beyond` which it is a difference, `near` to which it is none."""
    low, high = interval
    if low > 1 + beyond:
        return "faster"
    if high < 1 / (1 + beyond):
        return "slower"
    if low >= 1 / (1 + near) and high <= 1 + near:
        return "same"
    return "cannot tell"
