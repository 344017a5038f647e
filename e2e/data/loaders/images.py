"""The usual back end: Pillow and torchvision's transforms in DataLoader workers.

The transforms take a Pillow image or uint8 [3, H, W], and return uint8 [3, *size].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import (
    Dataset,
    default_collate,  # pyright: ignore[reportUnknownVariableType]
    get_worker_info,
)
from torchvision.transforms import v2  # pyright: ignore[reportMissingTypeStubs]

from e2e.data.loaders.device_copy import Placer
from e2e.data.loaders.reading import decode, read, short
from e2e.data.loaders.resident import PADDING
from e2e.data.loaders.workers import SeededIndex, Shuffled, Workers
from e2e.data.types import Arrays, Broken, Files, ImageFile, LoadSpec, Source, shared
from microbench.errors import UserError

CENTRE = 224 / 256  # of the shorter side: the centre crop of a held-out image

Crop = Callable[[Any], Tensor]


class Sample(NamedTuple):
    """An image, uint8 [3, H, W], None if none could be decoded; and the files that could not."""

    image: Tensor | None
    label: int
    broken: list[Broken]


class Batch(NamedTuple):
    """Images, uint8 [N, 3, H, W], classes, int64 [N], and broken files. N may be short."""

    images: Tensor
    labels: Tensor
    broken: list[Broken]


class ImageDataset(Dataset[Sample]):
    """Image files, decoded and cropped at random. The next good one replaces a broken one, so that
    batches are as large as asked.

    If `whole`, nothing is random, and a broken file is left out instead.
    """

    def __init__(
        self, pictures: Sequence[ImageFile], cut: Crop, *, cold: bool = False, whole: bool = False
    ) -> None:
        self._pictures, self._cut = pictures, cut
        self._cold, self._whole = cold, whole

    def __getitem__(self, draw: SeededIndex) -> Sample:
        first, seed = draw
        broken: list[Broken] = []
        tries = 1 if self._whole else len(self._pictures)
        for index in range(first, first + tries):
            path, label = self._pictures[index % len(self._pictures)]
            try:
                image = seeded(self._cut, decode(read(path, self._cold)), seed)
            except Exception as error:  # decoders raise nearly anything on broken files
                broken.append((path, short(error)))
                continue
            return Sample(image, label, broken)
        return Sample(None, 0, broken)


class Decoded(Dataset[Sample]):
    """Arrays as CIFAR's scripts have them: one Pillow image at a time."""

    def __init__(self, arrays: Arrays, cut: Crop) -> None:
        self._pixels = arrays.images.permute(0, 2, 3, 1).numpy()  # as Pillow wants them
        self._labels: list[int] = arrays.classes.numpy().tolist()
        self._cut = cut

    def __getitem__(self, draw: SeededIndex) -> Sample:
        index, seed = draw
        image = Image.fromarray(self._pixels[index].copy(order="C"))
        return Sample(seeded(self._cut, image, seed), self._labels[index], [])


def seeded(cut: Crop, image: object, seed: int) -> Tensor:
    """The crop that the seed alone decides, in any process; a training's random state is kept."""
    state = None if get_worker_info() else torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        return cut(image)
    finally:
        if state is not None:
            torch.set_rng_state(state)


def together(samples: Sequence[Sample]) -> Batch:
    """A batch of those samples that have an image."""
    good = [sample for sample in samples if sample.image is not None]
    broken = [file for sample in samples for file in sample.broken]
    labels = torch.tensor([sample.label for sample in good], dtype=torch.int64)
    if not good:
        return Batch(torch.empty(0, dtype=torch.uint8), labels, broken)
    # In a worker it stacks into memory that the parent shares.
    return Batch(default_collate([sample.image for sample in good]), labels, broken)


class ImageLoader(Workers):
    """Waits for its workers' batch, copies it, and normalises on the device."""

    def __init__(
        self, dataset: Dataset[Sample], count: int, source: Source, spec: LoadSpec
    ) -> None:
        super().__init__(
            dataset, spec, pinned=spec.pinned, collate_fn=together,
            batch_sampler=Shuffled(count, spec.batch, spec.seed, spec.share),
        )  # fmt: skip
        self._source = source
        self._placer = Placer(spec.device, spec.normal)

    def __next__(self) -> Batch:
        """Wait for the next batch. UserError for a broken image if strict, or if all are broken."""
        batch: Batch = super().__next__()
        self._spec.on_broken(batch.broken)
        if not len(batch.images):
            source = self._source
            assert isinstance(source, Files), "arrays do not break"
            count = f"{len(source.pictures):,}"
            raise UserError(f"none of the {count} training images in {source.root} can be decoded")
        return batch

    def to_device(self, batch: Batch, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """Copy to the device, without waiting if pinned, and normalise: float32 [N, 3, H, W]."""
        return self._placer(batch.images, batch.labels, channels_last)


def open_loader(source: Source, spec: LoadSpec) -> ImageLoader:
    """Shuffled epochs, the same for a seed whatever the number of workers."""
    if isinstance(source, Arrays):
        samples: Dataset[Sample] = Decoded(source, random_shift(spec.size))
        count = len(source.classes)
    else:
        samples = ImageDataset(source.pictures, random_crop(spec.size), cold=spec.cold)
        count = len(source.pictures)
    return ImageLoader(samples, count, source, spec)


def once(pictures: Sequence[ImageFile], spec: LoadSpec) -> Iterator[Batch]:
    """The centre of every image once, in order. Broken ones are left out.

    Of several ranks each has its share of the batches.
    """
    draws: list[SeededIndex] = [(index, 0) for index in range(len(pictures))]
    batches = [draws[at : at + spec.batch] for at in range(0, len(draws), spec.batch)]
    samples = ImageDataset(pictures, centre(spec.size), whole=True)
    workers = Workers(
        samples, spec, pinned=spec.pinned,
        batch_sampler=shared(batches, spec.share), collate_fn=together,
    )  # fmt: skip
    try:
        yield from workers
    finally:
        workers.close()


def random_crop(size: tuple[int, int]) -> v2.Compose:
    """A random resized crop and a flip, as in ImageNet training; `size` is (height, width)."""
    return v2.Compose(
        [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    )


def random_shift(size: tuple[int, int]) -> v2.Compose:
    """CIFAR's augmentation: a crop up to PADDING pixels beyond the image, and a flip."""
    crop = v2.RandomCrop(size, padding=PADDING, padding_mode="reflect")
    return v2.Compose([crop, v2.RandomHorizontalFlip(), v2.PILToTensor()])


def centre(size: tuple[int, int]) -> v2.Compose:
    """The centre crop of `size` pixels, CENTRE of the shorter side."""
    resize = v2.Resize(round(max(size) / CENTRE), antialias=True)
    return v2.Compose([resize, v2.CenterCrop(size), v2.PILToTensor()])
