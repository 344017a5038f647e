"""How fast the host launches just now: by the step of a small network that is always the same.

The processor of a shared or virtual machine does the same work in twice the time a second later.
Host times are therefore kept as at one pace, and told for the pace of the moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Protocol

import torch

from e2e.predict.small_networks import paced_network, small_step
from e2e.recipes import switch_tf32
from microbench.stats import median

RECIPE = "amp"
REFERENCE_S = 2e-3  # the small step takes this long at pace 1
LOOK_S = 2.0  # of steps in a row: host speeds last for tenths of seconds to seconds
WARM_STEPS, STEPS = 3, 3


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

    def look(self) -> Spread:
        """Over some time."""
        ...

    def forget(self) -> None:
        """Let go of what it holds on the device."""
        ...


class Steady:
    """Where the host is the device, the calls' own times have its pace in them."""

    def now(self) -> float:
        """Always 1."""
        return 1.0

    def look(self) -> Spread:
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

    def now(self) -> float:
        """The median of STEPS, after one that brings their code back to the processor."""
        step = self._warm_step()
        self._seconds(step)
        return median([self._seconds(step) for _ in range(STEPS)]) / REFERENCE_S

    def look(self) -> Spread:
        """As often as LOOK_S allows."""
        until_s = time.perf_counter() + LOOK_S
        found: list[float] = []
        while time.perf_counter() < until_s:
            found.append(self.now())
        return spread(found)

    def forget(self) -> None:
        """The small network is made anew when it is needed again."""
        self._step = self._warm_with = None

    def _seconds(self, step: Callable[[], None]) -> float:
        torch.cuda.synchronize(self._device)
        began_s = time.perf_counter()
        step()
        return time.perf_counter() - began_s

    def _warm_step(self) -> Callable[[], None]:
        """The step, after some where cuDNN would search its algorithms again: it does by switch.

        The switches stay as they are, though a learner sets them.
        """
        tf32 = torch.backends.cudnn.allow_tf32
        if self._step is None:
            self._step = small_step(paced_network(), RECIPE, self._device)
            switch_tf32(tf32)
        if self._warm_with is not tf32:
            self._warm_with = tf32
            for _ in range(WARM_STEPS):
                self._step()
        return self._step


def spread(found: Sequence[float]) -> Spread:
    """Median, 5th and 95th percentile of two values or more."""
    twentieths = quantiles(found, n=20, method="inclusive")
    return Spread(twentieths[9], twentieths[0], twentieths[-1])


def pace_of(device: torch.device) -> HostPace:
    """Of this process's launches on the device."""
    return SmallStepPace(device) if device.type == "cuda" else Steady()
