"""The feed of all back ends whose workers make batches of pixels."""

from __future__ import annotations

from torch import Tensor

from e2e.data.loaders.backend import Files, Source, Tell, Wanted
from e2e.data.loaders.device_copy import Placer
from e2e.data.loaders.samples import Batch
from e2e.data.loaders.worker_pool import Workers
from microbench.errors import UserError


class PixelFeed:
    """A `LoaderFeed` that waits for its workers' batch, copies it, and normalises on the device."""

    idle_cpu_s = 0.0

    def __init__(self, workers: Workers[Batch], source: Source, wanted: Wanted, tell: Tell) -> None:
        self._workers, self._source, self._tell = workers, source, tell
        self._place = Placer(wanted.device, wanted.normal, wanted.channels_last)
        self._open = True

    @property
    def ahead(self) -> int:
        """How many batches may be ready before anybody asks."""
        return self._workers.ahead

    @property
    def pids(self) -> tuple[int, ...]:
        """The workers by now."""
        return self._workers.pids

    @property
    def restarts(self) -> int:
        """How often workers were replaced because one died."""
        return self._workers.restarts

    def fetch(self) -> Batch:
        """Wait for the next batch. UserError for a broken image when strict, or all broken."""
        assert self._open, "closed"
        batch = next(self._workers)
        self._tell(batch.broken)
        if not len(batch.images):
            raise none_left(self._source)
        return batch

    def place(self, fetched: object) -> tuple[Tensor, Tensor]:
        """Copy to the device, from pinned memory without waiting, and normalise there."""
        assert isinstance(fetched, Batch)
        return self._place(fetched.images, fetched.labels)

    def close(self) -> None:
        """End the workers."""
        self._open = False
        self._workers.close()


def none_left(source: Source) -> UserError:
    """What to raise when no image of a source could be decoded."""
    assert isinstance(source, Files), "arrays do not break"
    count = len(source.pictures)
    return UserError(f"none of the {count:,} training images in {source.root} can be decoded")
