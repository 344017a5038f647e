"""The back end that most people run: Pillow and torchvision's transforms in DataLoader workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from e2e.data.loaders.backend import Arrays, Source, Tell, Wanted
from e2e.data.loaders.decode import decode
from e2e.data.loaders.pixels import PixelFeed
from e2e.data.loaders.samples import Batch, Pictures, Sample, sample_workers, seeded, shuffled
from e2e.data.loaders.sampling import Draw, in_order
from e2e.data.loaders.transforms import centre, random_cut, random_shift
from e2e.data.sources.listing import Picture


def missing(device: torch.device) -> str | None:
    """It runs everywhere."""
    return None


def open_feed(source: Source, wanted: Wanted, tell: Tell) -> PixelFeed:
    """Shuffled epochs, the same for a seed whatever the workers."""
    if isinstance(source, Arrays):
        samples: Dataset[Sample] = _Decoded(source, random_shift(wanted.size))
        count = len(source.images)
    else:
        cut = random_cut(wanted.size)
        samples = Pictures(source.pictures, decode, cut, cold=wanted.cold)
        count = len(source.pictures)
    return PixelFeed(shuffled(samples, count, wanted), source, wanted, tell)


def once(
    pictures: Sequence[Picture],
    wanted: Wanted,
    cut: Callable[[Image.Image], Tensor] | None = None,
) -> Iterator[Batch]:
    """Every image once, in order, cut by `cut` (None: its centre). Broken ones are left out."""
    workers = sample_workers(
        Pictures(pictures, decode, cut or centre(wanted.size), whole=True),
        lambda start: in_order(len(pictures), wanted.batch)[start:],
        wanted,
    )
    try:
        yield from workers
    finally:
        workers.close()


class _Decoded(Dataset[Sample]):
    """Arrays as CIFAR's scripts have them: one Pillow image at a time."""

    def __init__(self, arrays: Arrays, cut: Callable[[Any], Tensor]) -> None:
        self._pixels = arrays.images.permute(0, 2, 3, 1).numpy()  # as Pillow wants them
        self._labels = arrays.classes.tolist()
        self._cut = cut

    def __getitem__(self, draw: Draw) -> Sample:
        index, seed = draw
        image = Image.fromarray(self._pixels[index].copy(order="C"))
        return Sample(seeded(self._cut, image, seed), self._labels[index], [])
