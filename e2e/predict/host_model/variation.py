"""How much the speed of the host varied over its readings. Pure functions."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

SpeedReading = tuple[float, float]  # (when, in seconds; slowdown)


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
