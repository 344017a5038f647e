"""Images of an array, kept on the device as uint8: sampled, cropped, flipped and normalised there.

It is loaded without torchvision, which takes seconds and is not needed for images in memory.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from e2e.data.types import Arrays, Loader, LoadSpec, Source, laid_out

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


class Resident(Loader):
    """Crops, flips and normalises on the device: six kernels per batch.

    The device draws the random numbers, so a seed gives other batches on another kind of device.
    """

    def __init__(self, images: Tensor, classes: Tensor, spec: LoadSpec) -> None:
        self._images, self._classes = images, classes
        self._batch, self._share = spec.batch, spec.share
        device = images.device
        self._generator = torch.Generator(device).manual_seed(spec.seed)
        self._scale, self._shift = spec.normal.scale_and_shift(device)
        self._rows = _crops(images.shape[2]).to(device)
        columns = _crops(images.shape[3])
        self._columns = torch.cat([columns, columns.flip(1)]).to(device)
        self._channels = torch.arange(images.shape[1], device=device).reshape(1, -1, 1, 1)
        self._drawn = self._epoch(len(images))

    def to_device(self, batch: object, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """The next images of the epoch, float32 [batch, 3, H, W], and classes, int64 [batch]."""
        rank, ranks = self._share
        whole = self._batch * ranks
        while self._drawn.shape[1] < whole:
            self._drawn = torch.cat([self._drawn, self._epoch(len(self._images))], dim=1)
        which, down, across = self._drawn[:, rank:whole:ranks]
        self._drawn = self._drawn[:, whole:]
        rows = self._rows[down][:, None, :, None]
        columns = self._columns[across][:, None, None, :]
        bytes_ = self._images[which[:, None, None, None], self._channels, rows, columns]
        bytes_ = laid_out(bytes_, channels_last)
        return (bytes_ * self._scale).add_(self._shift), self._classes[which]

    def _epoch(self, count: int) -> Tensor:
        """int64 [3, N]: every image once, and the rows and columns to cut from each."""
        device = self._channels.device
        order = torch.randperm(count, generator=self._generator, device=device)
        down, across = (
            torch.randint(len(table), (count,), generator=self._generator, device=device)
            for table in (self._rows, self._columns)
        )
        return torch.stack([order, down, across])


def _crops(side: int) -> Tensor:
    """int64 [crops, side]: which pixels each cut takes, mirrored beyond the edges."""
    at, last = torch.arange(side) + torch.arange(-PADDING, PADDING + 1)[:, None], side - 1
    return last - (last - at.abs()).abs()
