"""How fast the host launches just now: by the step of a small network that is always the same.

The processor of a shared or virtual machine does the same work in twice the time a second later.
Host times are therefore kept as at one pace, and told for the pace of the moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from e2e.predict.host_model.calibration_models import paced_network, small_step
from e2e.predict.host_model.variation import Seen
from e2e.recipes import switch_tf32
from e2e.train.speed_readings import HostPace
from microbench.timing.stats import median

RECIPE = "amp"
REFERENCE_S = 2e-3  # the small step takes this long at pace 1
LOOK_S = 2.0  # of steps in a row: host speeds last for tenths of seconds to seconds
# After other work or a rest a step is up to 1.4 times as long; the seventh shows nothing of it.
WARM_STEPS, STEPS = 6, 3


class Noted:
    """A pace that remembers what it was whenever it was asked for."""

    def __init__(self, pace: HostPace) -> None:
        self._pace = pace
        self._seen: list[Seen] = []

    @property
    def look_s(self) -> float:
        """As of the pace itself."""
        return self._pace.look_s

    def now(self) -> float:
        """At this moment."""
        found = self._pace.now()
        self._seen.append((time.perf_counter(), found))
        return found

    def look(self) -> None:
        """As often as `look_s` allows, and twice at least."""
        until_s = time.perf_counter() + self.look_s
        self.now()
        self.now()
        while time.perf_counter() < until_s:
            self.now()

    def take(self) -> tuple[Seen, ...]:
        """What was seen since this was last asked."""
        seen, self._seen = tuple(self._seen), []
        return seen

    def forget(self) -> None:
        """What was seen is kept."""
        self._pace.forget()


class Steady:
    """Where the host is the device, the calls' own times have its pace in them."""

    look_s = 0.0

    def now(self) -> float:
        """Always 1."""
        return 1.0

    def forget(self) -> None:
        """It holds nothing."""


class SmallStepPace:
    """By launching a training step that a GPU is done with sooner than the host."""

    look_s = LOOK_S

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._step: Callable[[], None] | None = None
        self._searched: set[bool] = set()

    def now(self) -> float:
        """The median of STEPS, after WARM_STEPS: it must not depend on what was done before."""
        step = self._searched_step()
        for _ in range(WARM_STEPS):
            step()
        return median([self._seconds(step) for _ in range(STEPS)]) / REFERENCE_S

    def forget(self) -> None:
        """The small network is made anew when it is needed again."""
        self._step = None
        self._searched.clear()

    def _seconds(self, step: Callable[[], None]) -> float:
        torch.cuda.synchronize(self._device)
        began_s = time.perf_counter()
        step()
        return time.perf_counter() - began_s

    def _searched_step(self) -> Callable[[], None]:
        """The step, whose algorithms cuDNN has searched: with TF32 on and with it off, and also
        where the recipe that is measured has it not search. The switches are then as they were.
        """
        tf32, search = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
        if self._step is None:
            self._step = small_step(paced_network(), RECIPE, self._device)
            switch_tf32(tf32)
        if tf32 not in self._searched:
            torch.backends.cudnn.benchmark = True
            try:
                self._step()
            finally:
                torch.backends.cudnn.benchmark = search
            self._searched.add(tf32)
        return self._step


def pace_of(device: torch.device) -> HostPace:
    """Of this process's launches on the device."""
    return SmallStepPace(device) if device.type == "cuda" else Steady()
