"""The types that sources, loaders and data sets share: files, arrays, batches and protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

PREFETCH = 2  # batches that each worker is ahead

Broken = tuple[str, str]  # a file and what is wrong with it
Tell = Callable[[Sequence[Broken]], None]  # counts and lists broken files; UserError when strict
Note = Callable[[str], None]


class Picture(NamedTuple):
    """An image file and the number of its class."""

    path: str
    label: int


@dataclass(frozen=True, eq=False)
class Files:
    """Image files below the folder `root`. Tar shards are `root`/*.tar."""

    pictures: Sequence[Picture]
    root: Path


@dataclass(frozen=True, eq=False)
class Arrays:
    """Decoded images, uint8 [N, 3, H, W], and their classes, int64 [N]."""

    images: Tensor
    classes: Tensor


Source = Files | Arrays


@dataclass(frozen=True)
class Normal:
    """Mean and standard deviation of each channel, in parts of 255."""

    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]

    def scale_and_shift(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """What bytes are multiplied by, and what is added then: float32 [1, 3, 1, 1] each."""
        mean = torch.tensor(self.mean, dtype=torch.float64)
        deviation = torch.tensor(self.deviation, dtype=torch.float64)
        pair = (1 / (255 * deviation), -mean / deviation)
        scale, shift = (value.float().reshape(1, 3, 1, 1).to(device) for value in pair)
        return scale, shift


IMAGENET = Normal((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def laid_out(images: Tensor, channels_last: bool) -> Tensor:
    """The images in this layout; the same tensor where it has the layout already."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return images.contiguous(memory_format=layout)


@dataclass(frozen=True)
class Wanted:
    """The batches that are wanted, and how they are to be made.

    `size` is (height, width). `cold`: each file is dropped from the page cache right before it is
    read. `on_death`: what to do when a worker dies, "stop" or "restart". `note` gets what the user
    should know, a line at a time.
    """

    size: tuple[int, int]
    batch: int
    seed: int
    device: torch.device
    workers: int = 0
    channels_last: bool = False
    cold: bool = False
    on_death: str = "stop"
    normal: Normal = IMAGENET
    prefetch: int = PREFETCH
    note: Note = lambda _: None

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch's pixels and classes."""
        return self.batch * (3 * self.size[0] * self.size[1] + 8)

    @property
    def pinned(self) -> bool:
        """Whether batches go to the device from pinned memory."""
        return self.device.type == "cuda"


class Feed(Protocol):
    """Endless training batches for one arm on one device.

    A batch is (inputs, targets): float32 [batch, *sample], contiguous and normalised, with classes,
    int64 [batch]; or a token batch, int64 [batch, T], that is its own target.
    """

    def fetch(self) -> object:
        """The next batch, as far as the host must work or wait for it.

        UserError for a broken file when the data is strict.
        """
        ...

    def place(self, fetched: object) -> tuple[Tensor, Tensor]:
        """What `fetch` gave, as a batch on the device. Launches, and never waits for the device."""
        ...

    def close(self) -> None:
        """End what runs for this feed. It gives no batches afterwards."""
        ...


class LoaderFeed(Feed, Protocol):
    """A `Feed` of a loader, whose processes are known. Nothing runs before its first `fetch`."""

    @property
    def ahead(self) -> int:
        """How many batches may be ready before they are fetched; 0 without workers."""
        ...

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that work for it by now."""
        ...

    @property
    def idle_cpu_s(self) -> float:
        """Processor seconds so far that threads of this process took only to wait for the device.

        Some waits spin. What ends later is not in it: it grows batch by batch.
        """
        ...


class ReadyFeed:
    """What all `LoaderFeed`s have whose batches nothing has to be waited for."""

    ahead = 0
    pids: tuple[int, ...] = ()
    idle_cpu_s = 0.0

    def fetch(self) -> None:
        """Nothing to wait for."""


class Data(Protocol):
    """A data set, or what takes its place. It is opened once and shared by all arms."""

    @property
    def name(self) -> str:
        """What a case calls its data: "synthetic", "generated", "cifar10", "folder", "made"."""
        ...

    @property
    def sample(self) -> tuple[int, ...]:
        """The shape of one sample, without the batch."""
        ...

    @property
    def classes(self) -> int:
        """How many classes the targets are of; for tokens, the vocabulary."""
        ...

    @property
    def train_samples(self) -> int | None:
        """How many samples an epoch has. None: the data has no end."""
        ...

    @property
    def held_out_samples(self) -> int | None:
        """How many samples `held_out` gives if none is broken. None: they prove nothing."""
        ...

    @property
    def generated(self) -> bool:
        """Whether numbers from this data must be labelled "generated"."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know of the data by now, a line each."""
        ...

    def feed(
        self, batch: int, device: torch.device, seed: int, *, channels_last: bool = False,
        loader: str | None = None, workers: int | None = None, cold: bool = False,
        prefetch: int = 0,
    ) -> LoaderFeed:  # fmt: skip
        """Batches in an order that the seed decides. May take time; allocates on the device.

        `channels_last` is the layout of images as they come; tokens have none. `loader`, a name of
        e2e.data.loaders, and `workers` are as the data was opened where they are None. `cold` reads
        files from the disk, not from memory. Each worker is `prefetch` batches ahead (0: as usual).
        UserError for a loader that does not fit.
        """
        ...

    def held_out(self, batch: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Every held-out sample once, in batches as a feed's, not augmented; any may be short."""
        ...
