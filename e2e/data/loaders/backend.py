"""What every loader back end is given and gives: the types that `LOADERS` is made of.

A back end is a module with `missing(device)` and `open_feed(source, wanted, tell)`, and its entry
in `LOADERS` (e2e/data/loaders/__init__.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from e2e.data.sources.data import IMAGENET, Feed, Normal
from e2e.data.sources.listing import Picture

PREFETCH = 2  # batches that each worker is ahead

Broken = tuple[str, str]  # a file and what is wrong with it
Tell = Callable[[Sequence[Broken]], None]  # counts and lists broken files; UserError when strict
Note = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Files:
    """Image files, and the folder that they lie in. Tar shards are `root`/*.tar."""

    pictures: Sequence[Picture]
    root: Path


@dataclass(frozen=True, eq=False)
class Arrays:
    """Decoded images, uint8 [N, 3, H, W], and their classes, int64 [N]."""

    images: Tensor
    classes: Tensor


Source = Files | Arrays


def _unheard(_: str) -> None:
    """Nobody asks."""


@dataclass(frozen=True)
class Wanted:
    """The batches that are wanted, and how they are to be made.

    `size` is (height, width). `cold`: each file is dropped from the page cache right before it is
    read. `on_death`: what to do when a worker dies, "stop" or "restart". `note` is told what the
    user should know, a line at a time.
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
    note: Note = _unheard

    @property
    def batch_bytes(self) -> int:
        """What a batch takes as bytes of pixels and classes."""
        return self.batch * (3 * self.size[0] * self.size[1] + 8)

    @property
    def pinned(self) -> bool:
        """Whether batches go to the device from pinned memory."""
        return self.device.type == "cuda"


class LoaderFeed(Feed, Protocol):
    """A `Feed` of which more is known. Nothing runs for it before its first `fetch`."""

    @property
    def ahead(self) -> int:
        """How many batches may be ready before anybody asks; 0 without workers."""
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


@dataclass(frozen=True)
class Backend:
    """How files or arrays become batches.

    `sources` are those it takes: "files", "arrays", "shards". `missing` says why it cannot run for
    a device here, None when it can. `processes`: whether it has workers. `trains`: whether its
    batches can be trained on. `on_gpu`: whether it makes them on the GPU, beside the training.
    """

    says: str
    sources: frozenset[str]
    missing: Callable[[torch.device], str | None]
    open: Callable[[Source, Wanted, Tell], LoaderFeed]
    processes: bool = True
    trains: bool = True
    on_gpu: bool = False


def kinds_of(source: Source) -> frozenset[str]:
    """Which of a back end's `sources` this is."""
    if isinstance(source, Arrays):
        return frozenset(("arrays",))
    return frozenset(("files", "shards") if any(source.root.glob("*.tar")) else ("files",))
