"""Times training steps: blocks of them without a stop, their phases, and the host's launches.

A block is launched as a training loop launches it: the host runs ahead, and waits for the device
only before the first and after the last step.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch

from e2e.results.types import Phase
from microbench.device.profiler import KernelTime, is_communication
from microbench.timing.stats import median
from microbench.timing.timers import CPU_TICK_S, EVENT_TICK_S, Block, Launch

# Launched on a GPU before the first timed one, so that the device never starts from rest. A lead is
# in no number: neither in the steps' times, nor in the wall clock, nor in what was waited.
LEAD_STEPS = 1
BURSTS_LEAD = 3  # steps that come in bursts are led by one for every three that are timed
HOST_STEPS = 7
PHASE_STEPS = 8
PROFILE_STEPS = 5
RUN_AHEAD = 2


@dataclass(frozen=True)
class StepBlock(Block):
    """A block of steps, in seconds; see `e2e.results.types.StepTimes` for the three kinds of time.

    `waited_s` is how long the host waited for data in those steps; only `BurstTimer` notes it.
    `ranks_s` are the medians of all ranks, if there are several: the block is that of the slowest.
    """

    wall_times_s: tuple[float, ...] = ()
    wall_s: float = 0.0
    wall_steps: int = 0
    waited_s: float = 0.0
    ranks_s: tuple[float, ...] = ()


class CudaSteps:
    """Times steps on the GPU's clock, by one event after each.

    `resolution_s` is one tick.
    """

    resolution_s = EVENT_TICK_S

    def __init__(self, device_index: int, sm_count: int) -> None:
        from microbench.timing.instruments import Instruments

        # Of the instruments only the clock stamp is used: nothing is flushed, so no L2 to cover.
        self._instruments = Instruments(device_index, 16, sm_count)

    def block(self, launch: Launch, samples: int, lead: int = LEAD_STEPS) -> StepBlock:
        """Time `samples` consecutive steps, after a lead that fills the device's queue."""
        began, *events = (torch.cuda.Event(enable_timing=True) for _ in range(samples + 2))
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        began.record()
        for _ in range(lead):
            launch()
        self._instruments.stamp_clock(0)
        events[0].record()
        walls = [time.perf_counter()]
        for event in events[1:]:
            launch()
            event.record()
            walls.append(time.perf_counter())
        self._instruments.stamp_clock(1)
        torch.cuda.synchronize()
        walls[-1] = time.perf_counter()
        # The device was idle when both clocks began: the lead's end on its clock is that on both.
        wall_s = walls[-1] - began_s - began.elapsed_time(events[0]) * 1e-3
        return StepBlock(
            tuple(a.elapsed_time(b) * 1e-3 for a, b in itertools.pairwise(events)),
            self._instruments.clock_mhz(),
            _differences(walls),
            wall_s,
            samples,
        )

    def run(self, launch: Launch, times: int) -> None:
        """Run steps untimed, and wait for the device."""
        for _ in range(times):
            launch()
        torch.cuda.synchronize()


class CpuSteps:
    """Times steps by the monotonic clock, one after another."""

    resolution_s = CPU_TICK_S

    def block(self, launch: Launch, samples: int, lead: int = 0) -> StepBlock:
        """Time `samples` consecutive steps, after a lead."""
        self.run(launch, lead)
        walls = [time.perf_counter()]
        for _ in range(samples):
            launch()
            walls.append(time.perf_counter())
        times = _differences(walls)
        return StepBlock(times, None, times, walls[-1] - walls[0], samples)

    def run(self, launch: Launch, times: int) -> None:
        """Run steps untimed."""
        for _ in range(times):
            launch()


class BurstTimer:
    """Times steps whose batches come in bursts, one per worker.

    A block has a multiple of `workers` steps and one sample, their mean. A whole round of the
    workers leads it, or more: where batches have been discarded, the first round waits for all of
    them. No stop comes between, in which batches would gather. The host stays at most RUN_AHEAD
    steps ahead, as in a training that reads its loss now and then; else it would fetch all batches
    of a block at once and hold them in memory. `waited_s` returns the seconds waited for data so
    far. Without workers there is no round, and a short block may have no lead.
    """

    def __init__(self, timer: StepTimer, workers: int, waited_s: Callable[[], float]) -> None:
        self._timer, self._workers, self._waited_s = timer, workers, waited_s
        self._paced = isinstance(timer, CudaSteps)
        self.resolution_s = timer.resolution_s

    def block(self, launch: Launch, samples: int) -> StepBlock:
        """Time at least `samples` consecutive steps. Raises what fetching a batch raises."""
        steps, held_back = self._whole_rounds(samples), self._held_back(launch)
        lead = self._whole_rounds(max(self._workers, samples // BURSTS_LEAD))
        launched, before_s = 0, 0.0

        def noted() -> object:
            nonlocal launched, before_s
            if launched == lead:
                before_s = self._waited_s()
            launched += 1
            return held_back()

        block = self._timer.block(noted, steps, lead)
        waited_s = self._waited_s() - before_s
        return replace(block, times_s=(fmean(block.times_s),), waited_s=waited_s)

    def run(self, launch: Launch, times: int) -> None:
        """Run at least so many steps untimed."""
        self._timer.run(self._held_back(launch), self._whole_rounds(times))

    def _whole_rounds(self, steps: int) -> int:
        workers = max(1, self._workers)
        return math.ceil(steps / workers) * workers

    def _held_back(self, launch: Launch) -> Launch:
        """The launch, which first waits for the device where the host is too far ahead."""
        if not self._paced:
            return launch
        under_way: deque[Any] = deque()

        def paced() -> object:
            if len(under_way) == RUN_AHEAD:
                under_way.popleft().synchronize()
            launched = launch()
            end = torch.cuda.Event(blocking=True)  # sleeps: the core is the workers'
            end.record()
            under_way.append(end)
            return launched

        return paced


StepTimer = CudaSteps | CpuSteps


def host_time(launch: Launch, count: int = HOST_STEPS) -> float:
    """Median CPU seconds to launch one step on an idle device, over `count` steps."""
    times: list[float] = []
    for _ in range(count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        launch()
        times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return median(times)


def busy_in(
    kernels: Sequence[KernelTime], steps: int, exchange_s: float = 0.0
) -> tuple[float, int]:
    """(seconds in which a kernel or copy runs, their number) per step, of those of `steps` steps.

    Where only communication runs, a GPU may wait for a rank that the profiler slows: of that at
    most `exchange_s` seconds a step count, the longest that it can take in steps without the
    profiler. The median if all steps have the same number of kernels, as those of a graph: a step
    that lost the device to another process does not move it. Else the mean.
    """
    count, rest = divmod(len(kernels), steps)
    if rest:
        return _busy_s(kernels, steps * exchange_s) / steps, count
    parts = [kernels[i * count : (i + 1) * count] for i in range(steps)]
    return median([_busy_s(part, exchange_s) for part in parts]), count


def _busy_s(kernels: Sequence[KernelTime], exchange_s: float) -> float:
    computing_s = union_s([kernel for kernel in kernels if not is_communication(kernel.name)])
    return computing_s + min(union_s(kernels) - computing_s, exchange_s)


def union_s(kernels: Sequence[KernelTime]) -> float:
    """Seconds in which at least one of the kernels runs; streams may overlap."""
    total_s, end_s = 0.0, float("-inf")
    for kernel in sorted(kernels, key=lambda k: k.start_s):
        stop_s = kernel.start_s + kernel.seconds
        total_s += max(0.0, stop_s - max(kernel.start_s, end_s))
        end_s = max(end_s, stop_s)
    return total_s


def time_phases(
    step: Callable[[Callable[[str], None]], object], cuda: bool, steps: int
) -> tuple[Phase, ...]:
    """Mean seconds per step of each phase, in the order met, over `steps` steps without a
    synchronisation. A step calls what it is given with the name of each phase as it ends.

    CPU times include waiting while the device's launch queue is full.
    """
    ends: list[tuple[str, float, Any]] = []

    def mark(name: str) -> None:
        event = torch.cuda.Event(enable_timing=True) if cuda else None
        if event is not None:
            event.record()
        ends.append((name, time.perf_counter(), event))

    mark("start")
    for _ in range(steps):
        step(mark)
    if cuda:
        torch.cuda.synchronize()
    host_s, gpu_s = defaultdict[str, float](float), defaultdict[str, float](float)
    for (_, began_s, began), (name, ended_s, ended) in itertools.pairwise(ends):
        host_s[name] += ended_s - began_s
        if cuda:
            gpu_s[name] += began.elapsed_time(ended) * 1e-3
    return tuple(
        Phase(name, gpu_s[name] / steps if cuda else None, took_s / steps)
        for name, took_s in host_s.items()
    )


def _differences(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(b - a for a, b in itertools.pairwise(values))
