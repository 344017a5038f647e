"""A small data set of decoded images: those to train on, and those held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from e2e.data.datasets.feeder import Feeder, Reading
from e2e.data.types import Arrays, Broken, LoaderFeed, Normal


@dataclass
class InMemory:
    """Decoded images in memory; loader "resident" shares one copy of them on the device."""

    name: str
    train: Arrays
    kept: Arrays
    normal: Normal
    classes: int
    generated: bool = False
    reading: Reading = field(default_factory=Reading)
    source: Arrays = field(init=False, repr=False)
    _feeder: Feeder = field(init=False, repr=False)
    _kept_on: dict[torch.device, Arrays] = field(
        init=False, repr=False, default_factory=dict[torch.device, Arrays]
    )

    def __post_init__(self) -> None:
        # An object of its own: copies on a device live as long as it, not as long as `train`.
        self.source = Arrays(self.train.images, self.train.classes)
        self._feeder = Feeder(
            self.source, self.sample, self.classes, self.normal, self.reading, _nothing_breaks
        )

    @property
    def sample(self) -> tuple[int, ...]:
        """The shape of one image, (3, H, W)."""
        return tuple(self.train.images.shape[1:])

    @property
    def train_samples(self) -> int:
        """How many images an epoch has."""
        return len(self.train.images)

    @property
    def held_out_samples(self) -> int:
        """How many images are held out."""
        return len(self.kept.images)

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
            self._kept_on[device] = Arrays(
                self.kept.images.to(device), self.kept.classes.to(device)
            )
        kept = self._kept_on[device]
        scale, shift = self.normal.scale_and_shift(device)
        parts = (torch.split(part, batch) for part in (kept.images, kept.classes))
        for some, target in zip(*parts, strict=True):
            yield (some * scale).add_(shift), target


def _nothing_breaks(broken: Sequence[Broken]) -> None:
    """Arrays have no files that could be broken."""
    assert not broken
