"""The timers. Each takes a block of samples of one launch.

A sample is seconds per launch. Device timers hold the stream behind a gate until all launches of
the block are queued, so CPU time is not measured.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from microbench.errors import UserError
from microbench.timing.stats import median

Launch = Callable[[], object]


# Steps in which event readings come on an H200: in place of a measured one where all readings of a
# card are equal, and of training steps, which are thousands of times as long.
EVENT_TICK_S = 32e-9
LEAST_TICK_S = 1e-9  # of `tick_of`: less apart is how readings are rounded
NEAR_TICK, MOST_STEPS = 0.05, 0.9  # of a tick, off a multiple; of the steps
CPU_TICK_S = 1e-9
WARM_REPEATS = 10  # launches between one pair of events when the cache stays warm
# Queued behind the samples and thrown away: a sample with no command queued behind it reads half a
# microsecond less, so the last of a batch would differ from the others.
TRAILING = 6
GATE_TRIES = 3  # a busy CPU may launch later than the gate stays closed
SAMPLES_BEHIND_GATE = 24  # of about 10 commands each: well under the 1,024 that a stream queues
MOST_QUEUED, BESIDE = 960, 8  # commands behind the gate; of a sample, beside its launches
CPU_FLUSH_FACTOR = 2

# The duration of an empty kernel: the hardware's own launch and drain, which belong to a kernel's
# duration; what events read beyond is overhead. By card, as Nsight Compute reports it
# (gpu__time_duration); other cards ask torch's profiler, which sees less of it by PROFILER_LESS_S
# (0.58 us on an H200), and where it sees no kernel the H200's stands for them.
EMPTY_KERNELS_S = {"NVIDIA H200": 1.41e-6}
EMPTY_KERNEL_S = EMPTY_KERNELS_S["NVIDIA H200"]
PROFILER_LESS_S = 0.83e-6
PROFILED_LAUNCHES = 21
CALIBRATION_SAMPLES = 101


@dataclass(frozen=True, eq=False)
class Renewed:
    """A launch, and what renews its operands before each sample, outside of its time.

    Between the launches of one warm sample nothing is renewed: it would be in its time. Not
    `gated`, each sample begins on an idle device, so that the CPU's time is in it. A launch queues
    about `queued` kernels.
    """

    launch: Launch
    renew: Launch
    gated: bool = True
    queued: int = 1

    def __call__(self) -> object:
        """Launch."""
        return self.launch()


def _parts(launch: Launch) -> tuple[Launch, Launch]:
    """(what to do before a sample, the launch)."""
    return (launch.renew, launch.launch) if isinstance(launch, Renewed) else (lambda: None, launch)


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

    def __init__(self, device_index: int, l2_bytes: int, sm_count: int, l2: str) -> None:
        from microbench.timing.instruments import Instruments

        self.l2, self.flush_s, self.overhead_s = l2, 0.0, 0.0
        self.instruments = Instruments(device_index, l2_bytes, sm_count)
        # Flushes differ from each other by many ticks, so that their readings show one.
        flushes_s = self._readings(self.instruments.flush_l2, SAMPLES_BEHIND_GATE)
        self.resolution_s = tick_of(flushes_s)
        if l2 == "cold":
            self.flush_s = median(flushes_s)
            empty_s = median(self._readings(self.instruments.launch_empty, CALIBRATION_SAMPLES))
            self.overhead_s = max(0.0, empty_s - empty_kernel_s(device_index))

    def _readings(self, launch: Launch, samples: int) -> tuple[float, ...]:
        """What a pair of events reads of an instrument of ours, launched once before."""
        self.run(launch, 1)
        return self._samples(launch, samples, 1, False).times_s

    def block(self, launch: Launch, samples: int) -> Block:
        """Samples in seconds per launch.

        RuntimeError when the launch waits for the GPU, which the closed gate holds up, or sets a
        part of the L2 aside for itself.
        """
        cold = self.l2 == "cold"
        if isinstance(launch, Renewed) and not launch.gated:
            return self._launched(launch, samples, cold)
        return self._samples(launch, samples, 1 if cold else WARM_REPEATS, cold)

    def _launched(self, launch: Renewed, samples: int, flush: bool) -> Block:
        """Samples of one launch each, begun on an idle device."""
        import torch

        times: list[float] = []
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.instruments.stamp_clock(0)
        for _ in range(samples):
            launch.renew()
            if flush:
                self.instruments.flush_l2()
            torch.cuda.synchronize()
            start.record()
            launch.launch()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e-3)
        self.instruments.stamp_clock(1)
        torch.cuda.synchronize()
        return Block(tuple(times), self.instruments.clock_mhz())

    def _samples(self, launch: Launch, samples: int, repeats: int, flush: bool) -> Block:
        """Samples of `repeats` launches, in gated batches of at most SAMPLES_BEHIND_GATE."""
        times: list[float] = []
        clocks: list[float] = []
        commands = BESIDE + repeats * (launch.queued if isinstance(launch, Renewed) else 1)
        most = max(1, min(SAMPLES_BEHIND_GATE, MOST_QUEUED // commands))
        while len(times) < samples:
            wanted = min(most, samples - len(times))
            got, clock = self._batch(launch, wanted, repeats, flush)
            times += got
            clocks += [clock] if clock else []
        return Block(tuple(times), sum(clocks) / len(clocks) if clocks else None)

    def _batch(
        self, launch: Launch, samples: int, repeats: int, flush: bool
    ) -> tuple[list[float], float | None]:
        self.instruments.release_l2()
        for _ in range(GATE_TRIES):
            pairs = self._behind_gate(launch, samples, repeats, flush)
            if self.instruments.release_l2():
                raise RuntimeError("the launch sets a part of the L2 aside for its own data")
            if not self.instruments.gate_expired:
                times = [start.elapsed_time(end) * 1e-3 / repeats for start, end in pairs]
                return times, self.instruments.clock_mhz()
        raise RuntimeError(
            "the launch waits for the device, or the CPU was too busy to launch in time: "
            "CPU time cannot be kept out of the timing"
        )

    def _behind_gate(
        self, launch: Launch, samples: int, repeats: int, flush: bool
    ) -> list[tuple[Any, Any]]:
        """(start, end) events of each sample, all of which ran after the last was queued."""
        import torch

        renew, launch = _parts(launch)
        pairs = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(samples + TRAILING)
        ]
        self.instruments.close_gate()
        try:
            self.instruments.stamp_clock(0)
            for number, (start, end) in enumerate(pairs[:samples]):
                if repeats == 1 or number == 0:  # more would not fit behind the gate
                    renew()
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
        renew, launch = _parts(launch)
        replay = Renewed(self._graph(launch).replay, renew)
        replayed = self._samples(replay, samples, 1, False)
        return Block(tuple(t / WARM_REPEATS for t in replayed.times_s), replayed.sm_clock_mhz)

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
        renew, launch = _parts(launch)
        for _ in range(samples):
            renew()
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


def tick_of(readings_s: Sequence[float]) -> float:
    """The tick of a timer, in seconds: the longest step between two readings, in order of size, of
    which nearly all steps are multiples. EVENT_TICK_S where there is none.
    """
    steps_s = [high - low for low, high in itertools.pairwise(sorted(readings_s))]
    steps_s = [step_s for step_s in steps_s if step_s > LEAST_TICK_S]
    for tick_s in sorted(steps_s, reverse=True):
        whole = sum(abs(s / tick_s - max(1, round(s / tick_s))) < NEAR_TICK for s in steps_s)
        if whole >= MOST_STEPS * len(steps_s):
            return tick_s
    return EVENT_TICK_S


@cache
def empty_kernel_s(device_index: int) -> float:
    """The duration of an empty kernel on this GPU, in seconds: what is known of its model, or else
    the median of torch's profiler, asked once a process, and PROFILER_LESS_S; the H200's where that
    sees no kernel.
    """
    import torch
    from torch.autograd.profiler import profile

    from microbench.timing.instruments import Instruments

    known = EMPTY_KERNELS_S.get(torch.cuda.get_device_name(device_index))
    if known is not None:
        return known
    instruments = Instruments(device_index, 16, 1)  # nothing is flushed
    try:
        with profile(use_cpu=False, use_device="cuda", use_kineto=True) as profiler:
            for _ in range(PROFILED_LAUNCHES):
                instruments.launch_empty()
            torch.cuda.synchronize()
    except RuntimeError:  # a driver that does not allow profiling
        return EMPTY_KERNEL_S
    events: Any = getattr(profiler, "function_events", None) or ()
    seen_s: list[float] = [
        event.time_range.elapsed_us() * 1e-6 for event in events if event.name == "empty"
    ]
    return median(seen_s) + PROFILER_LESS_S if seen_s else EMPTY_KERNEL_S


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
