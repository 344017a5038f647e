"""How fast the host launches, read while trainings are timed or operations are measured."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean
from typing import Protocol

from microbench.timing.stats import median


class HostPace(Protocol):
    """Tells how many times longer than at pace 1 the host takes.

    It is looked at for `look_s` seconds where nothing else is done meanwhile.
    """

    @property
    def look_s(self) -> float:
        """0 where it never changes."""
        ...

    def now(self) -> float:
        """At this moment."""
        ...

    def forget(self) -> None:
        """Let go of what it holds on the device."""
        ...


class Between:
    """The pace between readings: what ends one stretch begins the next."""

    def __init__(self, pace: HostPace) -> None:
        self._pace = pace
        self._last = pace.now()

    def ends(self) -> float:
        """The pace of the stretch that ends now: the mean of its two ends."""
        before, self._last = self._last, self._pace.now()
        return fmean((before, self._last))


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
