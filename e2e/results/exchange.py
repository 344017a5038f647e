"""What the exchange of gradients between ranks costs a step."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from microbench.results.types import Amount, AtLeastOne, Count, Interval

STRAGGLES = 0.05  # a rank that needs so much longer than the median of the others is named


@dataclass(frozen=True)
class AllReduce:
    """An all-reduce of `bytes` a rank with nothing beside it: `alone_s` seconds."""

    bytes: AtLeastOne
    alone_s: Amount


@dataclass(frozen=True)
class BucketCopies:
    """The copies of `count` gradients, of `bytes` in all, into their buckets and back.

    They take `all_s` seconds on the device with nothing beside them, and as many copies of one
    element each take `least_s`.
    """

    count: AtLeastOne
    bytes: AtLeastOne
    all_s: Amount
    least_s: Amount


@dataclass(frozen=True)
class Exchange:
    """Gradients of one step over `ranks`; times are seconds per step, `bytes` what a rank sends in.

    `local_s` is the step without the exchange, of the slowest rank; `alone_s` the all-reduce of the
    same buckets with nothing beside it. `exposed_s` is what the exchange adds to the step: the
    difference of two timings, below 0 where noise is larger. `rank_local_s` is the step without
    exchange of each rank. Of one rank all but `bytes` and `rank_local_s` is 0.

    `buckets` are the bytes that are reduced at once, in their order; `copies` is what surrounds
    them; one rank has no copies. Older files lack them, or have a `curve` of all-reduces by size.
    """

    ranks: AtLeastOne
    bytes: Count
    local_s: Amount
    alone_s: Amount
    exposed_s: float
    exposed_ci95_s: Interval | None = None
    rank_local_s: tuple[Amount, ...] = ()
    buckets: tuple[AtLeastOne, ...] = ()
    curve: tuple[AllReduce, ...] = ()
    copies: BucketCopies | None = None

    @property
    def copies_s(self) -> float:
        """Seconds of a step for the copies; 0 where they were not timed."""
        return self.copies.all_s if self.copies else 0.0

    @property
    def overlapped(self) -> float | None:
        """The share of the all-reduce that hides behind the backward pass, 0 to 1: what the
        exchange adds beside the copies does not. None for one rank.
        """
        if self.ranks == 1 or self.alone_s <= 0:
            return None
        return min(1.0, max(0.0, 1 - (self.exposed_s - self.copies_s) / self.alone_s))

    @property
    def longest_wait_s(self) -> float:
        """The longest in which nothing but the exchange can run on rank 0: the all-reduce, and the
        wait for the slowest rank.
        """
        first_s = self.rank_local_s[0] if self.rank_local_s else self.local_s
        return self.alone_s + max(0.0, self.local_s - first_s)

    @property
    def bus_bytes_per_s(self) -> float | None:
        """Bytes per second over each link of a ring: 2 (ranks - 1) / ranks x bytes / alone."""
        if self.ranks == 1 or self.alone_s <= 0:
            return None
        return 2 * (self.ranks - 1) / self.ranks * self.bytes / self.alone_s

    @property
    def stragglers(self) -> dict[int, float]:
        """Ranks that need more than STRAGGLES longer than the median of the others, and how much.

        A ratio, 1.2 for a fifth longer. Of two ranks that is the other one.
        """
        slow: dict[int, float] = {}
        for rank, own_s in enumerate(self.rank_local_s):
            others = [s for r, s in enumerate(self.rank_local_s) if r != rank]
            if others and own_s > (1 + STRAGGLES) * median(others):
                slow[rank] = own_s / median(others)
        return slow
