"""The types that sources, loaders and data sets share: files, arrays, batches, loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from e2e.case import TrainCase
from e2e.results.loader_types import LoadCase

PREFETCH = 2  # batches that each worker is ahead

Item = TypeVar("Item")
Share = tuple[int, int]  # which of how many ranks: (0, 2) has every other sample of one order
ALL: Share = (0, 1)

Broken = tuple[str, str]  # a file and what is wrong with it
OnBroken = Callable[
    [Sequence[Broken]], None
]  # counts and lists broken files; UserError when strict


class ImageFile(NamedTuple):
    """An image file and the number of its class."""

    path: str
    label: int


@dataclass(frozen=True, eq=False)
class Files:
    """Image files below the folder `root`."""

    pictures: Sequence[ImageFile]
    root: Path


@dataclass(frozen=True, eq=False)
class Arrays:
    """Decoded images, uint8 [N, 3, H, W], and their classes, int64 [N]."""

    images: Tensor
    classes: Tensor


Source = Files | Arrays


@dataclass(frozen=True)
class Normal:
    """Mean and standard deviation of each channel, of pixels scaled from 0..255 to 0..1."""

    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]

    def scale_and_shift(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """(scale, shift), float32 [1, 3, 1, 1] each: bytes * scale + shift are normalised."""
        mean = torch.tensor(self.mean, dtype=torch.float64)
        deviation = torch.tensor(self.deviation, dtype=torch.float64)
        pair = (1 / (255 * deviation), -mean / deviation)
        scale, shift = (value.float().reshape(1, 3, 1, 1).to(device) for value in pair)
        return scale, shift


IMAGENET = Normal((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def some_of(total: int, count: int) -> list[int]:
    """`count` of the numbers below `total`, in order, drawn once and for all; all of them for 0 or
    more than all. Not every Nth: classes may repeat with a period that N shares.
    """
    if not 0 < count < total:
        return list(range(total))
    return sorted(Random(total).sample(range(total), count))


def shared(batches: Sequence[Item], share: Share) -> Sequence[Item]:
    """Of batches that all ranks have together, those of one."""
    rank, ranks = share
    return batches[rank::ranks]


def laid_out(images: Tensor, channels_last: bool) -> Tensor:
    """The images [N, C, H, W] in this memory format; the same tensor where they have it already."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return images.contiguous(memory_format=layout)


@dataclass(frozen=True)
class LoadSpec:
    """The batches that a loader should make.

    `batch` is in samples. `loader` is a name of e2e.data.loaders; "" for the usual one of the data.
    `cold`: each file is dropped from the page cache right before it is read.

    The rest is filled in by the data. `size` is (height, width) in pixels. `share` is (rank,
    ranks): this rank's part of a batch that is `ranks` times as large. `on_broken` gets the files
    that are broken.
    """

    batch: int
    device: torch.device
    seed: int
    loader: str = ""
    workers: int = 0
    cold: bool = False
    size: tuple[int, int] = (0, 0)
    normal: Normal = IMAGENET
    share: Share = ALL
    on_broken: OnBroken = lambda _: None

    @property
    def pinned(self) -> bool:
        """Whether batches go to the device from pinned memory."""
        return self.device.type == "cuda"


class Loader:
    """Endless training batches for one device: `next`, then `to_device`.

    Nothing runs before the first `next`. The base is of batches that need no waiting.
    """

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next batch, as far as the host must work or wait for it.

        UserError for a broken file of strict data, or when the loader cannot go on.
        """
        return None

    def to_device(self, batch: Any, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """(inputs, targets) on the device. Launches work, and never waits for the device.

        They are float32 [batch, *sample], normalised, images in this memory format, with classes,
        int64 [batch]; or a token batch, int64 [batch, T], that is its own target.
        """
        raise TypeError(f"{type(self).__name__} gives nothing to place on a device")

    def close(self) -> None:
        """End the loader's threads and processes. It returns no batches afterwards."""

    @property
    def queue_depth(self) -> int:
        """How many batches may be ready before they are fetched; 0 without workers."""
        return 0

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of its worker processes so far."""
        return ()


@dataclass(frozen=True)
class Options:
    """What the network takes, and how data is opened.

    `sample` is the shape of a sample. `classes` is for synthetic data only; other data has its own.
    `tokens` is the vocabulary of a network of tokens.
    `workers` processes decode held-out images (0: none). `loader` is a name of e2e.data.loaders (""
    for the usual one of the data). `device`: check now that the loader runs for it; None: it is
    checked when it is opened. `share` is this rank's of the training samples, as in `LoadSpec`.
    """

    sample: tuple[int, ...]
    classes: int | None = None
    tokens: int | None = None
    workers: int = 0
    loader: str = ""
    device: torch.device | None = None
    share: Share = ALL


class Data:
    """A data set, or its substitute. It is opened once and shared by all variants.

    `name` is that of the data in a case ("synthetic", "cifar10", "folder"), `sample` the shape of
    one sample. Targets are of so many `classes`; for tokens it is the vocabulary. An epoch has
    `train_samples`, None for endless data; `held_out` has `held_out_samples` if none is broken,
    None where accuracy means nothing.
    """

    train_samples: int | None = None
    held_out_samples: int | None = None
    source: Source | None = None  # of images

    def __init__(self, name: str, options: Options, classes: int) -> None:
        self.name, self.options = name, options
        self.sample, self.classes = options.sample, classes
        self._notes: dict[str, None] = {}

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the data so far for the user, a line each."""
        return tuple(self._notes)

    def open(self, case: TrainCase | LoadCase, device: torch.device, seed: int) -> Loader:
        """The case's batches, from the first one of the seed's order. UserError as of `load`."""
        return self.load(LoadSpec(case.batch, device, seed, case.loader, case.workers, case.cold))

    def load(self, spec: LoadSpec) -> Loader:
        """Batches in an order that the seed decides. May take time; allocates on the device.

        UserError for a loader that does not fit.
        """
        raise NotImplementedError

    def held_out(
        self, batch: int, device: torch.device, count: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Every held-out sample once, in batches like a loader's, not augmented; any may be short.
        Of several ranks each has its share of the batches, and may have none.

        With a `count` only that many of them, drawn once: always the same ones.
        UserError for a broken file of strict data, or when no sample can be decoded.
        """
        numbers = some_of(self.held_out_samples or 0, count)
        batches = [numbers[at : at + batch] for at in range(0, len(numbers), batch)]
        for some in shared(batches, self.options.share):
            yield self.kept_batch(some, device)

    def kept_batch(self, numbers: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """These held-out samples on the device, as a loader has them."""
        raise NotImplementedError
