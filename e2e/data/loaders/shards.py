"""Tar shards, read sequentially by webdataset in workers; decoded and cropped as by torchvision.

A sample is two members of one name, NAME.jpg (or .jpeg, .png, .webp) and NAME.cls, its class as a
number. Each worker has its own shards, in a new order each epoch, and draws from a buffer.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, BinaryIO

import torch
from torch import Tensor
from torch.utils.data import Dataset

from e2e.data.loaders.decode import decode, short
from e2e.data.loaders.pillow import random_cut
from e2e.data.loaders.pixels import PixelFeed, Sample, seeded
from e2e.data.loaders.reading import drop
from e2e.data.types import Broken, Files, Source, Tell, Wanted
from microbench.errors import UserError

BUFFER = 1000  # undecoded images of a worker from which the next is drawn; broken ones of a batch
TAR_BLOCK = 512
SUFFIXES = ("jpg", "jpeg", "png", "webp")

Raw = dict[str, Any]  # a sample of webdataset: its name, its shard, bytes by suffix


def missing(device: torch.device) -> str | None:
    """Why it cannot run, or None: webdataset is not installed."""
    if find_spec("webdataset") is None:
        return "webdataset is not installed; pip install 'halfway[loaders]'"
    return None


def open_feed(source: Source, wanted: Wanted, tell: Tell) -> PixelFeed:
    """Endless batches in an order that follows from the seed and the number of workers.

    UserError when there are fewer shards than workers.
    """
    assert isinstance(source, Files)
    paths = sorted(str(path) for path in source.root.glob("*.tar"))
    if len(paths) < wanted.workers:
        raise UserError(
            f"{source.root} has {len(paths)} tar shards for {wanted.workers} workers, each of "
            f"which needs one: at most --workers {len(paths)}"
        )
    classes = 1 + max(picture.label for picture in source.pictures)
    samples = _Shards(paths, classes, random_cut(wanted.size), wanted)
    return PixelFeed(samples, source, wanted, tell, ([number] for number in itertools.count()))


class _Shards(Dataset[Sample]):
    """Whole batches by their number: DataLoader gives batch n to worker n % workers, which reads
    its shards in a row.
    """

    def __init__(
        self, paths: Sequence[str], classes: int, cut: Callable[[Any], Tensor], wanted: Wanted
    ) -> None:
        self._paths, self._classes, self._cut = paths, classes, cut
        self._wanted = wanted
        self._raw: Iterator[tuple[Raw, int]] | None = None
        self._broken: list[Broken] = []
        self._reading = ""

    def __getitems__(self, numbers: list[int]) -> list[Sample]:
        """The samples of a batch. The next good one takes the place of a broken one."""
        (number,) = numbers
        workers = max(1, self._wanted.workers)
        self._raw = self._raw or self._drawn(number % workers, workers)
        samples: list[Sample] = []
        for parts, seed in itertools.islice(self._raw, self._wanted.batch + BUFFER):
            try:
                label = self._label(parts)
                image = next((parts[suffix] for suffix in SUFFIXES if suffix in parts), None)
                if image is None:
                    raise ValueError("no image in it")
                samples.append(Sample(seeded(self._cut, decode(image), seed), label, []))
            except Exception as error:  # decoders raise nearly anything on broken files
                name = os.path.join(str(parts["__url__"]), str(parts["__key__"]))
                self._broken.append((name, short(error)))
            if len(samples) == self._wanted.batch:
                break
        broken, self._broken = self._broken, []
        return [*samples, Sample(None, 0, broken)]

    def _label(self, parts: Raw) -> int:
        if "cls" not in parts:
            raise ValueError("no class: it lacks a .cls")
        label = int(parts["cls"])
        if not 0 <= label < self._classes:
            raise ValueError(f"class {label}, where there are {self._classes}")
        return label

    def _drawn(self, worker: int, workers: int) -> Iterator[tuple[Raw, int]]:
        """Samples of a worker's shards in random order, each with a seed, epoch after epoch."""
        shuffle = import_module("webdataset").shuffle
        random_ = random.Random(f"{self._wanted.seed} {worker}")
        stream = self._epochs(self._paths[worker::workers], random.Random(random_.random()))
        for raw in shuffle(BUFFER, rng=random.Random(random_.random()))(stream):
            yield raw, random_.getrandbits(62)

    def _epochs(self, paths: Sequence[str], random_: random.Random) -> Iterator[Raw]:
        tariterators = import_module("webdataset.tariterators")
        while True:
            order = random_.sample(paths, len(paths))
            files = tariterators.tar_file_expander(self._opened(order), handler=self._heard)
            found = 0
            for raw in tariterators.group_by_keys(files, handler=self._heard):
                found += 1
                yield raw
            if not found:
                return

    def _opened(self, paths: Sequence[str]) -> Iterator[dict[str, str | BinaryIO]]:
        for path in paths:
            self._reading = path
            try:
                with open(path, "rb") as file:
                    if self._wanted.cold:
                        drop(file.fileno())
                    if _is_cut_short(file):  # where tarfile says nothing
                        self._broken.append((path, "cut short"))
                    yield {"url": path, "stream": file}
            except OSError as error:
                self._broken.append((path, short(error)))

    def _heard(self, error: Exception) -> bool:
        """Note webdataset's message about a shard: it appends the stream to the error's text."""
        said = str(error.args[0]).partition(" @ ")[0] if error.args else type(error).__name__
        if all(path != self._reading for path, _ in self._broken):
            self._broken.append((self._reading, said))
        return True  # continue with the next sample


def _is_cut_short(file: BinaryIO) -> bool:
    """Whether a tar file lacks the block of zeros at its end."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - TAR_BLOCK))
    last = file.read()
    file.seek(0)
    return bool(end % TAR_BLOCK) or last != bytes(TAR_BLOCK)
