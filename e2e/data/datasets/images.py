"""Data sets of images, in memory or in a folder: their loaders are opened by name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from e2e.data.datasets.synthetic import Synthetic
from e2e.data.loaders import FIXED, LOADERS, backend_of, open_loader
from e2e.data.loaders.cpus import cores
from e2e.data.loaders.device_copy import Placer
from e2e.data.sources.listing import list_images, printable
from e2e.data.types import (
    ALL,
    IMAGENET,
    Arrays,
    Broken,
    Files,
    Loader,
    LoadSpec,
    Normal,
    Options,
    Source,
    some_of,
)
from microbench.errors import UserError

NAMED = 100  # broken images that the note names: of a broken archive not all


class Images(Synthetic):
    """The base of data sets of images from a source.

    UserError, at once, for a loader that does not exist, cannot run here, does not take the source,
    or does not train.
    """

    def __init__(
        self, name: str, source: Source, classes: int, normal: Normal, options: Options
    ) -> None:
        super().__init__(options, name, classes)
        self.source, self._normal = source, normal
        usual = "resident" if isinstance(source, Arrays) else "torchvision"
        self._usual = loader = options.loader or usual
        if loader not in FIXED and not backend_of(loader, source, options.device).trains:
            raise UserError(
                f"--loader {loader} only reads files and cannot train; choose another loader"
            )
        self._note_crowd(loader, options.workers)

    def load(self, spec: LoadSpec) -> Loader:
        """As `Data.load`: shuffled epochs. UserError for a loader that does not fit."""
        spec = replace(spec, loader=spec.loader or self._usual)
        if spec.loader in FIXED:
            return super().load(spec)
        share = self.options.share
        if share != ALL and LOADERS[spec.loader].reads_itself:
            raise UserError(
                f"--loader {spec.loader} has an order of its own, which GPUs cannot share"
            )
        self._note_crowd(spec.loader, spec.workers)
        height, width = self.sample[1:]
        spec = replace(
            spec, size=(height, width), normal=self._normal, share=share,
            on_broken=self.on_broken,
        )  # fmt: skip
        assert self.source
        return open_loader(self.source, spec)

    def _note_crowd(self, name: str, workers: int) -> None:
        if name in LOADERS and LOADERS[name].processes and workers > cores():
            self._notes[f"{workers} loader workers on {cores()} cores: they take turns"] = None

    def on_broken(self, broken: Sequence[Broken]) -> None:
        """Note broken files; arrays have none."""
        assert not broken


class InMemory(Images):
    """Decoded images in memory; loader "resident" shares one copy of them on the device."""

    def __init__(
        self, name: str, train: Arrays, kept: Arrays, normal: Normal, classes: int,
        options: Options | None = None,
    ) -> None:  # fmt: skip
        self.train, self.kept = train, kept
        self.train_samples, self.held_out_samples = len(train.images), len(kept.images)
        self._kept_on: dict[torch.device, tuple[Tensor, Tensor]] = {}
        # An object of its own: copies on a device live as long as it, not as long as `train`.
        source = Arrays(train.images, train.classes)
        options = options or Options(tuple(train.images.shape[1:]))
        super().__init__(name, source, classes, normal, options)

    def kept_batch(self, numbers: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
        """As `Data.kept_batch`: float32 [N, 3, H, W] and classes, int64 [N]."""
        if device not in self._kept_on:
            self._kept_on[device] = (self.kept.images.to(device), self.kept.classes.to(device))
        scale, shift = self._normal.scale_and_shift(device)
        images, classes = self._kept_on[device]
        some = torch.tensor(numbers, device=device)
        return (images[some] * scale).add_(shift), classes[some]


class Folder(Images):
    """Data from a folder. Broken images are left out; `notes` counts and names them."""

    def __init__(self, name: str, root: Path, options: Options) -> None:
        self._listing = listing = list_images(root)
        self._broken: dict[str, str] = {}
        self.train_samples, self.held_out_samples = len(listing.train), len(listing.held_out)
        source = Files(listing.train, root)
        super().__init__(name, source, len(listing.classes), IMAGENET, options)

    @property
    def notes(self) -> tuple[str, ...]:
        """The listing's notes, and the images found broken by now."""
        notes = (*self._listing.notes, *super().notes)
        count = len(self._broken)
        if not count:
            return notes
        named = ", ".join(self._named(path) for path in list(self._broken)[:NAMED])
        more = f" and {count - NAMED} more" if count > NAMED else ""
        images = "image" if count == 1 else "images"
        return (*notes, f"{count} broken {images} left out: {named}{more}")

    def held_out(
        self, batch: int, device: torch.device, count: int = 0
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """As `Data.held_out`: the centre of each image, decoded by Pillow whatever the loader.

        UserError when none can be decoded.
        """
        from e2e.data.loaders.images import once  # slow to load, and only needed here

        place, seen, some = Placer(device, IMAGENET), 0, None
        size = (self.sample[1], self.sample[2])
        workers, share = self.options.workers, self.options.share
        spec = LoadSpec(batch, device, 0, workers=workers, size=size, share=share)
        kept = self._listing.held_out
        kept = [kept[i] for i in some_of(len(kept), count)]
        for some in once(kept, spec):
            self.on_broken(some.broken)
            seen += len(some.images)
            if len(some.images):
                yield place(some.images, some.labels)
        if some is not None and not seen:
            raise UserError(
                f"none of the {len(kept):,} held-out images in {self._listing.root} can be decoded"
            )

    def on_broken(self, broken: Sequence[Broken]) -> None:
        """Note broken files."""
        self._broken |= dict(broken)

    def _named(self, path: str) -> str:
        below = os.path.relpath(path, self._listing.root)
        return f"{printable(below)} ({self._broken[path]})"
