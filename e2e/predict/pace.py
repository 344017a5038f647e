"""How fast the host launches just now: by the step of a small network that is always the same.

The processor of a shared or virtual machine does the same work in twice the time a second later.
Host times are therefore kept as at one pace, and told for the pace of the moment.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Protocol

import torch

from e2e.predict.small_networks import paced_network, small_step
from e2e.recipes import switch_tf32
from microbench.stats import median

RECIPE = "amp"
REFERENCE_S = 2e-3  # the small step takes this long at pace 1
LOOK_S = 2.0  # of steps in a row: host speeds last for tenths of seconds to seconds
WARM_STEPS, STEPS = 3, 3


Seen = tuple[float, float]  # when, in seconds, and the pace


@dataclass(frozen=True)
class Spread:
    """How many times longer than at pace 1 the host took: the middle, and where 90 % lay."""

    middle: float
    low: float
    high: float


class HostPace(Protocol):
    """Tells how many times longer than at pace 1 the host takes."""

    def now(self) -> float:
        """At this moment."""
        ...

    def look(self) -> None:
        """Ask for it for some time."""
        ...

    def seen(self) -> Spread:
        """Over all that was asked for so far."""
        ...

    def forget(self) -> None:
        """Let go of what it holds on the device."""
        ...


class Looks:
    """The pace while several take turns: seen where a turn ends and the next begins.

    A device without room for the small step is no reason to end what takes the turns.
    """

    def __init__(self, pace: HostPace) -> None:
        self._pace: HostPace | None = pace
        self._seen: list[tuple[str, float]] = []

    def begin(self, turn: str) -> None:
        """The turn of this one begins, that of another ends."""
        if self._pace is None:
            return
        try:
            self._seen.append((turn, self._pace.now()))
        except RuntimeError:
            self._pace = None
            self._seen.clear()

    def of(self, turn: str) -> float | None:
        """The median over its turns, of each the mean of both ends; None when it had none."""
        pairs = pairwise(self._seen)
        means = [fmean((first, last)) for (name, first), (_, last) in pairs if name == turn]
        return median(means) if means else None


class Steady:
    """Where the host is the device, the calls' own times have its pace in them."""

    def now(self) -> float:
        """Always 1."""
        return 1.0

    def look(self) -> None:
        """There is nothing to see."""

    def seen(self) -> Spread:
        """Always 1."""
        return Spread(1.0, 1.0, 1.0)

    def forget(self) -> None:
        """It holds nothing."""


class SmallStepPace:
    """By launching a training step that a GPU is done with sooner than the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._step: Callable[[], None] | None = None
        self._warm_with: bool | None = None
        self._seen: list[Seen] = []

    def now(self) -> float:
        """The median of STEPS, after one that brings their code back to the processor."""
        return self._taken(self._warm_step())

    def look(self) -> None:
        """As often as LOOK_S allows, and twice at least."""
        step = self._warm_step()
        until_s = time.perf_counter() + LOOK_S
        self._taken(step)
        self._taken(step)
        while time.perf_counter() < until_s:
            self._taken(step)

    def seen(self) -> Spread:
        """Since it was made; it has been asked."""
        return spread(self._seen)

    def forget(self) -> None:
        """The small network is made anew when it is needed again."""
        self._step = self._warm_with = None

    def _taken(self, step: Callable[[], None]) -> float:
        self._seconds(step)
        taken = median([self._seconds(step) for _ in range(STEPS)]) / REFERENCE_S
        self._seen.append((time.perf_counter(), taken))
        return taken

    def _seconds(self, step: Callable[[], None]) -> float:
        torch.cuda.synchronize(self._device)
        began_s = time.perf_counter()
        step()
        return time.perf_counter() - began_s

    def _warm_step(self) -> Callable[[], None]:
        """The step, after some where cuDNN would search its algorithms again: it does by switch.

        It is always searched for, and the switches are then as they were.
        """
        tf32, search = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
        if self._step is None:
            self._step = small_step(paced_network(), RECIPE, self._device)
            switch_tf32(tf32)
        if self._warm_with is not tf32:
            self._warm_with = tf32
            torch.backends.cudnn.benchmark = True
            for _ in range(WARM_STEPS):
                self._step()
        torch.backends.cudnn.benchmark = search
        return self._step


def spread(seen: Sequence[Seen]) -> Spread:
    """Median, 5th and 95th percentile of paces, where every second counts the same, however often
    it was looked at.
    """
    looks = Counter(int(at_s) for at_s, _ in seen)
    weighted = sorted((pace, 1 / looks[int(at_s)]) for at_s, pace in seen)
    ends = list(accumulate(weight for _, weight in weighted))
    low, middle, high = (
        weighted[min(bisect_left(ends, share * ends[-1]), len(weighted) - 1)][0]
        for share in (0.05, 0.5, 0.95)
    )
    return Spread(middle, low, high)


def pace_of(device: torch.device) -> HostPace:
    """Of this process's launches on the device."""
    return SmallStepPace(device) if device.type == "cuda" else Steady()
