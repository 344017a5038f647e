"""Ratios of what took turns, and one result from what several processes measured of a case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from kernels import is_library
from microbench.results.types import Measurement, ProcessTime, Ratio, Result, Sampled
from microbench.timing.stats import mean_interval, ratio_interval

S = TypeVar("S", bound=Sampled)


def joined(before: S, more: S, newest: ProcessTime, first: ProcessTime, tick_s: float) -> S:
    """`before` with the samples of one more process, which is `newest`; seconds.

    `first` is what process 0 measured, where that is all there is so far. What else they hold is
    that of `before`.
    """
    processes = (*(before.processes or (first,)), newest)
    centre, interval = mean_interval([process.median_s for process in processes], tick_s)
    changes: dict[str, Any] = {
        "times_s": before.times_s + more.times_s,
        "blocks": before.blocks + more.blocks,
        "median_s": centre,
        "ci95_s": interval,
        "processes": processes,
    }
    return cast("S", replace(cast("Any", before), **changes))


def newest(samples: Iterable[Sampled | None]) -> int:
    """The number of the last process that took some of them; 0 where only the first one did."""
    return max((p.number for taken in samples if taken for p in taken.processes), default=0)


def running_mean(before: float | None, newest: float | None, count: int) -> float | None:
    """The mean over `count` processes, from that of all but the newest; one where one is known."""
    if before is None or newest is None:
        return newest if before is None else before
    return before + (newest - before) / count


def ratio_of_processes(other: Sampled, own: Sampled, tick_s: float = 0.0) -> Ratio | None:
    """Time of the other over the own, over the processes in which both took the same turns.

    The geometric mean of the processes' ratios with its interval; of one process the ratio over its
    rounds. None where they took turns in none.
    """
    theirs, ours = other.by_process, own.by_process
    ratios = [ratio_interval(theirs[n], ours[n], tick_s) for n in _together(other, own)]
    if len(ratios) < 2:
        return Ratio(*ratios[0]) if ratios else None
    return Ratio(*mean_interval([ratio for ratio, _ in ratios]))


def _together(a: Sampled, b: Sampled) -> list[int]:
    """The processes in which both took the same turns."""
    rounds = b.by_process
    return [n for n, ours in a.by_process.items() if ours and len(rounds.get(n, [])) == len(ours)]


def merged(before: Sequence[Result], more: Sequence[Result], number: int) -> list[Result]:
    """The results of a comparison, with what process `number` measured of the same cases.

    Where the other process has no time for a case, that stays as it was, unless its result turned
    wrong there: then it failed, and no time of it counts. Ratios are of variants timed
    together in one process: their mean over the processes.
    """
    again = {result.case.key: result for result in more}
    for wrong in more:
        if wrong.turned_wrong:
            before = [_failed(result, wrong) for result in before]
    both = [_joined(result, again.get(result.case.key), number) for result in before]
    return [with_ratios(result, both, fewest=2) for result in both]


def _failed(result: Result, wrong: Result) -> Result:
    """A result without the times of a case that turned wrong."""
    case, speedup, vs_backend = wrong.case, dict(result.speedup), dict(result.vs_backend)
    if result.case.key == case.key:
        return replace(result, status="failed", reason=wrong.reason, rel_error=wrong.rel_error,
                       measurement=None, speedup={}, vs_backend={})  # fmt: skip
    if result.case.precision_name == case.precision_name:
        vs_backend.pop(case.backend, None)
    elif is_library(case):
        speedup.pop(case.precision_name, None)
    return replace(result, speedup=speedup, vs_backend=vs_backend)


def _joined(before: Result, more: Result | None, number: int) -> Result:
    a, b = before.measurement, more.measurement if more else None
    if a is None or b is None:
        return before
    tick_s = max(a.timer_resolution_s, b.timer_resolution_s)
    found = joined(a, b, _whole(b, number), _whole(a, 0), tick_s)
    count = len(found.processes)
    found = replace(
        found,
        sm_clock_mhz=running_mean(a.sm_clock_mhz, b.sm_clock_mhz, count),
        power_w=running_mean(a.power_w, b.power_w, count),
        energy_j=running_mean(a.energy_j, b.energy_j, count),
        temperature_c=running_mean(a.temperature_c, b.temperature_c, count),
        throttle=tuple(dict.fromkeys(a.throttle + b.throttle)),
        clocks_mhz=(),
    )
    return replace(before, measurement=found)


def _whole(measurement: Measurement, number: int) -> ProcessTime:
    """A measurement of one process as its part of several."""
    rounds = len(measurement.blocks)
    return ProcessTime(number, rounds, measurement.median_s, measurement.sm_clock_mhz)


def with_ratios(result: Result, group: Sequence[Result], fewest: int = 1) -> Result:
    """The result with its speed-ups over the others of its comparison (see `Result`), of those that
    took turns with it in `fewest` processes or more; it keeps what it has of the others.
    """
    speedup, vs_backend, own = dict(result.speedup), dict(result.vs_backend), result.measurement
    for other in group:
        taken = other.measurement
        if other is result or not taken or not own or len(_together(taken, own)) < fewest:
            continue
        ratio = ratio_of_processes(taken, own, own.timer_resolution_s)
        assert ratio
        if other.case.precision_name == result.case.precision_name:
            vs_backend[other.case.backend] = ratio
        elif is_library(other.case):
            speedup[other.case.precision_name] = ratio
    return replace(result, speedup=speedup, vs_backend=vs_backend)
