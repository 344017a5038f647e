"""One result from what several processes measured of a case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernels import is_library
from microbench.results.types import Measurement, ProcessTime, Ratio, Result
from microbench.timing.processes import mean_interval
from microbench.timing.stats import ratio_interval


def merged(before: Sequence[Result], more: Sequence[Result], number: int) -> list[Result]:
    """The results of a comparison, with what process `number` measured of the same cases.

    Where the other process has no time for a case, that stays as it was. Ratios are of arms that
    took turns in one process: their mean over the processes.
    """
    again = {result.case.key: result for result in more}
    joined = [_joined(result, again.get(result.case.key), number) for result in before]
    return with_ratios_of_processes(joined)


def _joined(before: Result, more: Result | None, number: int) -> Result:
    a, b = before.measurement, more.measurement if more else None
    if a is None or b is None:
        return before
    processes = (*(a.processes or (_whole(a, 0),)), _whole(b, number))
    tick_s = max(a.timer_resolution_s, b.timer_resolution_s)
    centre, interval = mean_interval([process.median_s for process in processes], tick_s)
    share = 1 / len(processes)  # of the newest, in what is a mean over processes
    found = replace(
        a,
        times_s=a.times_s + b.times_s,
        blocks=a.blocks + b.blocks,
        median_s=centre,
        ci95_s=interval,
        processes=processes,
        sm_clock_mhz=_mean(a.sm_clock_mhz, b.sm_clock_mhz, share),
        power_w=_mean(a.power_w, b.power_w, share),
        energy_j=_mean(a.energy_j, b.energy_j, share),
        temperature_c=_mean(a.temperature_c, b.temperature_c, share),
        throttle=tuple(dict.fromkeys(a.throttle + b.throttle)),
    )
    return replace(before, measurement=found)


def _whole(measurement: Measurement, number: int) -> ProcessTime:
    """A measurement of one process as its part of several."""
    rounds = len(measurement.blocks)
    return ProcessTime(number, rounds, measurement.median_s, measurement.sm_clock_mhz)


def _mean(before: float | None, newest: float | None, share: float) -> float | None:
    if before is None or newest is None:
        return newest if before is None else before
    return (1 - share) * before + share * newest


def with_ratios_of_processes(results: Sequence[Result]) -> list[Result]:
    """Each result with its speed-ups over the others of its comparison (see `Result`)."""
    return [replace(result, **_ratios(result, results)) for result in results]


def _ratios(result: Result, group: Sequence[Result]) -> Mapping[str, Mapping[str, Ratio]]:
    speedup, vs_backend = dict(result.speedup), dict(result.vs_backend)
    for other in group:
        if other is result or not other.measurement or not result.measurement:
            continue
        ratio = _ratio(other.measurement, result.measurement)
        if ratio is None:
            continue
        if other.case.precision_name == result.case.precision_name:
            vs_backend[other.case.backend] = ratio
        elif is_library(other.case):
            speedup[other.case.precision_name] = ratio
    return {"speedup": speedup, "vs_backend": vs_backend}


def _ratio(other: Measurement, own: Measurement) -> Ratio | None:
    """Time of the other over the own, over the processes in which both took the same turns."""
    found: list[float] = []
    others = other.by_process
    for number, ours in own.by_process.items():
        theirs = others.get(number, [])
        if len(theirs) == len(ours):
            found.append(ratio_interval(theirs, ours)[0])
    if len(found) < 2:
        return None
    mean, interval = mean_interval(found)
    return Ratio(mean, interval)
