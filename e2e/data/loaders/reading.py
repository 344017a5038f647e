"""Files read and discarded: the rate of the disk, or the page cache, when nothing is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from torch import Tensor
from torch.utils.data import Dataset

from e2e.data.loaders.decode import read, short
from e2e.data.loaders.sampling import Draw, Shuffled
from e2e.data.loaders.worker_pool import WorkerFeed, Workers
from e2e.data.types import Broken, Files, Picture, Source, Tell, Wanted
from microbench.errors import UserError


class Read(NamedTuple):
    """How many files were read, and their bytes."""

    files: int
    size_bytes: int
    broken: list[Broken]


def open_feed(source: Source, wanted: Wanted, tell: Tell) -> ReadFeed:
    """The files in the order in which training reads them."""
    assert isinstance(source, Files)
    workers = Workers(
        _Files(source.pictures, wanted.cold),
        partial(Shuffled, len(source.pictures), wanted.batch, wanted.seed),
        wanted,
        collate=_added_up,
        pinned=False,
        batch_bytes=0,
    )
    return ReadFeed(workers, tell)


class ReadFeed(WorkerFeed[Read]):
    """A `LoaderFeed` that cannot train: it fetches, and has nothing to place."""

    def __init__(self, workers: Workers[Read], tell: Tell) -> None:
        super().__init__(workers)
        self._tell = tell

    def fetch(self) -> Read:
        """Wait until the next batch is read."""
        read_ = next(self._workers)
        self._tell(read_.broken)
        return read_

    def place(self, fetched: object) -> tuple[Tensor, Tensor]:
        """UserError: there is nothing to train on."""
        raise UserError("loader read only reads files: it cannot train")


class _Files(Dataset[Read]):
    def __init__(self, pictures: Sequence[Picture], cold: bool) -> None:
        self._pictures, self._cold = pictures, cold

    def __getitem__(self, draw: Draw) -> Read:
        path = self._pictures[draw[0]].path
        try:
            return Read(1, len(read(path, self._cold)), [])
        except OSError as error:
            return Read(0, 0, [(path, short(error))])


def _added_up(parts: Sequence[Read]) -> Read:
    broken = [file for part in parts for file in part.broken]
    return Read(sum(part.files for part in parts), sum(part.size_bytes for part in parts), broken)
