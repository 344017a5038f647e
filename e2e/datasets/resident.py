"""A small data set that lives on the device as bytes: drawn, augmented and normalised there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from e2e.datasets.data import Normal, laid_out

PADDING = 4  # pixels that a crop may lie beyond the image, where the image is mirrored


class Labelled(NamedTuple):
    """Images, uint8 [N, 3, H, W], and their classes, int64 [N]."""

    pixels: Tensor
    classes: Tensor


@dataclass(frozen=True)
class Resident:
    """Data that is held on the device: there from the first feed, and shared by all arms."""

    name: str
    train: Labelled
    kept: Labelled
    normal: Normal
    classes: int
    generated: bool = False
    notes: tuple[str, ...] = ()
    _placed: dict[tuple[str, torch.device], Labelled] = field(default_factory=dict, repr=False)

    @property
    def sample(self) -> tuple[int, ...]:
        """The shape of one image, (3, H, W)."""
        return tuple(self.train.pixels.shape[1:])

    @property
    def train_samples(self) -> int:
        """How many images an epoch has."""
        return len(self.train.pixels)

    @property
    def held_out_samples(self) -> int:
        """How many images are held out."""
        return len(self.kept.pixels)

    def feed(
        self, batch: int, device: torch.device, seed: int, *, channels_last: bool = False
    ) -> ResidentFeed:
        """Epochs one after another, each in an order of its own; every batch is full."""
        return ResidentFeed(self._on("train", device), self.normal, batch, seed, channels_last)

    def held_out(self, batch: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """The held-out images in their order, as they are."""
        pixels, classes = self._on("kept", device)
        scale, shift = self.normal.scale_and_shift(device)
        for some, target in zip(pixels.split(batch), classes.split(batch), strict=True):
            yield (some * scale).add_(shift), target

    def _on(self, split: str, device: torch.device) -> Labelled:
        if (split, device) not in self._placed:
            images: Labelled = getattr(self, split)
            self._placed[split, device] = Labelled(*(part.to(device) for part in images))
        return self._placed[split, device]


class ResidentFeed:
    """A `Feed` that cuts, flips and normalises images on the device: six kernels a batch.

    The random numbers are the device's own, so one seed gives other batches on another kind of it.
    """

    def __init__(
        self, data: Labelled, normal: Normal, batch: int, seed: int, channels_last: bool = False
    ) -> None:
        self._channels_last = channels_last
        self._data: Labelled | None = data
        self._batch = batch
        device = data.pixels.device
        self._generator = torch.Generator(device).manual_seed(seed)
        self._scale, self._shift = normal.scale_and_shift(device)
        height, width = data.pixels.shape[2:]
        self._rows = _crops(height).to(device)
        columns = _crops(width)
        self._columns = torch.cat([columns, columns.flip(1)]).to(device)
        self._channels = torch.arange(data.pixels.shape[1], device=device).reshape(1, -1, 1, 1)
        self._drawn = self._epoch(data)

    def fetch(self) -> None:
        """Nothing to wait for: all is on the device."""

    def place(self, fetched: object) -> tuple[Tensor, Tensor]:
        """The next images of the epoch, cut, flipped and normalised."""
        assert self._data is not None, "closed"
        while self._drawn.shape[1] < self._batch:
            self._drawn = torch.cat([self._drawn, self._epoch(self._data)], dim=1)
        which, down, across = self._drawn[:, : self._batch]
        self._drawn = self._drawn[:, self._batch :]
        rows = self._rows[down][:, None, :, None]
        columns = self._columns[across][:, None, None, :]
        bytes_ = self._data.pixels[which[:, None, None, None], self._channels, rows, columns]
        bytes_ = laid_out(bytes_, self._channels_last)
        return (bytes_ * self._scale).add_(self._shift), self._data.classes[which]

    def close(self) -> None:
        """Let the images go."""
        self._data = None

    def _epoch(self, data: Labelled) -> Tensor:
        """int64 [3, N]: every image once, and the rows and columns to cut from each."""
        count, device = len(data.pixels), data.pixels.device
        order = torch.randperm(count, generator=self._generator, device=device)
        down, across = (
            torch.randint(len(table), (count,), generator=self._generator, device=device)
            for table in (self._rows, self._columns)
        )
        return torch.stack([order, down, across])


def _crops(side: int) -> Tensor:
    """int64 [2 PADDING + 1, side]: which pixels each cut takes, mirrored beyond the edges."""
    at = torch.arange(side) + torch.arange(-PADDING, PADDING + 1)[:, None]
    last = side - 1
    return last - (last - at.abs()).abs()
