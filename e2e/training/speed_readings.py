"""How fast the host launches, read while trainings are timed."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean
from typing import Protocol

from microbench.timing.stats import median


class HostSpeed(Protocol):
    """Measures the host's slowdown: how many times longer than the reference a launch takes.

    1.25 means 25 % slower; see `e2e.training.host_speed`.
    """

    def slowdown(self) -> float:
        """The slowdown now, a ratio. RuntimeError if the device has no memory for its step."""
        ...

    def forget(self) -> None:
        """Release what it holds on the device."""
        ...


class SpeedByTurn:
    """The slowdown of interleaved arms, read where a turn ends and the next begins.

    If the device has no memory for the small step there are no readings; the turns go on.
    """

    def __init__(self, host_speed: HostSpeed) -> None:
        self._host_speed: HostSpeed | None = host_speed
        self._readings: list[tuple[str, float]] = []

    def begin(self, turn: str) -> None:
        """Begin the turn of this arm and end that of another."""
        if self._host_speed is None:
            return
        try:
            self._readings.append((turn, self._host_speed.slowdown()))
        except RuntimeError:
            self._host_speed = None
            self._readings.clear()

    def of(self, turn: str) -> float | None:
        """The median over its turns of the mean of both ends, a ratio; None without readings."""
        pairs = pairwise(self._readings)
        means = [fmean((first, last)) for (name, first), (_, last) in pairs if name == turn]
        return median(means) if means else None
