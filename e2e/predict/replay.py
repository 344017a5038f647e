"""Measures the calls of a step one by one: on the device, on the host, and the memory in between.

A round launches every distinct call as often as the step does, in the step's order, so that the
card draws the power, and runs at the clock, of the step. Short calls are timed behind a gate, many
at a time: the host cannot launch them as fast as the device runs them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import torch

from kernels.aten import Replay
from kernels.case import Target
from microbench.kernel_names import KernelTime, is_conversion, record
from microbench.layers.networks import one_line
from microbench.stats import median
from microbench.timing import TRAILING

HOST_LAUNCHES = 16  # of a call in a row, its host time taken: well under what a stream queues
HOST_TRIES = 3
# A call this long is launched faster than it runs, even when the host is slow.
LONG_S = 80e-6
BLOCK_S = 300e-6  # launches of a call between two events take at least this long, and
LEAST_SHORT = 10  # of a short one there are at least so many
GATED_LAUNCHES = 600  # behind one gate; the events add to them
ROUNDS, SETTLING_ROUNDS = 7, 2
SETTLE_S = 0.3  # the clock needs this long to settle to the power of the step
MAX_SETTLING_ROUNDS = 40
EMPTIES, EMPTY_BLOCKS = 10, 21  # to learn what a pair of events costs
MARK = "empty"  # the kernel between two calls in a profile
CPU_LAUNCHES = 3


@dataclass(frozen=True)
class OpTime:
    """One launch of a call alone: seconds of the device and of the host, bytes beside its results.

    `conversion_s` is the part of `gpu_s` in kernels that only change a layout.
    """

    gpu_s: float
    host_s: float
    scratch_bytes: int = 0
    conversion_s: float = 0.0


@dataclass(frozen=True)
class Counted:
    """A call that can be launched, how often the step launches it, and whether it is a product."""

    replay: Replay
    count: int
    product: bool = False


T = TypeVar("T")


def _or_why(measure: Callable[[Counted], T], counted: Counted) -> T | str:
    """What is measured of a call, or, in words, why it cannot be launched."""
    try:
        return measure(counted)
    except torch.OutOfMemoryError:
        return "it alone needs more memory than there is"
    except Exception as error:
        return one_line(error)


class Stopwatch(Protocol):
    """Takes the times of calls."""

    def times(self, calls: Sequence[Counted]) -> list[OpTime | str]:
        """One for each call, in order; why there is none for one that raises."""
        ...


class CpuStopwatch:
    """By the clock: a CPU runs a call before the host goes on, so all of it is the device's."""

    def times(self, calls: Sequence[Counted]) -> list[OpTime | str]:
        """The median of CPU_LAUNCHES after one to warm up."""
        return [_or_why(self._time, counted) for counted in calls]

    def _time(self, counted: Counted) -> OpTime:
        replay = counted.replay
        replay.launch()
        times: list[float] = []
        for _ in range(CPU_LAUNCHES):
            replay.restore()
            start_s = time.perf_counter()
            replay.launch()
            times.append(time.perf_counter() - start_s)
        return OpTime(median(times), 0.0)


@dataclass
class _Met:
    """A call that was launched alone: what is known of it before the rounds."""

    counted: Counted
    host_s: float
    rough_s: float
    scratch_bytes: int

    @property
    def long(self) -> bool:
        """Whether the host is sure to launch it faster than the device runs it."""
        return self.rough_s > max(LONG_S, 2 * self.host_s)

    @property
    def launches(self) -> int:
        """How many stand between two events."""
        least = 1 if self.long else LEAST_SHORT
        return max(self.counted.count, least, math.ceil(BLOCK_S / max(self.rough_s, 1e-6)))


class CudaStopwatch:
    """By device events."""

    def __init__(self, target: Target) -> None:
        from microbench.instruments import Instruments

        # Nothing is flushed: a step's calls find the cache as the one before left it.
        self._instruments = Instruments(target.index, 16, target.sm_count)

    def times(self, calls: Sequence[Counted]) -> list[OpTime | str]:
        """From ROUNDS rounds after the clock has settled."""
        tried = [_or_why(self._meet, counted) for counted in calls]
        times = iter(self._in_rounds([one for one in tried if not isinstance(one, str)]))
        return [one if isinstance(one, str) else next(times) for one in tried]

    def _in_rounds(self, met: Sequence[_Met]) -> list[OpTime]:
        self._settle(met)
        rounds = [self._round(met) for _ in range(ROUNDS)]
        overhead_s = self._event_overhead()
        shares = self._conversion_shares(met)
        found: list[OpTime] = []
        for one, share, *blocks in zip(met, shares, *rounds, strict=True):
            gpu_s = max(0.0, median(blocks) - overhead_s) / one.launches
            found.append(OpTime(gpu_s, one.host_s, one.scratch_bytes, share * gpu_s))
        return found

    # ------------------------------------------------------------ alone

    def _meet(self, counted: Counted) -> _Met:
        """The first launches: they search algorithms, then show memory, host time, rough time."""
        launch, device = counted.replay.launch, torch.cuda.current_device()
        launch()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        kept = launch()
        torch.cuda.synchronize()
        after, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
        del kept
        counted.replay.restore()
        tries = [self._gated(launch) for _ in range(HOST_TRIES)]
        host_s = median([host_s for host_s, _ in tries])
        return _Met(
            counted, host_s, median([gpu_s for _, gpu_s in tries]), peak - max(before, after)
        )

    def _gated(self, launch: Any) -> tuple[float, float]:
        """(host, device) seconds of a launch of HOST_LAUNCHES behind the gate."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with self._gate():
            start.record()
            began_s = time.perf_counter()
            for _ in range(HOST_LAUNCHES):
                launch()
            host_s = time.perf_counter() - began_s
            end.record()
        return host_s / HOST_LAUNCHES, start.elapsed_time(end) * 1e-3 / HOST_LAUNCHES

    @contextmanager
    def _gate(self) -> Iterator[None]:
        """What is launched inside runs after it has all been launched; waits for it at the end."""
        torch.cuda.synchronize()
        self._instruments.close_gate()
        try:
            yield
            for _ in range(TRAILING):
                self._instruments.launch_empty()
        finally:
            self._instruments.open_gate()
            torch.cuda.synchronize()

    def _event_overhead(self) -> float:
        """What a block reads beyond its launches: of one empty kernel, less one of many."""
        one_s, many_s = (self._empty_block(count) for count in (1, 1 + EMPTIES))
        return max(0.0, one_s - (many_s - one_s) / EMPTIES)

    def _empty_block(self, launches: int) -> float:
        pairs = [self._pair() for _ in range(EMPTY_BLOCKS)]
        with self._gate():
            for start, end in pairs:
                start.record()
                for _ in range(launches):
                    self._instruments.launch_empty()
                end.record()
        return median([start.elapsed_time(end) * 1e-3 for start, end in pairs])

    # ------------------------------------------------------------ in rounds

    def _settle(self, met: Sequence[_Met]) -> None:
        """Rounds until the clock is the step's; short calls alone leave the card cool."""
        if not any(one.long for one in met):
            return
        began_s = time.perf_counter()
        for number in range(MAX_SETTLING_ROUNDS):
            if number >= SETTLING_ROUNDS and time.perf_counter() - began_s > SETTLE_S:
                return
            self._round(met)

    def _round(self, met: Sequence[_Met]) -> list[float]:
        """Seconds of each call's block."""
        pairs = [self._pair() for _ in met]
        longs = [i for i, one in enumerate(met) if one.long]
        self._block(met, pairs, longs)
        torch.cuda.synchronize()
        for batch in self._batches(met):
            with self._gate():
                self._block(met, pairs, batch)
        for one in met:
            one.counted.replay.restore()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e-3 for start, end in pairs]

    def _block(self, met: Sequence[_Met], pairs: Sequence[Any], which: Sequence[int]) -> None:
        if not which:
            return
        met[which[0]].counted.replay.launch()  # the first block must not begin on an idle device
        for i in which:
            start, end = pairs[i]
            start.record()
            for _ in range(met[i].launches):
                met[i].counted.replay.launch()
            end.record()

    def _batches(self, met: Sequence[_Met]) -> Iterator[list[int]]:
        """Short calls in order, as many as one gate holds."""
        batch: list[int] = []
        launches = 0
        for i, one in enumerate(met):
            if one.long:
                continue
            if batch and launches + one.launches > GATED_LAUNCHES:
                yield batch
                batch, launches = [], 0
            batch.append(i)
            launches += one.launches
        if batch:
            yield batch

    def _pair(self) -> tuple[Any, Any]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        return start, end

    # ------------------------------------------------------------ by kernel

    def _conversion_shares(self, met: Sequence[_Met]) -> list[float]:
        """Of each call's kernels, the share of the time in those that only change a layout."""
        products = [i for i, one in enumerate(met) if one.counted.product]
        shares = [0.0] * len(met)
        if not products:
            return shares

        def launch_all() -> None:
            for i in products:
                self._instruments.launch_empty()
                met[i].counted.replay.launch()
            self._instruments.launch_empty()

        kernels = record(launch_all)
        marks = [i for i, kernel in enumerate(kernels) if kernel.name == MARK]
        if len(marks) != len(products) + 1:
            return shares
        for which, (first, last) in zip(products, pairwise(marks), strict=True):
            shares[which] = _conversion_share(kernels[first + 1 : last])
        return shares


def _conversion_share(kernels: Sequence[KernelTime]) -> float:
    total_s = sum(kernel.seconds for kernel in kernels)
    changing_s = sum(kernel.seconds for kernel in kernels if is_conversion(kernel.name))
    return changing_s / total_s if total_s else 0.0
