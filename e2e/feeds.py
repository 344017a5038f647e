"""The feeds of arms: arms that load alike take turns with one loader, and their waiting is timed.

Each with workers of its own would slow the others: those would go on loading in the others' turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from e2e.datasets import Data
from e2e.loaders.backend import LoaderFeed
from e2e.loaders.pinned import CachedFeed
from e2e.loaders.shared import Following
from microbench.train_results import TrainCase


def feed_of(data: Data, case: TrainCase, device: torch.device, seed: int) -> LoaderFeed:
    """The case's batches in its layout, from the first one of the seed's order."""

    def feed(loader: str, workers: int) -> LoaderFeed:
        return data.feed(
            case.batch, device, seed, channels_last=case.layout == "nhwc", loader=loader,
            workers=workers, cold=case.cold,
        )  # fmt: skip

    loaded = feed(case.loader, case.workers)
    return CachedFeed(feed("pinned", 0), loaded) if case.cached else loaded


class TimedFeed:
    """A feed, and how long the host waited for it since `forget`."""

    def __init__(self, feed: LoaderFeed, close: Callable[[], None]) -> None:
        self._feed, self._close = feed, close
        self.waited_s, self.fetched = 0.0, 0

    @property
    def wait_s(self) -> float:
        """Mean seconds of waiting for a batch."""
        return self.waited_s / self.fetched if self.fetched else 0.0

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that work for it by now."""
        return self._feed.pids

    def fetch(self) -> object:
        """The next batch, as far as the host must wait for it."""
        start_s = time.perf_counter()
        batch = self._feed.fetch()
        self.waited_s += time.perf_counter() - start_s
        self.fetched += 1
        return batch

    def place(self, fetched: object) -> tuple[Tensor, Tensor]:
        """What `fetch` gave, as a batch on the device."""
        return self._feed.place(fetched)

    def skip_ready(self) -> None:
        """Throw away what lay ready, that is what was loaded in the turns of other arms."""
        for _ in range(self._feed.ahead):
            self._feed.fetch()

    def forget(self) -> None:
        """Count the waiting anew."""
        self.waited_s, self.fetched = 0.0, 0

    def close(self) -> None:
        """Leave the loader; the last arm that does ends it."""
        self._close()


class _Way(NamedTuple):
    """How a loader loads: arms that agree in this share it."""

    loader: str
    workers: int
    cached: bool
    cold: bool
    batch: int


@dataclass
class _Shared:
    feed: LoaderFeed
    users: int = 0


class Feeds:
    """Feeds for the arms on one device, from one kind of data."""

    def __init__(self, data: Data, device: torch.device, seed: int) -> None:
        self._data, self._device, self._seed = data, device, seed
        self._shared: dict[_Way, _Shared] = {}

    def open(self, case: TrainCase) -> TimedFeed:
        """A feed for an arm. UserError for a loader that cannot do this."""
        own = feed_of(self._data, case, self._device, self._seed)
        if not case.fed:
            return TimedFeed(own, own.close)
        way = _Way(case.loader, case.workers, case.cached, case.cold, case.batch)
        shared = self._shared.setdefault(way, _Shared(own))
        shared.users += 1

        def leave() -> None:
            shared.users -= 1
            if not shared.users:
                self._shared.pop(way).feed.close()

        return TimedFeed(own if own is shared.feed else Following(own, shared.feed), leave)
