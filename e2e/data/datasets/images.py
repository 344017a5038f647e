"""Data sets of images, whose feeds are opened by the name of a loader."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from e2e.data.datasets.synthetic import Synthetic
from e2e.data.loaders import FIXED, LOADERS, backend_of, open_feed, usual
from e2e.data.loaders.cpus import cores
from e2e.data.types import PREFETCH, LoaderFeed, Normal, Source, Tell, Wanted
from microbench.errors import UserError


@dataclass(frozen=True)
class Reading:
    """How data is read where a feed is not asked otherwise.

    `loader` None is the usual one of the data. `on_death` says what to do when a worker dies.
    `device`, where it is known, is what the loader must be able to run for.
    """

    loader: str | None = None
    workers: int = 0
    on_death: str = "stop"
    device: torch.device | None = None


class Images:
    """A data set of images from a source; the base of the kinds of them.

    UserError, at once, for a loader that does not exist, cannot run here, does not take the source,
    or does not train.
    """

    def __init__(
        self,
        source: Source,
        sample: tuple[int, ...],
        classes: int,
        normal: Normal,
        reading: Reading,
        tell: Tell,
    ) -> None:
        self.source, self.sample, self.classes = source, sample, classes
        self._normal, self._tell, self._reading = normal, tell, reading
        self._noise = Synthetic(sample, classes)
        self._usual = reading.loader or usual(source)
        self._notes: dict[str, None] = {}
        self._check(self._usual)
        self._note_crowd(self._usual, reading.workers)

    @property
    def notes(self) -> tuple[str, ...]:
        """What there is to say of workers by now."""
        return tuple(self._notes)

    def feed(
        self, batch: int, device: torch.device, seed: int, *, channels_last: bool = False,
        loader: str | None = None, workers: int | None = None, cold: bool = False,
        prefetch: int = 0,
    ) -> LoaderFeed:  # fmt: skip
        """As `Data.feed`: shuffled epochs, one after another. UserError for a loader that does not
        fit.
        """
        name = loader or self._usual
        if name in FIXED:
            return self._noise.feed(batch, device, seed, channels_last=channels_last, loader=name)
        workers = self._reading.workers if workers is None else workers
        self._note_crowd(name, workers)
        height, width = self._noise.sample[1:]
        wanted = Wanted(
            (height, width), batch, seed, device, workers, channels_last, cold,
            self._reading.on_death, self._normal, prefetch or PREFETCH, self._note,
        )  # fmt: skip
        return open_feed(name, self.source, wanted, self._tell)

    def _check(self, name: str) -> None:
        if name not in FIXED and not backend_of(name, self.source, self._reading.device).trains:
            raise UserError(f"loader {name} cannot be trained with: it gives no images")

    def _note_crowd(self, name: str, workers: int) -> None:
        if name in LOADERS and LOADERS[name].processes and workers > cores():
            self._note(f"{workers} loader workers on {cores()} cores: they take turns")

    def _note(self, said: str) -> None:
        self._notes[said] = None
