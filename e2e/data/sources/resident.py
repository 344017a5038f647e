"""A small data set of decoded images: those to train on, and those held out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from e2e.data.sources.data import Normal
from e2e.data.sources.feeding import Feeder, Reading, nothing_breaks

if TYPE_CHECKING:
    from e2e.data.loaders import Arrays, LoaderFeed


class Labelled(NamedTuple):
    """Images, uint8 [N, 3, H, W], and their classes, int64 [N]."""

    pixels: Tensor
    classes: Tensor


@dataclass
class Resident:
    """Data that fits on the device, and is shared there by all arms that have it so."""

    name: str
    train: Labelled
    kept: Labelled
    normal: Normal
    classes: int
    generated: bool = False
    reading: Reading = field(default_factory=Reading)
    source: Arrays = field(init=False, repr=False)
    _feeder: Feeder = field(init=False, repr=False)
    _kept_on: dict[torch.device, Labelled] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        from e2e.data.loaders import Arrays  # it needs this package itself

        self.source = Arrays(*self.train)
        self._feeder = Feeder(
            self.source, self.sample, self.classes, self.normal, self.reading, nothing_breaks
        )

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

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to say of workers by now."""
        return self._feeder.notes

    def feed(
        self, batch: int, device: torch.device, seed: int, *, channels_last: bool = False,
        loader: str | None = None, workers: int | None = None, cold: bool = False,
        prefetch: int = 0,
    ) -> LoaderFeed:  # fmt: skip
        """Epochs one after another, each in an order of its own; every batch is full."""
        return self._feeder.feed(
            batch, device, seed, channels_last=channels_last,
            loader=loader, workers=workers, cold=cold, prefetch=prefetch,
        )  # fmt: skip

    def held_out(self, batch: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """The held-out images in their order, as they are."""
        if device not in self._kept_on:
            self._kept_on[device] = Labelled(*(part.to(device) for part in self.kept))
        pixels, classes = self._kept_on[device]
        scale, shift = self.normal.scale_and_shift(device)
        for some, target in zip(pixels.split(batch), classes.split(batch), strict=True):
            yield (some * scale).add_(shift), target
