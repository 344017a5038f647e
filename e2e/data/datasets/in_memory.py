"""A small data set of decoded images: those to train on, and those held out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from e2e.data.datasets.images import Images, Reading
from e2e.data.types import Arrays, Broken, Normal


class InMemory(Images):
    """Decoded images in memory; loader "resident" shares one copy of them on the device."""

    def __init__(
        self,
        name: str,
        train: Arrays,
        kept: Arrays,
        normal: Normal,
        classes: int,
        generated: bool = False,
        reading: Reading | None = None,
    ) -> None:
        self.name, self.generated = name, generated
        self.train, self.kept, self.normal = train, kept, normal
        self._kept_on: dict[torch.device, Arrays] = {}
        # An object of its own: copies on a device live as long as it, not as long as `train`.
        source = Arrays(train.images, train.classes)
        sample = tuple(train.images.shape[1:])
        super().__init__(source, sample, classes, normal, reading or Reading(), _nothing_breaks)

    @property
    def train_samples(self) -> int:
        """How many images an epoch has."""
        return len(self.train.images)

    @property
    def held_out_samples(self) -> int:
        """How many images are held out."""
        return len(self.kept.images)

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
