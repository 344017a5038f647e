"""How fast the host launches, read while trainings are timed or operations are measured."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Protocol

from microbench.timing.stats import median

SpeedReading = tuple[float, float]  # (when, in seconds; slowdown)


class HostSpeed(Protocol):
    """Measures the host's slowdown: how many times longer than the reference a launch takes.

    1.25 means 25 % slower; see `e2e.prediction.host_speed`.
    """

    @property
    def look_s(self) -> float:
        """Seconds that a look at the speed takes; 0 if it never changes."""
        ...

    def slowdown(self) -> float:
        """The slowdown now, a ratio. RuntimeError if the device has no memory for its step."""
        ...

    def forget(self) -> None:
        """Release what it holds on the device."""
        ...


class SpeedBetween:
    """The slowdown of stretches: each reading ends one stretch and begins the next."""

    def __init__(self, host_speed: HostSpeed) -> None:
        self._host_speed = host_speed
        self._last = host_speed.slowdown()

    def ends(self) -> float:
        """End a stretch; returns its slowdown, the mean of the readings at its two ends."""
        before, self._last = self._last, self._host_speed.slowdown()
        return fmean((before, self._last))


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


@dataclass(frozen=True)
class SlowdownRange:
    """Median, 5th and 95th percentile of the slowdown (a ratio)."""

    middle: float
    low: float
    high: float


def slowdown_range(seen: Iterable[SpeedReading]) -> SlowdownRange:
    """Median, 5th and 95th percentile, each second of readings weighted alike; 1 for none."""
    seen = list(seen)
    if not seen:
        return SlowdownRange(1.0, 1.0, 1.0)
    looks = Counter(int(at_s) for at_s, _ in seen)
    weighted = sorted((slowdown, 1 / looks[int(at_s)]) for at_s, slowdown in seen)
    ends = list(accumulate(weight for _, weight in weighted))
    low, middle, high = (
        weighted[min(bisect_left(ends, share * ends[-1]), len(weighted) - 1)][0]
        for share in (0.05, 0.5, 0.95)
    )
    return SlowdownRange(middle, low, high)
