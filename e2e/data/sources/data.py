"""What a training is fed from: the protocols that every kind of data implements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from e2e.data.loaders import LoaderFeed


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


class Data(Protocol):
    """A data set, or what takes its place. It is opened once and shared by all arms."""

    @property
    def name(self) -> str:
        """What a case calls its loader: "synthetic", "generated", "cifar10", "folder"."""
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
        """How many samples an epoch has. None: there is no epoch, the data has no end."""
        ...

    @property
    def held_out_samples(self) -> int | None:
        """How many samples `held_out` gives, were none broken. None: they prove nothing."""
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


def laid_out(images: Tensor, channels_last: bool) -> Tensor:
    """The images in this layout: the very tensor where it has it already."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return images.contiguous(memory_format=layout)


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
