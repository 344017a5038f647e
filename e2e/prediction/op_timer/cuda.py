"""Times calls one by one on a GPU, and measures the memory that they take.

A round launches every requested call at least as often as the step does, so that power and clocks
are as in the step. Calls of the backward pass are launched from the thread that the step uses.
Calls that the host cannot launch as fast as the device runs them are timed behind a gate, as many
at a time as a stream can queue.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import torch

from e2e.prediction.op_timer.kernel_profile import kernels_in, profiled
from e2e.prediction.op_timer.launch_times import (
    HostTimedCall,
    Within,
    backward_thread,
    by_thread,
    forward_thread,
    host_pass,
    host_times,
)
from e2e.prediction.op_timer.op_timer import MeasuredTime, OpTime, PlacedCall, is_steady, or_why
from e2e.training.speed_readings import HostSpeed
from e2e.training.step_timer import union_s
from kernels.case import Target
from microbench.device.profiler import KernelTime, is_conversion
from microbench.timing.stats import median
from microbench.timing.timers import TRAILING

LAUNCHES = 16  # of a call in a row, its time on the device to be known roughly
SLOW_S, SLOW_LAUNCHES = 1e-3, 4  # of one this long
PASSES = 25  # over all calls for the host
# A call this long is launched faster than it runs, even when the host is slow.
LONG_S = 80e-6
BLOCK_S = 300e-6  # launches of a call between two events take at least this long, and
LEAST_SHORT = 10  # of a short one at least this many
GATED_COMMANDS = 700  # kernels, copies and events behind one gate: a stream queues about 1,024
ROUNDS, SETTLING_ROUNDS = 5, 2
SETTLE_S = 0.3  # the clock needs this long to settle to the power of the step
MAX_SETTLING_ROUNDS = 40
EMPTIES, EMPTY_BLOCKS = 10, 21  # to measure the overhead of a pair of events
MOST_BETWEEN_S = 2e-6  # kernels that are launched ahead are no further apart

T = TypeVar("T")
_Pair = tuple[Any, Any]  # events around a block


@dataclass(eq=False)
class _TriedCall:
    """A call that was launched alone, with its rough times before the rounds, in seconds.

    `launch_s` is the host's for a launch now, `host_s` at the reference speed and in the step's
    order.
    """

    counted: PlacedCall
    launch_s: float
    rough_s: float
    scratch_bytes: int
    waits: bool
    host_s: float = 0.0
    kernels: int = 1
    busy_s: float | None = None
    conversion_share: float = 0.0

    @property
    def ready(self) -> HostTimedCall:
        """The call for a pass over a step's calls."""
        return HostTimedCall(self.counted, self.rough_s)

    @property
    def launch_as_in_step(self) -> Callable[[], object]:
        """The same with arguments as cold as in the step, which costs the host a little more."""
        return self.counted.replay.launch_cold

    @property
    def gated(self) -> bool:
        """Whether the host might not launch it as fast as the device runs it."""
        return not self.waits and self.rough_s <= max(LONG_S, 2 * self.launch_s)

    @property
    def launches(self) -> int:
        """The number of launches between two events."""
        least = LEAST_SHORT if self.gated else 1
        wanted = max(self.counted.count, least, math.ceil(BLOCK_S / max(self.rough_s, 1e-6)))
        return min(wanted, max(1, (GATED_COMMANDS - 2) // self.kernels)) if self.gated else wanted

    @property
    def commands(self) -> int:
        """The number of commands that a block of them queues."""
        return self.launches * self.kernels + 2


def silent(part: str) -> None:
    """Do nothing when a part begins."""


class CudaStopwatch:
    """Times calls by CUDA events."""

    others_matter = True
    _doing: Callable[[str], object] = staticmethod(silent)

    def __init__(
        self, target: Target, host_speed: HostSpeed, doing: Callable[[str], object] = silent
    ) -> None:
        """`doing` is called with the name of each part of a measurement as it begins."""
        from microbench.timing.instruments import Instruments

        # Nothing is flushed: a step's calls find the cache as the one before left it.
        self._instruments = Instruments(target.index, 16, target.sm_count)
        self._instruments.launch_empty()  # loading it may wait for the device, which a gate holds
        torch.cuda.synchronize()
        self._host_speed, self._doing = host_speed, doing
        self._threads = (forward_thread, backward_thread(torch.device(target.torch_device)))

    def times(
        self, calls: Sequence[PlacedCall], among: Sequence[PlacedCall] = ()
    ) -> list[MeasuredTime | str]:
        """As `Stopwatch.times`: ROUNDS rounds after the clock settled, host times from passes."""
        if not calls:
            return []
        self._doing("launching its operations for the first time")
        tried = self._tried(calls)
        met = _that_launch(tried)
        if met:
            met += _that_launch(self._tried(among))
        self._doing("timing the CPU's part of its operations")
        taken_s = host_times([one.ready for one in met], self._threads, self._host_speed, PASSES)
        for one, host_s in zip(met, taken_s, strict=True):
            one.host_s = host_s
        taken = iter(self._in_rounds([one for one in tried if not isinstance(one, str)]))
        return [one if isinstance(one, str) else next(taken) for one in tried]

    def passes(self, calls: Sequence[PlacedCall]) -> Callable[[], float]:
        """As `Stopwatch.passes`; the host's clock alone."""
        some = [one.ready for one in _that_launch(self._tried(calls))]
        return lambda: math.fsum(host_pass(some, self._threads))

    def once(self, run: Callable[[], T], *, waits: bool) -> tuple[T, OpTime | None]:
        """Run it once behind a gate, so that launching is not in the device's time.

        A call that `waits` is timed by the host's clock, all of it as device time. The time is None
        when the gate expired: the call waited.
        """
        out: list[T] = []
        with _Memory() as memory:
            if waits:
                host_s, device_s = 0.0, _waited(lambda: out.append(run()))
            else:
                host_s, device_s = self.behind_gate(lambda: out.append(run()), 1)
        if not waits and self.gate_expired:
            return out[0], None
        gpu_s = device_s if waits else max(0.0, device_s - self._overhead_s)
        return out[0], OpTime(gpu_s, host_s, memory.scratch_bytes, waits=waits)

    def kernels_in(
        self, step: Callable[[Callable[[str | None], None]], None]
    ) -> Mapping[str, list[list[KernelTime]]]:
        """As `Stopwatch.kernels_in`, from the profiler."""
        return kernels_in(step, self._instruments.launch_empty)

    def _tried(self, calls: Sequence[PlacedCall]) -> list[_TriedCall | str]:
        """Each call after its first launch, in the thread that the step uses."""
        return [
            self._threads[one.first_backward](partial(or_why, self._meet, one)) for one in calls
        ]

    def _by_thread(self, met: Sequence[_TriedCall]) -> Iterator[tuple[Within, list[_TriedCall]]]:
        """Each thread and the calls that it launches."""
        return by_thread(sorted(met, key=_is_backward), _is_backward, self._threads)

    def _in_rounds(self, met: Sequence[_TriedCall]) -> list[MeasuredTime]:
        if not met:
            return []
        self._doing("profiling its operations")
        self._profile_kernels(met)
        self._doing("timing its operations")
        self._settle(met)
        rounds = [self._round(met) for _ in range(ROUNDS)]
        overhead_s = self._event_overhead()
        return [_taken(one, blocks, overhead_s) for one, *blocks in zip(met, *rounds, strict=True)]

    # ------------------------------------------------------------ alone

    def _meet(self, counted: PlacedCall) -> _TriedCall:
        """The first launches: they search algorithms, then show memory and times, roughly."""
        launch = counted.replay.launch
        launch()
        kept: list[object] = []
        with _Memory() as memory:
            once_s = _waited(lambda: kept.append(launch()))
        kept.clear()
        counted.replay.restore()
        launch_s, rough_s, waits = self._roughly(launch, once_s)
        return _TriedCall(counted, launch_s, rough_s, memory.scratch_bytes, waits)

    def _roughly(self, launch: Callable[[], object], once_s: float) -> tuple[float, float, bool]:
        """(host seconds, device seconds, whether it waits for the device) of a launch."""
        launches = SLOW_LAUNCHES if once_s > SLOW_S else LAUNCHES
        for together in dict.fromkeys((launches, 1)):  # the queue may be too short for all of them
            launch_s, device_s = self.behind_gate(launch, together)
            if not self.gate_expired:
                return launch_s, device_s, False
        return 0.0, once_s, True

    def behind_gate(self, launch: Callable[[], object], launches: int) -> tuple[float, float]:
        """(host, device) seconds per launch; the device starts when all `launches` are queued."""
        start, end = _pair()
        with self._gate():
            start.record()
            began_s = time.perf_counter()
            for _ in range(launches):
                launch()
            host_s = time.perf_counter() - began_s
            end.record()
        return host_s / launches, start.elapsed_time(end) * 1e-3 / launches

    @property
    def gate_expired(self) -> bool:
        """Whether the last gate opened before everything behind it was launched."""
        return self._instruments.gate_expired

    @contextmanager
    def _gate(self) -> Generator[None]:
        """Work launched inside starts when all of it is launched; waits for it at the end."""
        torch.cuda.synchronize()
        self._instruments.close_gate()
        try:
            yield
            for _ in range(TRAILING):
                self._instruments.launch_empty()
        finally:
            self._instruments.open_gate()
            torch.cuda.synchronize()

    @cached_property
    def _overhead_s(self) -> float:
        """Seconds that a pair of events reads beyond one launch, at any clock."""
        return self._event_overhead()

    def _event_overhead(self) -> float:
        """Seconds that a block reads beyond its launches, from blocks of empty kernels."""
        one_s, many_s = (self._empty_block(count) for count in (1, 1 + EMPTIES))
        return max(0.0, one_s - (many_s - one_s) / EMPTIES)

    def _empty_block(self, launches: int) -> float:
        pairs = [_pair() for _ in range(EMPTY_BLOCKS)]
        with self._gate():
            for start, end in pairs:
                start.record()
                for _ in range(launches):
                    self._instruments.launch_empty()
                end.record()
        return median([_seconds(pair) for pair in pairs])

    # ------------------------------------------------------------ in rounds

    def _settle(self, met: Sequence[_TriedCall]) -> None:
        """Rounds until the clock is the step's; short calls alone leave the card cool."""
        if all(one.gated for one in met):
            return
        began_s = time.perf_counter()
        for number in range(MAX_SETTLING_ROUNDS):
            if number >= SETTLING_ROUNDS and time.perf_counter() - began_s > SETTLE_S:
                return
            self._round(met)

    def _round(self, met: Sequence[_TriedCall]) -> list[float]:
        """Seconds of each call's block."""
        pairs = {one: _pair() for one in met}
        for within, some in self._by_thread(met):
            within(partial(self._launch_blocks, some, pairs))
        return [_seconds(pairs[one]) for one in met]

    def _launch_blocks(self, met: Sequence[_TriedCall], pairs: Mapping[_TriedCall, _Pair]) -> None:
        """Blocks that run longer than their launches take, then the others behind gates."""
        self._launch([one for one in met if not one.gated], pairs)
        torch.cuda.synchronize()
        for batch in _batches(met):
            self._behind_gates(batch, pairs)
        for one in met:
            one.counted.replay.restore()
        torch.cuda.synchronize()

    def _behind_gates(self, batch: Sequence[_TriedCall], pairs: Mapping[_TriedCall, _Pair]) -> None:
        """Behind one gate, or behind several when it opens before all is launched."""
        with self._gate():
            self._launch(batch, pairs)
        if self.gate_expired and len(batch) > 1:
            for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                self._behind_gates(half, pairs)

    def _launch(self, met: Sequence[_TriedCall], pairs: Mapping[_TriedCall, _Pair]) -> None:
        if not met:
            return
        met[0].counted.replay.launch()  # the first block must not begin on an idle device
        for one in met:
            start, end = pairs[one]
            launch = one.launch_as_in_step
            start.record()
            for _ in range(one.launches):
                launch()
            end.record()

    # ------------------------------------------------------------ by kernel

    def _profile_kernels(self, met: Sequence[_TriedCall]) -> None:
        """Note of each call its kernels, their time, and how much of it only changes a layout."""
        rows = list(self._by_thread(met))
        for one, own in profiled(rows, self._instruments.launch_empty, self._gate).items():
            one.kernels = max(1, len(own[0]))
            one.busy_s = median([union_s(kernels) for kernels in own])
            one.conversion_share = _conversion_share(own[-1])


class _Memory:
    """Measures `scratch_bytes`: memory allocated inside beyond what is kept."""

    scratch_bytes = 0

    def __enter__(self) -> _Memory:
        torch.cuda.synchronize()
        self._before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return self

    def __exit__(self, *_: object) -> None:
        after, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        self.scratch_bytes = peak - max(self._before, after)


def _waited(launch: Callable[[], object]) -> float:
    """Seconds until the device is done with it."""
    began_s = time.perf_counter()
    launch()
    torch.cuda.synchronize()
    return time.perf_counter() - began_s


def _taken(one: _TriedCall, blocks: Sequence[float], overhead_s: float) -> MeasuredTime:
    gpu_s = max(0.0, median(blocks) - overhead_s) / one.launches
    # A profile is taken at the clock of a card that has rested.
    least_s = gpu_s - one.kernels * MOST_BETWEEN_S
    busy_s = None if one.busy_s is None else min(max(one.busy_s, least_s), gpu_s)
    conversion_s = one.conversion_share * gpu_s
    found = OpTime(
        gpu_s, one.host_s, one.scratch_bytes, conversion_s, busy_s, one.kernels, one.waits
    )
    return MeasuredTime(found, is_steady(blocks, "cuda"))


def _that_launch(tried: Sequence[_TriedCall | str]) -> list[_TriedCall]:
    """The calls that work and do not wait for the device."""
    return [one for one in tried if not isinstance(one, str) and not one.waits]


def _is_backward(one: _TriedCall) -> bool:
    return one.counted.first_backward


def _batches(met: Sequence[_TriedCall]) -> Iterator[list[_TriedCall]]:
    """Calls for the gate in order, as many at a time as it holds."""
    batch: list[_TriedCall] = []
    commands = 0
    for one in met:
        if not one.gated:
            continue
        if batch and commands + one.commands > GATED_COMMANDS:
            yield batch
            batch, commands = [], 0
        batch.append(one)
        commands += one.commands
    if batch:
        yield batch


def _pair() -> _Pair:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    return start, end


def _seconds(pair: _Pair) -> float:
    start, end = pair
    return start.elapsed_time(end) * 1e-3


def _conversion_share(kernels: Sequence[KernelTime]) -> float:
    total_s = sum(kernel.seconds for kernel in kernels)
    changing_s = sum(kernel.seconds for kernel in kernels if is_conversion(kernel.name))
    return changing_s / total_s if total_s else 0.0
