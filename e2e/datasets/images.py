"""Decoding image files in worker processes: what torchvision's users do, with broken files told."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.transforms import v2

from e2e.datasets.listing import Picture

CENTRE = 224 / 256  # of the shorter side, what is kept of a held-out image
Draw = tuple[int, int]  # which image, and the seed of how it is cut


class Decoded(NamedTuple):
    """An image, uint8 [3, H, W], None where none could be decoded; and the files that could not."""

    image: Tensor | None
    label: int
    broken: list[tuple[str, str]]


class Batch(NamedTuple):
    """Images, uint8 [N, 3, H, W], classes, int64 [N], and broken files. N may be short."""

    images: Tensor
    labels: Tensor
    broken: list[tuple[str, str]]


class Pictures(Dataset[Decoded]):
    """Image files, decoded, cut and flipped. A broken one gives its place to the next good one.

    When `whole`, nothing is random, and a broken file is left out instead.
    """

    def __init__(self, pictures: Sequence[Picture], size: tuple[int, int], whole: bool) -> None:
        self._pictures = pictures
        self._whole = whole
        self._cut = _centre(size) if whole else _random_cut(size)

    def __getitem__(self, draw: Draw) -> Decoded:
        first, seed = draw
        broken: list[tuple[str, str]] = []
        tries = 1 if self._whole else len(self._pictures)
        for index in range(first, first + tries):
            picture = self._pictures[index % len(self._pictures)]
            try:
                image = decode(picture.path)
            except Exception as error:  # decoders raise nearly anything on broken files
                broken.append((picture.path, _short(error)))
                continue
            return Decoded(self._seeded_cut(image, seed), picture.label, broken)
        return Decoded(None, 0, broken)

    def _seeded_cut(self, image: Image.Image, seed: int) -> Tensor:
        """Cut by the seed alone, whichever process does it; the process keeps its random state."""
        if self._whole:
            return self._cut(image)
        state = torch.get_rng_state()
        torch.default_generator.manual_seed(seed)
        try:
            return self._cut(image)
        finally:
            torch.set_rng_state(state)


def decode(path: str) -> Image.Image:
    """The image in a file as RGB, upright. Raises what Pillow raises on a broken one."""
    with warnings.catch_warnings(action="ignore"), Image.open(path) as image:
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        if image.mode == "RGB":
            return image
        if image.mode == "I" or image.mode.startswith("I;16"):
            return _of_16_bits(image)
        return image.convert("RGB")


def endless(pictures: Sequence[Picture], size: tuple[int, int], batch: int, seed: int, workers: int,
            pinned: bool) -> DataLoader[Batch]:  # fmt: skip
    """Full batches of shuffled epochs, the same for a seed whatever the workers.

    They never end, and so neither do the workers between epochs.
    """
    return _loader(
        Pictures(pictures, size, whole=False),
        _Shuffled(len(pictures), batch, seed),
        workers,
        pinned,
    )


def once(pictures: Sequence[Picture], size: tuple[int, int], batch: int, workers: int,
         pinned: bool) -> DataLoader[Batch]:  # fmt: skip
    """Every image once, in order, its centre."""
    draws = [(index, 0) for index in range(len(pictures))]
    batches = [draws[at : at + batch] for at in range(0, len(draws), batch)]
    return _loader(Pictures(pictures, size, whole=True), batches, workers, pinned)


class _Shuffled:
    """Lists of `batch` draws, epoch after epoch; a list may run over an epoch's end."""

    def __init__(self, count: int, batch: int, seed: int) -> None:
        self._count = count
        self._batch = batch
        self._seed = seed

    def __iter__(self) -> Iterator[list[Draw]]:
        draws = self._draws()
        while True:
            yield list(itertools.islice(draws, self._batch))

    def _draws(self) -> Iterator[Draw]:
        generator = torch.Generator().manual_seed(self._seed)
        while True:
            order = torch.randperm(self._count, generator=generator)
            seeds = torch.randint(2**62, (self._count,), generator=generator)
            yield from zip(order.tolist(), seeds.tolist(), strict=True)


def _loader(pictures: Pictures, batches: object, workers: int, pinned: bool) -> DataLoader[Batch]:
    return DataLoader(
        pictures,
        batch_sampler=batches,  # type: ignore[arg-type]
        num_workers=workers,
        collate_fn=_together,
        pin_memory=pinned,
        generator=torch.Generator(),  # else the loader draws from the training's random numbers
    )


def _together(decoded: Sequence[Decoded]) -> Batch:
    good = [one for one in decoded if one.image is not None]
    broken = [file for one in decoded for file in one.broken]
    labels = torch.tensor([one.label for one in good], dtype=torch.int64)
    if not good:
        return Batch(torch.empty(0, dtype=torch.uint8), labels, broken)
    # In a worker it stacks into memory that the parent shares.
    return Batch(default_collate([one.image for one in good]), labels, broken)


def _random_cut(size: tuple[int, int]) -> v2.Compose:
    return v2.Compose(
        [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    )


def _centre(size: tuple[int, int]) -> v2.Compose:
    shorter = round(max(size) / CENTRE)
    return v2.Compose([v2.Resize(shorter, antialias=True), v2.CenterCrop(size), v2.PILToTensor()])


def _of_16_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    if values.max() > 255:
        values >>= 8
    return Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert("RGB")


def _short(error: Exception) -> str:
    """What is wrong with a file, without its path."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    said = str(error).splitlines()
    return said[0][:80] if said else type(error).__name__
