"""Images in class folders, as the user has them: decoded by torch's DataLoader while it trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from e2e.datasets.data import IMAGENET, laid_out
from e2e.datasets.images import Batch, endless, once
from e2e.datasets.listing import Listing, list_images, printable
from microbench.errors import UserError

NAMED = 3  # broken images that the note names


class Folder:
    """Data from a folder. Broken images are left out, and `notes` counts and names them.

    When `strict`, the first broken image is a UserError: here, from a feed's `fetch`, or from
    `held_out`.
    """

    name = "folder"
    generated = False

    def __init__(self, root: Path, sample: tuple[int, ...], *, strict: bool, workers: int) -> None:
        self.sample = sample
        self._strict = strict
        self._workers = workers
        self._listing: Listing = list_images(root)
        self._broken: dict[str, str] = {}
        self.tell(self._listing.broken.items())

    @property
    def classes(self) -> int:
        """How many class folders have images."""
        return len(self._listing.classes)

    @property
    def train_samples(self) -> int:
        """How many images an epoch draws."""
        return len(self._listing.train)

    @property
    def held_out_samples(self) -> int:
        """How many images are held out."""
        return len(self._listing.held_out)

    @property
    def notes(self) -> tuple[str, ...]:
        """The listing's notes, and the images found broken by now."""
        if not self._broken:
            return self._listing.notes
        count = len(self._broken)
        named = ", ".join(self._named(path) for path in list(self._broken)[:NAMED])
        more = f" and {count - NAMED} more" if count > NAMED else ""
        images = "image" if count == 1 else "images"
        return (*self._listing.notes, f"{count} broken {images} left out: {named}{more}")

    def feed(
        self, batch: int, device: torch.device, seed: int, *, channels_last: bool = False
    ) -> FolderFeed:
        """Shuffled epochs, decoded ahead by this feed's own workers."""
        return FolderFeed(self, batch, device, seed, channels_last)

    def held_out(self, batch: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """The centre of every held-out image that can be decoded. UserError when none can."""
        pinned, seen = device.type == "cuda", 0
        for some in once(self._listing.held_out, self._size(), batch, self._workers, pinned):
            self.tell(some.broken)
            seen += len(some.images)
            if len(some.images):
                yield placed(some, device, *IMAGENET.scale_and_shift(device))
        if not seen:
            raise self.none_left(self.held_out_samples, "held-out images")

    def loader(self, batch: int, seed: int, pinned: bool) -> Iterator[Batch]:
        """Endless batches of this folder's training images."""
        return iter(endless(self._listing.train, self._size(), batch, seed, self._workers, pinned))

    def tell(self, broken: Iterable[tuple[str, str]]) -> None:
        """Note broken files. UserError when strict."""
        for path, reason in broken:
            self._broken[path] = reason
            if self._strict:
                raise UserError(
                    f"broken image {self._named(path)} in {self._listing.root}; "
                    "without --strict it is left out"
                )

    def none_left(self, count: int, what: str) -> UserError:
        """What to raise when no image could be decoded."""
        return UserError(f"none of the {count:,} {what} in {self._listing.root} can be decoded")

    def _named(self, path: str) -> str:
        return f"{printable(path, self._listing.root)} ({self._broken[path]})"

    def _size(self) -> tuple[int, int]:
        return self.sample[1], self.sample[2]


class FolderFeed:
    """A `Feed` from workers: it waits for their batch, copies it, and normalises on the device."""

    def __init__(
        self, folder: Folder, batch: int, device: torch.device, seed: int, channels_last: bool
    ) -> None:
        self._folder = folder
        self._channels_last = channels_last
        self._device = device
        self._normal = IMAGENET.scale_and_shift(device)
        self._batches: Iterator[Batch] | None = folder.loader(batch, seed, device.type == "cuda")

    def fetch(self) -> Batch:
        """Wait for the next batch. UserError for a broken image when strict, or all broken."""
        assert self._batches is not None, "closed"
        batch = next(self._batches)
        self._folder.tell(batch.broken)
        if not len(batch.images):
            raise self._folder.none_left(self._folder.train_samples, "training images")
        return batch

    def place(self, fetched: object) -> tuple[Tensor, Tensor]:
        """Copy to the device, from pinned memory without waiting, and normalise there."""
        assert isinstance(fetched, Batch)
        return placed(fetched, self._device, *self._normal, self._channels_last)

    def close(self) -> None:
        """End the workers."""
        self._batches = None


def placed(
    batch: Batch,
    device: torch.device,
    scale: Tensor,
    shift: Tensor,
    channels_last: bool = False,
) -> tuple[Tensor, Tensor]:
    """A batch on the device, float32 and normalised; the copy is of bytes, a quarter of that."""
    images = laid_out(batch.images.to(device, non_blocking=True), channels_last)
    return (images * scale).add_(shift), batch.labels.to(device, non_blocking=True)
