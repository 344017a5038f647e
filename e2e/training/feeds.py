"""The feeds of variants. Those that load alike share one loader; the host's waits are timed.

Separate workers would slow the other variants, since they go on loading while others are timed.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from e2e.case import TrainCase
from e2e.data.loaders.cpus import cpu_seconds
from e2e.data.types import Data, Loader
from e2e.results.loader_types import LoadCase, load_case

READY_S = 0.02  # a batch that takes longer to come was not ready
# Workers that took less than this share of a core for so long rest; they are waited for no longer
# than MAX_REFILL_S.
RESTING_S, RESTING_SHARE, MAX_REFILL_S = 0.2, 0.1, 10.0


class TimedFeed(Loader):
    """A variant's loader, which others may share, and how long the host has waited for it."""

    def __init__(self, loader: Loader, close: Callable[[], None]) -> None:
        self._loader, self._close = loader, close
        self.waited_s = 0.0  # so far
        self._closed = False

    def __next__(self) -> Any:
        """The next batch; seconds of waiting for it are counted. UserError as of `Loader`."""
        start_s = time.perf_counter()
        batch = next(self._loader)
        self.waited_s += time.perf_counter() - start_s
        return batch

    def to_device(self, batch: Any, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """The batch on the device, as of `Loader`."""
        return self._loader.to_device(batch, channels_last)

    def drop_prefetched(self) -> None:
        """Discard the batches that lie ready."""
        for _ in range(self._loader.queue_depth):
            start_s = time.perf_counter()
            next(self._loader)
            if time.perf_counter() - start_s > READY_S:
                break

    def wait_until_full(self) -> None:
        """Wait until the workers idle, at most MAX_REFILL_S seconds: their batches are ready.

        Judged by CPU time: workers that wait for a disk look idle.
        """
        if not self._loader.pids:
            return
        until_s = time.perf_counter() + MAX_REFILL_S
        took_s = RESTING_S
        while took_s > RESTING_SHARE * RESTING_S and time.perf_counter() < until_s:
            before_s = cpu_seconds(self._loader.pids)
            time.sleep(RESTING_S)
            took_s = cpu_seconds(self._loader.pids) - before_s

    def close(self) -> None:
        """Leave the loader; the last one to leave closes it."""
        if not self._closed:
            self._closed = True
            self._close()


class Feeds:
    """The loaders of the variants on one device, from one data set."""

    def __init__(self, data: Data, device: torch.device, seed: int) -> None:
        self._data, self._device, self._seed = data, device, seed
        # By how they load: a loader, once for each variant that it feeds.
        self._shared: defaultdict[LoadCase, list[Loader]] = defaultdict(list)

    def open(self, case: TrainCase) -> TimedFeed:
        """A feed for a variant. UserError for a loader that does not fit the data or the device."""
        users = self._shared[load_case(case)] if case.loads_data else []
        loader = users[0] if users else self._data.open(case, self._device, self._seed)
        users.append(loader)

        def leave() -> None:
            users.pop()
            if not users:
                loader.close()

        return TimedFeed(loader, leave)
