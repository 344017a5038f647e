"""What launching calls costs the host: in the step's order, in the step's threads, at pace 1.

A call that is launched again and again is in the processor's caches, and a host that is slow
because others use these would seem quick.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from statistics import fmean

import torch

from e2e.predict.pace import HostPace
from e2e.predict.replay import Counted
from e2e.predict.threads import Threads, by_thread
from microbench.stats import median

LEAST_PASSES, PASSING_S = 4, 1.0  # where passes take long
QUEUED_CALLS = 200  # launched before the device is waited for: a stream does not make the host wait


def host_times(
    calls: Sequence[Counted], threads: Threads, pace: HostPace, most: int
) -> list[float]:
    """Seconds of each call: the median over passes, `most` at most, the pace seen between them.

    A pass launches the calls as often as the step does, and in its order. None of them may wait for
    the device.
    """
    if not calls:
        return []
    order = in_order(calls)
    launches = [calls[i] for i in order]
    until_s = time.perf_counter() + PASSING_S
    passes: list[list[float]] = []
    before = pace.now()
    while len(passes) < most:
        if len(passes) >= LEAST_PASSES and time.perf_counter() > until_s:
            break
        seconds = [
            each_s
            for within, some in by_thread(launches, lambda one: one.backward, threads)
            for each_s in within(partial(_pass, some))
        ]
        after = pace.now()
        passes.append([each_s / fmean((before, after)) for each_s in seconds])
        before = after
    taken: list[list[float]] = [[] for _ in calls]
    for i, *times in zip(order, *passes, strict=True):
        taken[i].append(median(times))
    return [fmean(times) for times in taken]


def in_order(calls: Sequence[Counted]) -> list[int]:
    """Which of the calls is launched, launch by launch as the step has them."""
    return [i for _, i in sorted((place, i) for i, one in enumerate(calls) for place in one.places)]


def _pass(launches: Sequence[Counted]) -> list[float]:
    """Seconds of the host for each launch."""
    found: list[float] = []
    for i, one in enumerate(launches):
        if i % QUEUED_CALLS == 0:
            torch.cuda.synchronize()
        launch = one.replay.launch
        began_s = time.perf_counter()
        launch()
        found.append(time.perf_counter() - began_s)
    for one in dict.fromkeys(launches):
        one.replay.restore()
    torch.cuda.synchronize()
    return found
