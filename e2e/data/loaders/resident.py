"""Images that lie on the device as bytes: drawn, cut, flipped and normalised there."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from e2e.data.loaders.crop_sizes import PADDING
from e2e.data.types import Arrays, Source, Tell, Wanted, laid_out

Kept = tuple[Tensor, Tensor]
# All feeds of a source share its images, which go when the source does.
_kept: WeakKeyDictionary[Source, dict[tuple[tuple[int, int], torch.device], Kept]]
_kept = WeakKeyDictionary()


def open_feed(source: Source, wanted: Wanted, tell: Tell) -> ResidentFeed:
    """Images from files are decoded now, once for all feeds of a source. UserError for too many."""
    by_size = _kept.setdefault(source, {})
    key = (wanted.size, wanted.device)
    if key not in by_size:
        by_size[key] = _placed(source, wanted, tell)
    return ResidentFeed(*by_size[key], wanted)


def _placed(source: Source, wanted: Wanted, tell: Tell) -> Kept:
    if isinstance(source, Arrays):
        return source.images.to(wanted.device), source.classes.to(wanted.device)
    # Pillow and torchvision load slowly, and arrays do not need them.
    from e2e.data.loaders.predecode import decoded

    return decoded(source, wanted, tell)


class ResidentFeed:
    """A `LoaderFeed` that cuts, flips and normalises images on the device: six kernels a batch.

    Images that are larger than what is wanted are cut anywhere in them, others up to PADDING beyond
    their edges. The random numbers are the device's own, so one seed gives other batches on another
    kind of it.
    """

    ahead = 0
    pids: tuple[int, ...] = ()
    idle_cpu_s = 0.0

    def __init__(self, images: Tensor, classes: Tensor, wanted: Wanted) -> None:
        self._channels_last = wanted.channels_last
        self._images: Tensor | None = images
        self._classes = classes
        self._batch = wanted.batch
        device = images.device
        self._generator = torch.Generator(device).manual_seed(wanted.seed)
        self._scale, self._shift = wanted.normal.scale_and_shift(device)
        self._rows = _crops(images.shape[2], wanted.size[0]).to(device)
        columns = _crops(images.shape[3], wanted.size[1])
        self._columns = torch.cat([columns, columns.flip(1)]).to(device)
        self._channels = torch.arange(images.shape[1], device=device).reshape(1, -1, 1, 1)
        self._drawn = self._epoch(len(images))

    def fetch(self) -> None:
        """Nothing to wait for: all is on the device."""

    def place(self, fetched: object) -> tuple[Tensor, Tensor]:
        """The next images of the epoch, cut, flipped and normalised."""
        assert self._images is not None, "closed"
        while self._drawn.shape[1] < self._batch:
            self._drawn = torch.cat([self._drawn, self._epoch(len(self._images))], dim=1)
        which, down, across = self._drawn[:, : self._batch]
        self._drawn = self._drawn[:, self._batch :]
        rows = self._rows[down][:, None, :, None]
        columns = self._columns[across][:, None, None, :]
        bytes_ = self._images[which[:, None, None, None], self._channels, rows, columns]
        bytes_ = laid_out(bytes_, self._channels_last)
        return (bytes_ * self._scale).add_(self._shift), self._classes[which]

    def close(self) -> None:
        """Let the images go."""
        self._images = None

    def _epoch(self, count: int) -> Tensor:
        """int64 [3, N]: every image once, and the rows and columns to cut from each."""
        device = self._channels.device
        order = torch.randperm(count, generator=self._generator, device=device)
        down, across = (
            torch.randint(len(table), (count,), generator=self._generator, device=device)
            for table in (self._rows, self._columns)
        )
        return torch.stack([order, down, across])


def _crops(side: int, wanted: int) -> Tensor:
    """int64 [crops, wanted]: which pixels each cut takes, mirrored beyond the edges."""
    assert wanted <= side
    beyond = PADDING if wanted == side else 0
    at = torch.arange(wanted) + torch.arange(-beyond, side - wanted + beyond + 1)[:, None]
    last = side - 1
    return last - (last - at.abs()).abs()
