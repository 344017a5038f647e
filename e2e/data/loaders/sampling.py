"""Which images make up which batch, and the seeds of how they are cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from e2e.data.types import ALL, Share

Draw = tuple[int, int]  # which image, and the seed of how it is cut
LISTED = 1024  # draws that become Python's at once: a whole epoch's would hold up a training


@dataclass(frozen=True)
class Shuffled:
    """Lists of `batch` draws from `count` images, epoch after epoch; one may span two epochs.

    They begin with batch number `start`, and are the same as when started from 0. Of a `share`
    (rank, ranks) every rank has its own draws, of one order: together they are batches of `ranks`
    times as many.
    """

    count: int
    batch: int
    seed: int
    start: int = 0
    share: Share = ALL

    def __iter__(self) -> Iterator[list[Draw]]:
        draws, (rank, ranks) = self._draws(), self.share
        while True:
            yield list(itertools.islice(draws, self.batch * ranks))[rank::ranks]

    def _draws(self) -> Iterator[Draw]:
        generator = torch.Generator().manual_seed(self.seed)
        left_out = self.start * self.batch * self.share[1]
        while True:
            order = torch.randperm(self.count, generator=generator)
            seeds = torch.randint(2**62, (self.count,), generator=generator)
            if left_out < self.count:
                drawn = torch.stack([order, seeds])[:, left_out:]
                for some in torch.split(drawn, LISTED, dim=1):
                    yield from zip(*some.numpy().tolist(), strict=True)
            left_out = max(0, left_out - self.count)
