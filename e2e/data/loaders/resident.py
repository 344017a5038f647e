"""What is kept on the device: rows of tokens, or an array's images as uint8, which are sampled,
cropped, flipped and normalised there.

It is loaded without torchvision, which takes seconds and is not needed for images in memory.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from e2e.data.types import ALL, Arrays, Loader, LoadSpec, Share, Source, laid_out

PADDING = 4  # pixels that a crop may lie beyond the image, where the image is mirrored

Kept = tuple[Tensor, Tensor]
# All loaders of a source share its images, which go when the source does.
_kept: WeakKeyDictionary[Source, dict[torch.device, Kept]] = WeakKeyDictionary()


def open_loader(source: Source, spec: LoadSpec) -> Resident:
    """Images on the device, copied once for all loaders of a source."""
    assert isinstance(source, Arrays)
    by_device = _kept.setdefault(source, {})
    if spec.device not in by_device:
        by_device[spec.device] = source.images.to(spec.device), source.classes.to(spec.device)
    return Resident(*by_device[spec.device], spec)


class Rows(Loader):
    """Rows on the device, in shuffled epochs: each batch is gathered there, and may span two.

    `share` is this rank's of a batch that all have together, as in `LoadSpec`. The device draws the
    random numbers, so a seed gives other batches on another kind of device.
    """

    def __init__(self, rows: Tensor, batch: int, seed: int, share: Share = ALL) -> None:
        self._rows, self._batch, self._share = rows, batch, share
        self._generator = torch.Generator(rows.device).manual_seed(seed)
        self._drawn = self._epoch()

    def to_device(self, batch: object, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """The next rows of the epoch, int64 [batch, T], twice: tokens are their own targets."""
        tokens = self._rows[self._next()]
        return tokens, tokens

    def _epoch(self) -> Tensor:
        """int64 [..., N]: every row once, and what is drawn for each."""
        return torch.randperm(len(self._rows), generator=self._generator, device=self._rows.device)

    def _next(self) -> Tensor:
        """This rank's of what is drawn for the next batch."""
        rank, ranks = self._share
        whole = self._batch * ranks
        while self._drawn.shape[-1] < whole:
            self._drawn = torch.cat([self._drawn, self._epoch()], dim=-1)
        some, self._drawn = self._drawn[..., rank:whole:ranks], self._drawn[..., whole:]
        return some


class Resident(Rows):
    """Crops, flips and normalises on the device: six kernels per batch."""

    def __init__(self, images: Tensor, classes: Tensor, spec: LoadSpec) -> None:
        device = images.device
        self._classes = classes
        self._scale, self._shift = spec.normal.scale_and_shift(device)
        self._down = _crops(images.shape[2]).to(device)
        across = _crops(images.shape[3])
        self._across = torch.cat([across, across.flip(1)]).to(device)
        self._channels = torch.arange(images.shape[1], device=device).reshape(1, -1, 1, 1)
        super().__init__(images, spec.batch, spec.seed, spec.share)

    def to_device(self, batch: object, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """The next images of the epoch, float32 [batch, 3, H, W], and classes, int64 [batch]."""
        which, down, across = self._next()
        rows = self._down[down][:, None, :, None]
        columns = self._across[across][:, None, None, :]
        bytes_ = self._rows[which[:, None, None, None], self._channels, rows, columns]
        bytes_ = laid_out(bytes_, channels_last)
        return (bytes_ * self._scale).add_(self._shift), self._classes[which]

    def _epoch(self) -> Tensor:
        """int64 [3, N]: every image once, and the rows and columns to cut from each."""
        order = super()._epoch()
        down, across = (
            torch.randint(len(table), order.shape, generator=self._generator, device=order.device)
            for table in (self._down, self._across)
        )
        return torch.stack([order, down, across])


def _crops(side: int) -> Tensor:
    """int64 [crops, side]: which pixels each cut takes, mirrored beyond the edges."""
    at, last = torch.arange(side) + torch.arange(-PADDING, PADDING + 1)[:, None], side - 1
    return last - (last - at.abs()).abs()
