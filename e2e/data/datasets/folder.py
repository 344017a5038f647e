"""Images in class folders, as the user has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from e2e.data.datasets.images import Images, Reading
from e2e.data.loaders.device_copy import Placer
from e2e.data.loaders.pillow import once
from e2e.data.sources.listing import Listing, list_images, printable
from e2e.data.types import IMAGENET, Files, Wanted
from microbench.errors import UserError

NAMED = 100  # broken images that the note names: of a broken archive not all


class Folder(Images):
    """Data from a folder. Broken images are left out, and `notes` counts and names them.

    When `strict`, the first broken image is a UserError: here, from a feed's `fetch`, or from
    `held_out`.
    """

    def __init__(
        self,
        root: Path,
        sample: tuple[int, ...],
        *,
        strict: bool,
        reading: Reading,
        name: str = "folder",
        generated: bool = False,
    ) -> None:
        self.name, self.generated = name, generated
        self._strict = strict
        self._listing: Listing = list_images(root)
        self._broken: dict[str, str] = {}
        self.tell(self._listing.broken.items())
        source, classes = Files(self._listing.train, root), len(self._listing.classes)
        super().__init__(source, sample, classes, IMAGENET, reading, self.tell)

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
        notes = (*self._listing.notes, *super().notes)
        if not self._broken:
            return notes
        count = len(self._broken)
        named = ", ".join(self._named(path) for path in list(self._broken)[:NAMED])
        more = f" and {count - NAMED} more" if count > NAMED else ""
        images = "image" if count == 1 else "images"
        return (*notes, f"{count} broken {images} left out: {named}{more}")

    def held_out(self, batch: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """The centre of every held-out image that can be decoded, by Pillow whatever the loader.

        UserError when none can.
        """
        place, seen = Placer(device, IMAGENET), 0
        size = (self.sample[1], self.sample[2])
        wanted = Wanted(
            size, batch, 0, device, self._reading.workers, on_death=self._reading.on_death
        )
        for some in once(self._listing.held_out, wanted):
            self.tell(some.broken)
            seen += len(some.images)
            if len(some.images):
                yield place(some.images, some.labels)
        if not seen:
            raise UserError(
                f"none of the {self.held_out_samples:,} held-out images in {self._listing.root} "
                "can be decoded"
            )

    def tell(self, broken: Iterable[tuple[str, str]]) -> None:
        """Note broken files. UserError when strict."""
        for path, reason in broken:
            self._broken[path] = reason
            if self._strict:
                raise UserError(
                    f"broken image {self._named(path)} in {self._listing.root}; "
                    "without --strict it is left out"
                )

    def _named(self, path: str) -> str:
        return f"{printable(path, self._listing.root)} ({self._broken[path]})"
