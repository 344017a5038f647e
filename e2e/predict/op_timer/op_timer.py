"""Times of calls launched alone: their types, and the timer for a CPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Protocol, TypeVar

import torch

from kernels.aten import Replay
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
    """One launch of a call alone: seconds of the device, seconds of the host at the
    reference speed (see
    `e2e.predict.host_speed`), bytes beside its results.

    `gpu_s` is from one launch to the next, gaps between its kernels included; `busy_s` of it a
    kernel runs, `conversion_s` one that only changes a layout. `kernels` counts them and copies.
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
    """A time, and whether it was steady enough to be kept for other runs."""

    time: OpTime
    steady: bool


@dataclass(frozen=True, eq=False)
class PlacedCall:
    """A call that can be launched, and where in the step it is: every launch of it has a place.

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
        """Whether the backward pass is where the step launches it first."""
        return min(self.places) in self.backward


def or_why(measure: Callable[[PlacedCall], T], counted: PlacedCall) -> T | str:
    """What is measured of a call, or, in words, why it cannot be launched."""
    try:
        return measure(counted)
    except torch.OutOfMemoryError:
        return TOO_LARGE
    except Exception as error:
        return one_line(error)


def is_steady(times: Sequence[float], kind: str) -> bool:
    low, middle, high = quantiles(times, n=4)
    return high - low <= MAX_SPREAD[kind] * middle


class Stopwatch(Protocol):
    """Takes the times of calls: one for each, in order; why there is none for one that raises."""

    others_matter: bool  # whether a call takes the host another time where others are launched

    def times(
        self, calls: Sequence[PlacedCall], among: Sequence[PlacedCall] = ()
    ) -> list[MeasuredTime | str]:
        """As exact as can be; the host launches them `among` others of their step."""
        ...

    def passes(self, calls: Sequence[PlacedCall]) -> Callable[[], float]:
        """Launches all of them once, as the step does, and returns the host's seconds,
        at every call. Those that raise, or wait for the device, are left out.
        """
        ...

    def once(self, run: Callable[[], T], *, waits: bool) -> tuple[T, OpTime | None]:
        """What running it once gives, and takes, the host's time as it is; the time is None if it
        waits for the device though `waits` is False.
        """
        ...

    def kernels_in(
        self, step: Callable[[Callable[[str | None], None]], None]
    ) -> Mapping[str, list[list[KernelTime]]]:
        """The kernels that ran after each mark that the step set, by its name; those after None are
        left out. Empty without a profile.
        """
        ...


class CpuStopwatch:
    """By the clock: a CPU runs a call before the host goes on, so all of it is the device's."""

    others_matter = False

    def times(
        self, calls: Sequence[PlacedCall], among: Sequence[PlacedCall] = ()
    ) -> list[MeasuredTime | str]:
        """The median of CPU_LAUNCHES after one to warm up."""
        return [or_why(self._time, counted) for counted in calls]

    def passes(self, calls: Sequence[PlacedCall]) -> Callable[[], float]:
        """Each is launched once, and counts as often as the step launches it."""
        fit = [one for one in calls if not isinstance(or_why(_timed, one), str)]
        return lambda: math.fsum(one.count * _timed(one) for one in fit)

    def once(self, run: Callable[[], T], *, waits: bool) -> tuple[T, OpTime | None]:
        """By one look at the clock."""
        began_s = time.perf_counter()
        out = run()
        return out, OpTime(time.perf_counter() - began_s, 0.0)

    def kernels_in(
        self, step: Callable[[Callable[[str | None], None]], None]
    ) -> Mapping[str, list[list[KernelTime]]]:
        """A CPU has none, and nothing is run."""
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
