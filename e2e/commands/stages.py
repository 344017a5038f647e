"""Where the time of a run goes: its seconds by stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

START_UP, OPENING, EXPLAINING = "start-up", "network and data", "ledgers and causes"


class StageTimes:
    """Seconds of a run by stage; there is exactly one at each moment, from start-up on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._took_s: dict[str, float] = {}
        self._stage, self._since_s = START_UP, clock()

    def enter(self, stage: str) -> None:
        """A stage begins, and the one before ends; what follows a comma or a colon is detail."""
        name = stage.split(",")[0].split(":")[0].strip()
        now_s = self._clock()
        self._took_s[self._stage] = self._took_s.get(self._stage, 0.0) + now_s - self._since_s
        self._stage, self._since_s = name, now_s

    def so_far(self, before: Mapping[str, float]) -> dict[str, float]:
        """Seconds by stage up to now, in the order in which they began, added to those before."""
        self.enter(self._stage)
        names = dict.fromkeys((*before, *self._took_s))
        return {
            name: round(before.get(name, 0.0) + self._took_s.get(name, 0.0), 2) for name in names
        }
