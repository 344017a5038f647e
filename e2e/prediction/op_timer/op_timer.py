"""Times of calls launched alone: their types, and the timer for a CPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Protocol, TypeVar

import torch

from e2e.aten import Replay
from kernels.error_words import one_line
from microbench.device.profiler import KernelTime
from microbench.timing.stats import median

T = TypeVar("T")

CPU_LAUNCHES = 5
TOO_LARGE = "it alone needs more memory than there is"
# Quartiles of a call's rounds further apart than this share of the median: it is not kept on disk.
MAX_SPREAD = {"cuda": 0.05, "cpu": 0.3}


@dataclass(frozen=True)
class OpTime:
    """One launch of a call alone: seconds, the host's at the reference speed (see host_speed.py).

    `gpu_s` is from one launch to the next, with the gaps between its kernels; in `busy_s` of it a
    kernel runs, in `conversion_s` one that only changes a layout. `kernels` counts kernels and
    copies. `scratch_bytes` are allocated during the call, beside its results. `waits`: the host
    waits for the device.
    """

    gpu_s: float
    host_s: float
    scratch_bytes: int = 0
    conversion_s: float = 0.0
    busy_s: float | None = None
    kernels: int = 1
    waits: bool = False


@dataclass(frozen=True)
class MeasuredTime:
    """A time, and whether it was steady enough to be stored for other runs."""

    time: OpTime
    steady: bool


@dataclass(frozen=True, eq=False)
class PlacedCall:
    """A call that can be launched, and the places in the step of its launches.

    `backward` are those of its places that are in the backward pass, which has its own thread.
    """

    replay: Replay
    places: tuple[int, ...]
    backward: frozenset[int] = frozenset()

    @property
    def count(self) -> int:
        """How often the step launches it."""
        return len(self.places)

    @property
    def first_backward(self) -> bool:
        """Whether the step launches it first in the backward pass."""
        return min(self.places) in self.backward


def or_why(measure: Callable[[PlacedCall], T], counted: PlacedCall) -> T | str:
    """What `measure` returns for a call, or the reason, in one line, why it cannot be launched."""
    try:
        return measure(counted)
    except torch.OutOfMemoryError:
        return TOO_LARGE
    except Exception as error:
        return one_line(error)


def is_steady(times: Sequence[float], kind: str) -> bool:
    """Whether the times' interquartile range is at most MAX_SPREAD[kind] of their median."""
    low, middle, high = quantiles(times, n=4)
    return high - low <= MAX_SPREAD[kind] * middle


class Stopwatch(Protocol):
    """Times calls, in order; a string with the reason for each that raises."""

    others_matter: bool  # whether a call takes the host another time where others are launched

    def times(
        self, calls: Sequence[PlacedCall], among: Sequence[PlacedCall] = ()
    ) -> list[MeasuredTime | str]:
        """Time each call, the host's time with `among`, others of the step, in between."""
        ...

    def passes(self, calls: Sequence[PlacedCall]) -> Callable[[], float]:
        """A function that launches all of them as the step does and returns the host's seconds.

        Calls that raise, or wait for the device, are left out.
        """
        ...

    def once(self, run: Callable[[], T], *, waits: bool) -> tuple[T, OpTime | None]:
        """The result and the time of one run, the host's time not scaled to the reference speed.

        The time is None if it waits for the device though `waits` is False. Raises what `run`
        raises.
        """
        ...

    def kernels_in(
        self, step: Callable[[Callable[[str | None], None]], None]
    ) -> Mapping[str, list[list[KernelTime]]]:
        """The kernels after each mark that the step set, by the mark's name; None marks none.

        Empty where there is no profiler.
        """
        ...


class CpuStopwatch:
    """Times by the clock. A CPU runs a call before it returns: all time is the device's."""

    others_matter = False

    def times(
        self, calls: Sequence[PlacedCall], among: Sequence[PlacedCall] = ()
    ) -> list[MeasuredTime | str]:
        """The median of CPU_LAUNCHES launches after one to warm up; in seconds."""
        return [or_why(self._time, counted) for counted in calls]

    def passes(self, calls: Sequence[PlacedCall]) -> Callable[[], float]:
        """As `Stopwatch.passes`; each call runs once and its time is multiplied by its count."""
        fit = [one for one in calls if not isinstance(or_why(_timed, one), str)]
        return lambda: math.fsum(one.count * _timed(one) for one in fit)

    def once(self, run: Callable[[], T], *, waits: bool) -> tuple[T, OpTime | None]:
        """As `Stopwatch.once`, one reading of the clock. Raises what `run` raises."""
        began_s = time.perf_counter()
        out = run()
        return out, OpTime(time.perf_counter() - began_s, 0.0)

    def kernels_in(
        self, step: Callable[[Callable[[str | None], None]], None]
    ) -> Mapping[str, list[list[KernelTime]]]:
        """Empty, without running the step: a CPU has no kernels to profile."""
        return {}

    def _time(self, counted: PlacedCall) -> MeasuredTime:
        counted.replay.launch()
        times = [_timed(counted) for _ in range(CPU_LAUNCHES)]
        return MeasuredTime(OpTime(median(times), 0.0), is_steady(times, "cpu"))


def _timed(counted: PlacedCall) -> float:
    """Seconds of a launch on fresh content."""
    counted.replay.restore()
    start_s = time.perf_counter()
    counted.replay.launch()
    return time.perf_counter() - start_s
