"""Batches on their way from a worker: one tensor, so that taking one in costs next to nothing.

Whatever Python does for a batch in the training process, it takes from who launches the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from e2e.data.loaders.backend import Broken
from e2e.data.loaders.sampling import Draw
from kernels.resample.geometry import crop_table

# Of each image: how many bytes its content takes; 1 for a JPEG's bytes, 0 for pixels; 3, height and
# width as it is stored; its class; its draw; its row of `crop_table`, as if it began at address 0.
ROW = np.dtype([
    ("bytes", np.int64), ("coded", np.int64), ("shape", np.int64, 3), ("label", np.int64),
    ("draw", np.int64, 2), ("crop", np.int64, 6),
])  # fmt: skip

Rows = NDArray[np.void]  # of ROW
Box = tuple[int, int, int, int]  # top, left, height, width in the upright image


@dataclass(frozen=True)
class Item:
    """An image of a batch, without its content.

    `coded`: it is a JPEG's bytes, not pixels. `size`: height and width as it is stored.
    `orientation`: EXIF's. `draw`: which image it is, and the seed that it was cut by.
    """

    coded: bool
    size: tuple[int, int]
    orientation: int
    box: Box
    flip: bool
    label: int
    draw: Draw


class Sample(NamedTuple):
    """An image and its content, uint8 in one dimension; None where none could be read."""

    item: Item | None
    content: NDArray[np.uint8]
    broken: list[Broken]


@dataclass(frozen=True)
class Packed:
    """`count` images, and broken files. `flat`, uint8, has their rows, then content by content."""

    flat: Tensor
    count: int
    broken: list[Broken]

    def pin_memory(self) -> Packed:
        """The same in pinned memory: what the DataLoader calls."""
        return replace(self, flat=self.flat.pin_memory())

    def rows(self) -> Rows:
        """What is known of each image: a view."""
        return self.flat[: self.count * ROW.itemsize].numpy().view(ROW)

    def contents(self) -> list[Tensor]:
        """Views of each image's content, uint8 [bytes]: a JPEG, or pixels of its shape."""
        content = self.flat[self.count * ROW.itemsize :]
        return list(content.split(self.rows()["bytes"].tolist()))


def pack(samples: Sequence[Sample]) -> Packed:
    """A batch of those samples that have an image."""
    good = [(sample.item, sample.content) for sample in samples if sample.item is not None]
    rows = _rows([item for item, _ in good])
    rows["bytes"] = [len(content) for _, content in good]
    flat = np.concatenate([rows.view(np.uint8), *(content for _, content in good)])
    broken = [file for sample in samples for file in sample.broken]
    return Packed(torch.from_numpy(flat), len(good), broken)


def _rows(items: Sequence[Item]) -> Rows:
    rows = np.zeros(len(items), ROW)
    if items:
        rows["coded"] = [item.coded for item in items]
        rows["shape"] = [(3, *item.size) for item in items]
        rows["label"] = [item.label for item in items]
        rows["draw"] = [item.draw for item in items]
        rows["crop"] = crop_table(
            [0] * len(items),
            [item.size for item in items],
            torch.tensor([item.box for item in items]),
            torch.tensor([item.flip for item in items]),
            torch.tensor([item.orientation for item in items]),
        )
    return rows
