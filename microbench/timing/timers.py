"""The timers. Each takes a block of samples of one launch.

A sample is seconds per launch. Device timers hold the stream behind a gate until all launches of
the block are queued, so CPU time is not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from microbench.errors import UserError
from microbench.timing.stats import median

Launch = Callable[[], object]


EVENT_TICK_S = 32e-9  # steps in which event readings come on an H200 (seen: multiples of 32 ns)
CPU_TICK_S = 1e-9
WARM_REPEATS = 10  # launches between one pair of events when the cache stays warm
# Queued behind the samples and thrown away: a sample with no command queued behind it reads half a
# microsecond less, so the last of a batch would differ from the others.
TRAILING = 6
GATE_TRIES = 3  # a busy CPU may launch later than the gate stays closed
SAMPLES_BEHIND_GATE = 24  # of about 10 commands each: well under the 1,024 that a stream queues
CPU_FLUSH_FACTOR = 2

# What Nsight Compute reports (gpu__time_duration) for an empty kernel on an H200: the hardware's
# own launch and drain, which belong to a kernel's duration; what events read beyond is overhead.
EMPTY_KERNEL_S = 1.41e-6
CALIBRATION_SAMPLES = 101


@dataclass(frozen=True)
class Block:
    """Consecutive samples, in seconds per launch, and their mean SM clock in MHz if known."""

    times_s: tuple[float, ...]
    sm_clock_mhz: float | None = None


class Timer(Protocol):
    """Takes samples of a launch, in seconds. `l2` is "cold" or "warm".

    `resolution_s` is one tick, `flush_s` what emptying the cache costs before each sample, and
    `overhead_s` what a raw sample has in it beyond the launch.
    """

    name: str
    l2: str
    resolution_s: float
    flush_s: float  # seconds
    overhead_s: float  # seconds

    def block(self, launch: Launch, samples: int) -> Block:
        """`samples` samples, with the overhead in them.

        RuntimeError when the launch waits for the GPU; what the launch raises is passed on.
        """
        ...

    def run(self, launch: Launch, times: int) -> None:
        """Launch `times` times back to back, untimed, and wait for the device: a warm-up."""

    def forget(self) -> None:
        """Free what was kept for the launches of the last comparison (captured graphs)."""


class GatedEvents:
    """CUDA events around each launch, behind a gate, so that CPU time is not measured.

    Cold: the L2 is flushed before each launch, and each launch has its own pair of events. Warm:
    one pair around WARM_REPEATS launches back to back, so a sample includes the gap between
    launches. results/nvidia-h200/timer-vs-ncu.json compares cold samples with Nsight Compute's.
    """

    name = "events"
    resolution_s = EVENT_TICK_S

    def __init__(self, device_index: int, l2_bytes: int, sm_count: int, l2: str) -> None:
        from microbench.timing.instruments import Instruments

        self.l2 = l2
        self.flush_s = 0.0
        self.instruments = Instruments(device_index, l2_bytes, sm_count)
        self.overhead_s = 0.0
        if l2 == "cold":
            self.flush_s = self._time_flush()
            self.overhead_s = self._calibrate()

    def _calibrate(self) -> float:
        """What a pair of events reads beyond the duration of an empty kernel."""
        self.run(self.instruments.launch_empty, 1)
        readings: list[float] = []
        while len(readings) < CALIBRATION_SAMPLES:
            readings += self._batch(self.instruments.launch_empty, SAMPLES_BEHIND_GATE, 1, False)[0]
        return max(0.0, median(readings) - EMPTY_KERNEL_S)

    def _time_flush(self) -> float:
        self.run(self.instruments.flush_l2, 1)
        start = time.perf_counter()
        self.run(self.instruments.flush_l2, 10)
        return (time.perf_counter() - start) / 10

    def block(self, launch: Launch, samples: int) -> Block:
        """Samples in seconds per launch, in gated batches of at most SAMPLES_BEHIND_GATE.

        RuntimeError when the launch waits for the GPU, which the closed gate holds up.
        """
        times: list[float] = []
        clocks: list[float] = []
        cold = self.l2 == "cold"
        while len(times) < samples:
            wanted = min(SAMPLES_BEHIND_GATE, samples - len(times))
            got, clock = self._batch(launch, wanted, 1 if cold else WARM_REPEATS, cold)
            times += got
            clocks += [clock] if clock else []
        return Block(tuple(times), sum(clocks) / len(clocks) if clocks else None)

    def _batch(
        self, launch: Launch, samples: int, repeats: int, flush: bool
    ) -> tuple[list[float], float | None]:
        for _ in range(GATE_TRIES):
            pairs = self._behind_gate(launch, samples, repeats, flush)
            if not self.instruments.gate_expired:
                times = [start.elapsed_time(end) * 1e-3 / repeats for start, end in pairs]
                return times, self.instruments.clock_mhz()
        raise RuntimeError(
            "the launch waits for the device, so CPU time cannot be kept out of the timing"
        )

    def _behind_gate(
        self, launch: Launch, samples: int, repeats: int, flush: bool
    ) -> list[tuple[Any, Any]]:
        """(start, end) events of each sample, all of which ran after the last was queued."""
        import torch

        pairs = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(samples + TRAILING)
        ]
        self.instruments.close_gate()
        try:
            self.instruments.stamp_clock(0)
            for start, end in pairs[:samples]:
                if flush:
                    self.instruments.flush_l2()
                start.record()
                for _ in range(repeats):
                    launch()
                end.record()
            self.instruments.stamp_clock(1)
            for start, end in pairs[samples:]:
                start.record()
                self.instruments.launch_empty()
                end.record()
        finally:
            self.instruments.open_gate()
        torch.cuda.synchronize()
        return pairs[:samples]

    def run(self, launch: Launch, times: int) -> None:
        """Launch `times` times back to back and synchronise."""
        import torch

        for _ in range(times):
            launch()
        torch.cuda.synchronize()

    def forget(self) -> None:
        """Nothing is kept."""


class GraphReplay(GatedEvents):
    """WARM_REPEATS launches in a CUDA graph, replayed: no launch gaps, warm cache."""

    name = "graph"

    def __init__(self, device_index: int, l2_bytes: int, sm_count: int) -> None:
        super().__init__(device_index, l2_bytes, sm_count, "warm")
        self._graphs: dict[int, tuple[Launch, Any]] = {}

    def block(self, launch: Launch, samples: int) -> Block:
        """Samples in seconds per launch: each is one replay, behind the gate, over WARM_REPEATS.

        RuntimeError, from torch, for a launch that cannot be captured.
        """
        replay = self._graph(launch).replay
        times: list[float] = []
        clock: float | None = None
        while len(times) < samples:
            wanted = min(SAMPLES_BEHIND_GATE, samples - len(times))
            got, clock = self._batch(replay, wanted, 1, False)
            times += got
        return Block(tuple(t / WARM_REPEATS for t in times), clock)

    def _graph(self, launch: Launch) -> Any:
        import torch

        if id(launch) not in self._graphs:
            launch()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(WARM_REPEATS):
                    launch()
            self._graphs[id(launch)] = (launch, graph)
        return self._graphs[id(launch)][1]

    def forget(self) -> None:
        """Free the graphs."""
        self._graphs.clear()


class CpuClock:
    """The CPU's monotonic clock around each call.

    Cold: CPU_FLUSH_FACTOR times `llc_bytes`, the last-level cache, is overwritten before each call.
    """

    name = "clock"
    resolution_s = CPU_TICK_S
    overhead_s = 0.0  # reading the clock costs tens of nanoseconds: nothing is subtracted

    def __init__(self, llc_bytes: int, l2: str) -> None:
        import torch

        self.l2 = l2
        self._scratch = torch.ones(CPU_FLUSH_FACTOR * llc_bytes // 4, dtype=torch.int32)
        start = time.perf_counter()
        self._scratch.add_(1)
        self.flush_s = time.perf_counter() - start if l2 == "cold" else 0.0

    def block(self, launch: Launch, samples: int) -> Block:
        """`samples` samples in seconds per call, one call after another."""
        times: list[float] = []
        for _ in range(samples):
            if self.l2 == "cold":
                self._scratch.add_(1)
            start = time.perf_counter()
            launch()
            times.append(time.perf_counter() - start)
        return Block(tuple(times))

    def run(self, launch: Launch, times: int) -> None:
        """Call `times` times, one after another."""
        for _ in range(times):
            launch()

    def forget(self) -> None:
        """Nothing is kept."""


def make_timer(name: str, l2: str, kind: str, index: int, l2_bytes: int, sm_count: int) -> Timer:
    """The timer called `name` (one of TIMERS) for a device of `kind` "cuda" or "cpu".

    `l2` is one of L2_STATES; `l2_bytes` is the GPU's L2, or the CPU's last-level cache, in bytes.
    UserError for a timer that the device or the cache state does not allow.
    """
    if kind == "cpu":
        if name not in ("auto", "clock"):
            raise UserError(f"--timer {name} needs a CUDA device; use --timer clock on a CPU")
        return CpuClock(l2_bytes, l2)
    if name == "clock":
        raise UserError("--timer clock is for CPUs; use --timer events or graph on a CUDA device")
    if name == "graph":
        if l2 == "cold":
            raise UserError("--timer graph replays with a warm cache; add --l2 warm")
        return GraphReplay(index, l2_bytes, sm_count)
    return GatedEvents(index, l2_bytes, sm_count, l2)
