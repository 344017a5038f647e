"""Batches of pixels from workers, and their feed; most back ends use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import (
    Dataset,
    default_collate,  # pyright: ignore[reportUnknownVariableType]
    get_worker_info,
)

from e2e.data.loaders.decode import decode, short
from e2e.data.loaders.device_copy import Placer
from e2e.data.loaders.reading import read
from e2e.data.loaders.worker_pool import Draw, Shuffled, Workers
from e2e.data.types import Broken, Files, Picture, Source, Tell, Wanted
from microbench.errors import UserError


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


class Pictures(Dataset[Sample]):
    """Image files, decoded and cropped at random. The next good one replaces a broken one.

    If `whole`, nothing is random, and a broken file is left out instead.
    """

    def __init__(
        self, pictures: Sequence[Picture], cut: Callable[[Image.Image], Tensor], *,
        cold: bool = False, whole: bool = False,
    ) -> None:  # fmt: skip
        self._pictures, self._cut = pictures, cut
        self._cold, self._whole = cold, whole

    def __getitem__(self, draw: Draw) -> Sample:
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


def seeded(cut: Callable[[Any], Tensor], image: object, seed: int) -> Tensor:
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
    good = [one for one in samples if one.image is not None]
    broken = [file for one in samples for file in one.broken]
    labels = torch.tensor([one.label for one in good], dtype=torch.int64)
    if not good:
        return Batch(torch.empty(0, dtype=torch.uint8), labels, broken)
    # In a worker it stacks into memory that the parent shares.
    return Batch(default_collate([one.image for one in good]), labels, broken)


class PixelFeed(Workers[Batch]):
    """A `LoaderFeed` that waits for its workers' batch, copies it, and normalises on the device.

    `batches` are the draws; None: all samples, shuffled, epoch after epoch.
    """

    def __init__(
        self, samples: Dataset[Sample], source: Source, wanted: Wanted, tell: Tell,
        batches: Iterable[list[Any]] | None = None,
    ) -> None:  # fmt: skip
        count = len(source.pictures if isinstance(source, Files) else source.classes)
        shuffled = Shuffled(count, wanted.batch, wanted.seed, wanted.share)
        super().__init__(samples, batches or shuffled, wanted, collate=together)
        self._source, self._tell = source, tell
        self._place = Placer(wanted.device, wanted.normal, wanted.channels_last)
        self._open = True

    def fetch(self) -> Batch:
        """Wait for the next batch. UserError for a broken image if strict, or if all are broken."""
        assert self._open, "closed"
        batch = next(self)
        self._tell(batch.broken)
        if not len(batch.images):
            raise none_left(self._source)
        return batch

    def place(self, fetched: object) -> tuple[Tensor, Tensor]:
        """Copy to the device, without waiting if pinned, and normalise: float32 [N, 3, H, W]."""
        assert isinstance(fetched, Batch)
        return self._place(fetched.images, fetched.labels)

    def close(self) -> None:
        """End the workers."""
        self._open = False
        super().close()


def none_left(source: Source) -> UserError:
    """The UserError to raise when no image of a source could be decoded."""
    assert isinstance(source, Files), "arrays do not break"
    count = len(source.pictures)
    return UserError(f"none of the {count:,} training images in {source.root} can be decoded")
