"""How much the pace of the host varied over what was seen of it. Pure functions."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

Seen = tuple[float, float]  # when, in seconds, and the pace


@dataclass(frozen=True)
class Spread:
    """How many times longer than at pace 1 the host took: the middle, and where 90 % lay."""

    middle: float
    low: float
    high: float


def spread(seen: Iterable[Seen]) -> Spread:
    """Median, 5th and 95th percentile of paces, where every second counts the same, however often
    it was looked at; 1 where nothing was seen.
    """
    seen = list(seen)
    if not seen:
        return Spread(1.0, 1.0, 1.0)
    looks = Counter(int(at_s) for at_s, _ in seen)
    weighted = sorted((pace, 1 / looks[int(at_s)]) for at_s, pace in seen)
    ends = list(accumulate(weight for _, weight in weighted))
    low, middle, high = (
        weighted[min(bisect_left(ends, share * ends[-1]), len(weighted) - 1)][0]
        for share in (0.05, 0.5, 0.95)
    )
    return Spread(middle, low, high)
