"""The feeds of arms. Arms that load alike share one loader; the host's waits are timed.

Separate workers would slow the other arms, since they go on loading while others are timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from e2e.case import TrainCase
from e2e.data.loaders.cpus import cpu_seconds
from e2e.data.loaders.device_copy import CachedFeed
from e2e.data.types import Data, LoaderFeed
from e2e.results.loader_types import LoadCase, load_case
from e2e.training.step_timer import Tally

READY_S = 0.02  # a batch that takes longer to come was not ready
# Workers that took less than this share of a core for so long rest; they are waited for no longer
# than MAX_REFILL_S.
RESTING_S, RESTING_SHARE, MAX_REFILL_S = 0.2, 0.1, 10.0


def feed_of(data: Data, case: TrainCase, device: torch.device, seed: int) -> LoaderFeed:
    """The case's batches in its layout, from the first one of the seed's order.

    UserError for a loader that does not fit the data or the device.
    """

    def feed(loader: str, workers: int) -> LoaderFeed:
        return data.feed(
            case.batch, device, seed, channels_last=case.layout == "nhwc", loader=loader,
            workers=workers, cold=case.cold, prefetch=case.prefetch,
        )  # fmt: skip

    loaded = feed(case.loader, case.workers)
    return CachedFeed(feed("pinned", 0), loaded) if case.cached else loaded


class TimedFeed:
    """A feed, and how long the host has waited for it.

    `busy` is the feed whose batches are discarded meanwhile, if the case has one. `own` only places
    batches; it never fetches, so it starts no workers.
    """

    def __init__(
        self,
        feed: LoaderFeed,
        close: Callable[[], None],
        busy: CachedFeed | None = None,
        own: LoaderFeed | None = None,
    ) -> None:
        self._feed, self._close, self._busy, self._own = feed, close, busy, own or feed
        self._waited_s = 0.0
        self._closed = False

    @property
    def tally(self) -> Tally:
        """Seconds waited so far, and when discarded batches came."""
        return Tally(self._waited_s, self._busy.came_s if self._busy else ())

    def start(self) -> None:
        """Start the loader whose batches are discarded, if the case has one."""
        if self._busy and not self._busy.came_s:  # another arm may have
            self._busy.start()

    def fetch(self) -> object:
        """The next batch; seconds of waiting for it are counted. UserError as of `Feed.fetch`."""
        start_s = time.perf_counter()
        batch = self._feed.fetch()
        self._waited_s += time.perf_counter() - start_s
        return batch

    def place(self, fetched: object) -> tuple[Tensor, Tensor]:
        """The fetched batch on the device, as of `Feed.place`."""
        return self._own.place(fetched)

    def skip_ready(self) -> None:
        """Discard the batches that were loaded while other arms were timed."""
        for _ in range(self._feed.ahead):
            start_s = time.perf_counter()
            self._feed.fetch()
            if time.perf_counter() - start_s > READY_S:
                break

    def refill(self) -> None:
        """Wait until the workers idle, at most MAX_REFILL_S seconds: their batches are ready.

        Judged by CPU time: workers that wait for a disk look idle. Workers whose batches are
        discarded never idle, and are not waited for.
        """
        if self._busy is not None or not self._feed.pids:
            return
        until_s = time.perf_counter() + MAX_REFILL_S
        took_s = RESTING_S
        while took_s > RESTING_SHARE * RESTING_S and time.perf_counter() < until_s:
            before_s = cpu_seconds(self._feed.pids)
            time.sleep(RESTING_S)
            took_s = cpu_seconds(self._feed.pids) - before_s

    def close(self) -> None:
        """Leave the loader; the last arm to leave closes it."""
        if not self._closed:
            self._closed = True
            self._close()


@dataclass
class _Shared:
    feed: LoaderFeed
    users: int = 0


class Feeds:
    """Feeds for the arms on one device, from one data set."""

    def __init__(self, data: Data, device: torch.device, seed: int) -> None:
        self._data, self._device, self._seed = data, device, seed
        self._shared: dict[tuple[LoadCase, bool], _Shared] = {}  # by how they load

    def open(self, case: TrainCase) -> TimedFeed:
        """A feed for an arm. UserError for a loader that does not fit the data or the device."""
        own = feed_of(self._data, case, self._device, self._seed)
        if not case.fed:
            return TimedFeed(own, own.close)
        way = (load_case(case), case.cached)
        shared = self._shared.setdefault(way, _Shared(own))
        shared.users += 1

        def leave() -> None:
            shared.users -= 1
            if not shared.users:
                self._shared.pop(way).feed.close()

        busy = shared.feed if isinstance(shared.feed, CachedFeed) else None
        return TimedFeed(shared.feed, leave, busy, own)
