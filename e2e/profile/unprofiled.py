"""The step as it runs without the profiler: its time by term, which adds up to it exactly.

Kernels take as long as they were recorded. What the device idles is the step less that: the waits
for a DataLoader as they were timed in the steps without the profiler, the rest as it was recorded,
and no more than usual steps leave. What few steps take beyond the others is a term of its own;
what else no recorded step has is the residual.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from e2e.profile.lines import timed_reads
from e2e.profile.step import NothingSeen, Step, idle_term, step_of, timed_by
from e2e.profile.trace import Trace, kernels_alone
from e2e.results.terms import (
    COMPILATION,
    IDLE,
    LAUNCH,
    LOADER,
    LONG_STEPS,
    PYTHON,
    RESIDUAL,
    SYNC,
)
from microbench.timing.stats import t_quantile

LEAST_MATCHED = 0.9  # of the work of two recordings: less, and only one of them is used
SLOWED = (LAUNCH, SYNC)  # idle time in which the CPU works, which the profiler slows
MOST_LONGER = 1.5  # times as long as recorded: what is beyond that was something else
LONG_NS = 1_000_000  # of an operator of the CPU: the profiler's own time is no matter
LONG, FEW = 3.0, 0.25  # times as long as the median: long steps, if no more than this share is
MOST_LAGS = 8  # steps that may depend on one another: loaders hand out batches in bursts


@dataclass(frozen=True)
class Unprofiled:
    """Some steps as they are without the profiler, by term.

    `whole_ns` is as many steps as were recorded, and the sum of `terms`. `step_s` is None where no
    step was timed without the profiler; the terms are as recorded then. `uncertain` is half of the
    interval of a step without its waits for data, over the step, `long_steps` apart: the numbers
    of those. `missed` is the share of a step that no recorded step has; below 0 what they have
    beyond a step.
    """

    step: Step
    step_s: float | None
    ci95_s: tuple[float, float] | None
    whole_ns: int
    terms: Mapping[str, int]
    uncertain: float = 0.0
    missed: float = 0.0
    long_steps: tuple[int, ...] = ()

    @cached_property
    def factors(self) -> Mapping[str, float]:
        """How much of the recorded time of a term there is without the profiler."""
        recorded = self.step.recorded
        return {term: self.terms.get(term, 0) / ns for term, ns in recorded.items() if ns}

    @property
    def idle_ns(self) -> int:
        """In all steps, nanoseconds in which the device idles."""
        return sum(ns for term, ns in self.terms.items() if self.is_idle(term))

    def is_idle(self, term: str) -> bool:
        """Whether the device idles in this term; what no recorded step has is no recorded work."""
        return term in IDLE or (term in (RESIDUAL, LONG_STEPS) and not self.step.on_cpu)

    @cached_property
    def held_up_ns(self) -> float:
        """Nanoseconds of launches that waits of the CPU for the device hold up.

        Without those the CPU would be ahead by as long as it waits, and the device would wait that
        much less for launches.
        """
        step = self.step
        timed_ns = 1e6 * step.steps * sum(timed_reads(step).values())
        waited_ns = timed_ns or sum(s.ns for s in step.spans("launch") if idle_term(s) == SYNC)
        return min(self.terms.get(LAUNCH, 0), max(0.0, waited_ns - self.terms.get(SYNC, 0)))


def steps_in(trace: Trace) -> Unprofiled:
    """The steps of a trace without the profiler. NothingSeen and UserError as of `step_of`."""
    step = step_of(trace)
    if alone := kernels_alone(trace):
        with suppress(NothingSeen):  # there is still the recording with names
            timed = timed_by(step, alone)
            step = timed if timed.matched >= LEAST_MATCHED else step
    return unprofiled(step)


def unprofiled(step: Step) -> Unprofiled:
    """The time of these steps without the profiler, by what their trace knows of it."""
    times, loading = step.trace.seconds("bare_s"), step.trace.seconds("loading_s")
    if not times or not fmean(times):
        return Unprofiled(step, None, None, step.end - step.start, dict(step.recorded))
    known = len(loading) == len(times)
    loading = loading if known else [0.0] * len(times)
    scale = 1e9 * step.steps
    whole_ns = round(scale * fmean(times))
    own = [max(0.0, time - wait) for time, wait in zip(times, loading, strict=True)]
    usual_ns = scale * median(own)  # of a step without its wait for data
    terms = _divided(step, whole_ns, usual_ns, scale * fmean(loading) if known else None)
    rest_ns = whole_ns - sum(terms.values())
    if rest_ns < 0:  # kernels that took longer while they were recorded
        terms = {term: ns * whole_ns / (whole_ns - rest_ns) for term, ns in terms.items()}
    long = long_steps(own)
    if long and rest_ns > 0:
        beyond_ns = scale * sum(own[number] - median(own) for number in long) / len(own)
        terms[LONG_STEPS] = min(rest_ns, beyond_ns)
        rest_ns -= terms[LONG_STEPS]
    # What the profiler does not slow, and is more than a step: it is in the recorded steps alone.
    steady = (COMPILATION,) if step.on_cpu else step.recorded.keys() - {LOADER, *_slowed(step)}
    over_ns = sum(step.recorded.get(term, 0) for term in steady)
    over_ns -= whole_ns - terms.get(LOADER, 0)
    if step.on_cpu and _tells(times):  # a long operator is slowed by other work alone
        long_ns = sum(op.ns for op in step.ops if op.term not in IDLE and op.ns >= LONG_NS)
        over_ns = max(over_ns, long_ns - MOST_LONGER * (whole_ns - terms.get(LOADER, 0)))
    ends = mean_interval([time for number, time in enumerate(own) if number not in long])
    return Unprofiled(
        step, fmean(times), mean_interval(times), whole_ns, _whole(terms, whole_ns),
        (ends[1] - ends[0]) / 2 / fmean(times) if ends else 0.0,
        (-over_ns if over_ns > 0 else rest_ns) / whole_ns, long,
    )  # fmt: skip


def long_steps(times: Sequence[float]) -> tuple[int, ...]:
    """The numbers of few steps that take much longer than the others do; () for none, or many."""
    long = [number for number, time in enumerate(times) if time > LONG * median(times)]
    return tuple(long) if len(long) <= FEW * len(times) else ()


def _divided(
    step: Step, whole_ns: float, usual_ns: float, loading_ns: float | None
) -> dict[str, float]:
    """Nanoseconds by term without the profiler, but for the residual."""
    recorded = step.recorded
    fixed = {t: float(ns) for t, ns in recorded.items() if t not in IDLE and not step.on_cpu}
    rest = {t: float(ns) for t, ns in recorded.items() if t not in fixed and t != LOADER}
    busy_ns = sum(fixed.values())
    idle_ns = max(0.0, whole_ns - busy_ns)
    waits_ns = float(recorded.get(LOADER, 0))
    if loading_ns is not None:
        waits_ns = loading_ns * (1 - _hidden(step))
    waits_ns = min(waits_ns, idle_ns)
    waited_ns = 0.0 if loading_ns is not None else waits_ns  # of the usual step
    left_ns = max(0.0, min(idle_ns - waits_ns, usual_ns - busy_ns - waited_ns))
    if step.on_cpu:  # every term is slowed, the shares stay
        more = left_ns / (sum(rest.values()) or 1.0)
        more = min(MOST_LONGER, more) if _tells(step.trace.seconds("bare_s")) else more
        divided = {term: ns * more for term, ns in rest.items()}
    else:
        divided = {**fixed, **_scaled(rest, left_ns, _slowed(step))}
    return divided | ({LOADER: waits_ns} if waits_ns else {})


def _tells(times: Sequence[float]) -> bool:
    """Whether enough steps were timed to hold recorded ones against them."""
    return mean_interval(times) is not None


def _slowed(step: Step) -> Collection[str]:
    """Idle time that the profiler makes longer.

    Of the script's own code a recording of kernels alone has no more than there is.
    """
    return SLOWED if step.named else (*SLOWED, PYTHON)


def _scaled(terms: Mapping[str, float], whole: float, slowed: Collection[str]) -> dict[str, float]:
    """The terms cut down to what there is, those that the profiler slows before the others."""
    over = sum(terms.values()) - whole
    if over <= 0:  # usual steps wait longer than the recorded ones did
        more = min(MOST_LONGER, whole / sum(terms.values())) if any(terms.values()) else 1.0
        return {term: ns * more for term, ns in terms.items()}
    slow = sum(terms.get(term, 0.0) for term in slowed)
    cut = 1 - min(1.0, over / slow) if slow else 1.0
    scaled = {term: ns * cut if term in slowed else ns for term, ns in terms.items()}
    left = sum(scaled.values())
    return {t: ns * whole / left for t, ns in scaled.items()} if left > whole else scaled


def _hidden(step: Step) -> float:
    """The share of the recorded waits for a loader in which the device works; 0 where unknown."""
    named = step.with_names
    waited = sum(
        min(n.end, named.end) - max(n.start, named.start)
        for n in named.trace.spans["note"]
        if n.name.startswith("enumerate(DataLoader)")
        and n.end > named.start and n.start < named.end
    )  # fmt: skip
    idle = named.recorded.get(LOADER, 0)
    return max(0.0, 1 - idle / waited) if idle and waited else 0.0


def _whole(terms: Mapping[str, float], whole_ns: int) -> dict[str, int]:
    """Whole nanoseconds that add up exactly: the residual is what the terms leave."""
    terms_ns = {term: whole for term, ns in terms.items() if (whole := round(ns))}
    rest = whole_ns - sum(terms_ns.values())
    if abs(rest) <= len(terms_ns) and terms_ns:  # rounding
        largest = max(terms_ns, key=lambda term: terms_ns[term])
        terms_ns[largest] += rest
        rest = 0
    terms_ns |= {RESIDUAL: rest} if rest else {}
    return dict(sorted(terms_ns.items(), key=lambda item: -item[1]))


def mean_interval(times: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the mean of consecutive steps, which may depend on one another.

    Batches come in bursts, so a long step is followed by short ones. The variance is that of Newey
    and West (1987). None for fewer than four steps.
    """
    count = len(times)
    if count < 4:
        return None
    mean = fmean(times)
    off = [time - mean for time in times]
    lags = min(MOST_LAGS, count // 3)
    variance = sum(x * x for x in off) / count
    for lag in range(1, lags + 1):
        shared = sum(x * y for x, y in zip(off, off[lag:], strict=False)) / count
        variance += 2 * (1 - lag / (lags + 1)) * shared
    half = t_quantile(0.95, count - 1) * math.sqrt(max(0.0, variance) / (count - 1))
    return mean - half, mean + half
