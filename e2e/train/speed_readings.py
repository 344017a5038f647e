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
    """Measures how many times longer than the reference the host takes to launch (1.25: 25 %
    slower; see `e2e.predict.host_speed`).

    A look takes `look_s` seconds when nothing else is done meanwhile.
    """

    @property
    def look_s(self) -> float:
        """0 if the speed never changes."""
        ...

    def slowdown(self) -> float:
        """At this moment."""
        ...

    def forget(self) -> None:
        """Let go of what it holds on the device."""
        ...


class SpeedBetween:
    """The slowdown between readings: each reading ends one stretch and begins the next."""

    def __init__(self, host_speed: HostSpeed) -> None:
        self._host_speed = host_speed
        self._last = host_speed.slowdown()

    def ends(self) -> float:
        """The slowdown of the stretch that ends now: the mean of its two ends."""
        before, self._last = self._last, self._host_speed.slowdown()
        return fmean((before, self._last))


class SpeedByTurn:
    """The slowdown while several arms take turns: read where a turn ends and the next begins.

    If the device has no room for the small step there are no readings; the turns go on.
    """

    def __init__(self, host_speed: HostSpeed) -> None:
        self._host_speed: HostSpeed | None = host_speed
        self._readings: list[tuple[str, float]] = []

    def begin(self, turn: str) -> None:
        """The turn of this one begins, that of another ends."""
        if self._host_speed is None:
            return
        try:
            self._readings.append((turn, self._host_speed.slowdown()))
        except RuntimeError:
            self._host_speed = None
            self._readings.clear()

    def of(self, turn: str) -> float | None:
        """The median over its turns, of each the mean of both ends; None when it had none."""
        pairs = pairwise(self._readings)
        means = [fmean((first, last)) for (name, first), (_, last) in pairs if name == turn]
        return median(means) if means else None


@dataclass(frozen=True)
class SlowdownRange:
    """How many times longer than the reference the host took: median, 5th, 95th percentile."""

    middle: float
    low: float
    high: float


def slowdown_range(seen: Iterable[SpeedReading]) -> SlowdownRange:
    """Median, 5th and 95th percentile of slowdowns, where every second counts the same, however
    often it was looked at; 1 where nothing was seen.
    """
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
