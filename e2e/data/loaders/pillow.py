"""The usual back end: Pillow and torchvision's transforms in DataLoader workers.

The transforms take a Pillow image or uint8 [3, H, W], and return uint8 [3, *size].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms import v2  # pyright: ignore[reportMissingTypeStubs]

from e2e.data.loaders.pixels import Batch, Pictures, PixelFeed, Sample, seeded, together
from e2e.data.loaders.resident import CENTRE, PADDING
from e2e.data.loaders.worker_pool import Draw, Workers
from e2e.data.types import Arrays, Picture, Source, Tell, Wanted


def open_feed(source: Source, wanted: Wanted, tell: Tell) -> PixelFeed:
    """Shuffled epochs, the same for a seed whatever the number of workers."""
    if isinstance(source, Arrays):
        samples: Dataset[Sample] = _Decoded(source, random_shift(wanted.size))
    else:
        samples = Pictures(source.pictures, random_cut(wanted.size), cold=wanted.cold)
    return PixelFeed(samples, source, wanted, tell)


def once(
    pictures: Sequence[Picture], wanted: Wanted, cut: Callable[[Image.Image], Tensor] | None = None
) -> Iterator[Batch]:
    """Every image once, in order, cropped by `cut` (None: its centre). Broken ones are left out."""
    draws: list[Draw] = [(index, 0) for index in range(len(pictures))]
    batches = [draws[at : at + wanted.batch] for at in range(0, len(draws), wanted.batch)]
    samples = Pictures(pictures, cut or centre(wanted.size), whole=True)
    workers = Workers(samples, batches, wanted, collate=together)
    try:
        yield from workers
    finally:
        workers.close()


def random_cut(size: tuple[int, int]) -> v2.Compose:
    """A random resized crop and a flip, as in ImageNet training; `size` is (height, width)."""
    return v2.Compose(
        [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    )


def random_shift(size: tuple[int, int]) -> v2.Compose:
    """CIFAR's augmentation: a crop up to PADDING pixels beyond the image, and a flip."""
    return v2.Compose(
        [
            v2.RandomCrop(size, padding=PADDING, padding_mode="reflect"),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
        ]
    )


def centre(size: tuple[int, int]) -> v2.Compose:
    """The centre crop of `size` pixels, CENTRE of the shorter side."""
    return middle(size, round(max(size) / CENTRE))


def middle(size: tuple[int, int], shorter: int) -> v2.Compose:
    """The centre crop of `size` after the shorter side has been resized to `shorter` pixels."""
    return v2.Compose([v2.Resize(shorter, antialias=True), v2.CenterCrop(size), v2.PILToTensor()])


class _Decoded(Dataset[Sample]):
    """Arrays as CIFAR's scripts have them: one Pillow image at a time."""

    def __init__(self, arrays: Arrays, cut: Callable[[Any], Tensor]) -> None:
        self._pixels = arrays.images.permute(0, 2, 3, 1).numpy()  # as Pillow wants them
        self._labels: list[int] = arrays.classes.numpy().tolist()
        self._cut = cut

    def __getitem__(self, draw: Draw) -> Sample:
        index, seed = draw
        image = Image.fromarray(self._pixels[index].copy(order="C"))
        return Sample(seeded(self._cut, image, seed), self._labels[index], [])
