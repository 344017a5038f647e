"""The host's current launch speed, measured by a step of one small network.

The CPU of a shared or virtual machine may take twice as long for the same work a second later. Host
times are therefore stored for a reference speed and scaled to the current one by the *slowdown*: a
ratio, 1.25 means that the host takes 25 % longer. Run files call it `host_pace`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from e2e.prediction.calibration import paced_network, small_step
from e2e.recipes import switch_tf32
from e2e.training.speed_readings import HostSpeed, SpeedReading
from microbench.timing.stats import median

RECIPE = "amp"
REFERENCE_S = 2e-3  # seconds of the small step at a slowdown of 1, by definition
LOOK_S = 2.0  # of steps in a row: host speeds last for tenths of seconds to seconds
# After other work or a rest a step is up to 1.4 times as long; the seventh shows nothing of it.
WARM_STEPS, STEPS = 6, 3


class RecordedSpeed:
    """A HostSpeed that records its readings."""

    def __init__(self, host_speed: HostSpeed) -> None:
        self._host_speed = host_speed
        self._readings: list[SpeedReading] = []

    @property
    def look_s(self) -> float:
        """Seconds, as of the HostSpeed that it wraps."""
        return self._host_speed.look_s

    def slowdown(self) -> float:
        """The slowdown now, a ratio; recorded. RuntimeError as of the HostSpeed that it wraps."""
        found = self._host_speed.slowdown()
        self._readings.append((time.perf_counter(), found))
        return found

    def look(self) -> None:
        """Take readings for `look_s` seconds, at least two."""
        until_s = time.perf_counter() + self.look_s
        self.slowdown()
        self.slowdown()
        while time.perf_counter() < until_s:
            self.slowdown()

    def take(self) -> tuple[SpeedReading, ...]:
        """The readings since the last call, each (seconds by the monotonic clock, slowdown)."""
        readings, self._readings = tuple(self._readings), []
        return readings

    def forget(self) -> None:
        """Release the device memory of the HostSpeed that it wraps; the readings are kept."""
        self._host_speed.forget()


class ConstantSpeed:
    """The speed of a CPU as the device: measured times of its calls already contain it."""

    look_s = 0.0

    def slowdown(self) -> float:
        """Always 1 (a ratio)."""
        return 1.0

    def forget(self) -> None:
        """Do nothing: it holds nothing on the device."""


class SmallStepSpeed:
    """Times the launch of a small training step that a GPU finishes sooner than the host."""

    look_s = LOOK_S

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._step: Callable[[], object] | None = None
        self._searched: set[bool] = set()

    def slowdown(self) -> float:
        """The slowdown now: the median of STEPS steps after WARM_STEPS, over REFERENCE_S."""
        step = self._searched_step()
        for _ in range(WARM_STEPS):
            step()
        return median([self._seconds(step) for _ in range(STEPS)]) / REFERENCE_S

    def forget(self) -> None:
        """Release the small network; it is built again when needed."""
        self._step = None
        self._searched.clear()

    def _seconds(self, step: Callable[[], object]) -> float:
        torch.cuda.synchronize(self._device)
        began_s = time.perf_counter()
        step()
        return time.perf_counter() - began_s

    def _searched_step(self) -> Callable[[], object]:
        """The step, after cuDNN has searched its algorithms for the current TF32 setting.

        They are searched even where the measured recipe turns that off; the switch is restored.
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


def host_speed_of(device: torch.device) -> HostSpeed:
    """How this process's launch speed for the device is measured; constant for a CPU."""
    return SmallStepSpeed(device) if device.type == "cuda" else ConstantSpeed()
