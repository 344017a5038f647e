"""Arms that take turns on the batches of one loader, so that only one has workers."""

from __future__ import annotations

from torch import Tensor

from e2e.data.loaders.backend import LoaderFeed


class Following:
    """A `LoaderFeed` that fetches what `leader` would, and places it as `own` does.

    `own` is never asked to fetch, so it starts no workers. Closing leaves the leader as it is.
    """

    def __init__(self, own: LoaderFeed, leader: LoaderFeed) -> None:
        self._own, self._leader = own, leader

    @property
    def ahead(self) -> int:
        """How many batches of the leader may be ready before anybody asks."""
        return self._leader.ahead

    @property
    def pids(self) -> tuple[int, ...]:
        """The leader's workers by now."""
        return self._leader.pids

    @property
    def idle_cpu_s(self) -> float:
        """Processor seconds that the leader's threads only waited for the device."""
        return self._leader.idle_cpu_s

    def fetch(self) -> object:
        """The leader's next batch."""
        return self._leader.fetch()

    def place(self, fetched: object) -> tuple[Tensor, Tensor]:
        """On the device, in the layout of `own`."""
        return self._own.place(fetched)

    def close(self) -> None:
        """Close `own`."""
        self._own.close()
