"""Tar shards by webdataset's own pipeline in workers; decoded and cropped as by torchvision.

A sample is two members of one name, NAME.jpg (or .jpeg, .png, .webp) and NAME.cls, its class as a
number. Each worker has its own shards, in a new order each epoch, and draws from a buffer.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from e2e.data.loaders.images import ImageLoader, Sample, random_crop, seeded, together
from e2e.data.loaders.reading import decode, drop, none_left, short
from e2e.data.types import Broken, Files, LoadSpec, Source
from microbench.errors import UserError

BUFFER = 1000  # undecoded images of a worker from which the next is drawn
SUFFIXES = ("jpg", "jpeg", "png", "webp")

Raw = dict[str, Any]  # a shard, or a sample of webdataset: its name, its shard, bytes by suffix


def missing(device: torch.device) -> str | None:
    """Why it cannot run, or None: webdataset is not installed."""
    if find_spec("webdataset") is None:
        return "webdataset is not installed; pip install 'halfway[loaders]'"
    return None


def open_loader(source: Source, spec: LoadSpec) -> ImageLoader:
    """Endless batches in an order that follows from the seed and the number of workers.

    UserError when there are fewer shards than workers.
    """
    assert isinstance(source, Files)
    paths = sorted(str(path) for path in source.root.glob("*.tar"))
    if len(paths) < spec.workers:
        raise UserError(
            f"{source.root} has {len(paths)} tar shards for {spec.workers} workers, each of "
            f"which needs one: at most --workers {len(paths)}"
        )
    samples = _Samples(source, spec)
    wds: Any = import_module("webdataset")
    epochs = wds.DataPipeline(
        wds.SimpleShardList(paths),
        wds.split_by_worker,
        wds.detshuffle(len(paths), seed=spec.seed),
        samples.opened,
        wds.tarfile_to_samples(handler=samples.heard),
        wds.detshuffle(BUFFER, seed=spec.seed),
        samples,
    ).repeat()
    batches = wds.DataPipeline(epochs, wds.batched(spec.batch, collation_fn=together))
    return ImageLoader(batches, source, spec, None)


class _Samples:
    """Stages of the pipeline. What is broken goes with the next good image, in its place."""

    def __init__(self, files: Files, spec: LoadSpec) -> None:
        self._files, self._cold, self._cut = files, spec.cold, random_crop(spec.size)
        self._classes = 1 + max(picture.label for picture in files.pictures)
        self._random = random.Random(spec.seed)
        self._broken: list[Broken] = []
        self._shard = ""

    def opened(self, shards: Iterable[Raw]) -> Iterator[Raw]:
        """The same shards, each noted, and read from the disk if so asked."""
        for shard in shards:
            self._shard = shard["url"]
            if self._cold:
                with open(self._shard, "rb") as file:
                    drop(file.fileno())
            yield shard

    def heard(self, error: Exception) -> bool:
        """Note what webdataset says of a shard, once: it appends the stream to the error's text."""
        if all(path != self._shard for path, _ in self._broken):
            text = str(error.args[0]).partition(" @ ")[0] if error.args else ""
            self._broken.append((self._shard, text or type(error).__name__))
        return True  # go on with the next sample

    def __call__(self, raws: Iterable[Raw]) -> Iterator[Sample]:
        """An epoch of images. UserError when none of them is good."""
        good = False
        for raw in raws:
            try:
                sample = self._decoded(raw)
            except Exception as error:  # decoders raise nearly anything on broken files
                self._broken.append((f"{raw['__url__']}/{raw['__key__']}", short(error)))
                continue
            good, self._broken = True, []
            yield sample
        if not good:
            raise none_left(self._files)

    def _decoded(self, raw: Raw) -> Sample:
        if "cls" not in raw:
            raise ValueError("no class: it lacks a .cls")
        label = int(raw["cls"])
        if not 0 <= label < self._classes:
            raise ValueError(f"class {label}, where there are {self._classes}")
        image = next((raw[suffix] for suffix in SUFFIXES if suffix in raw), None)
        if image is None:
            raise ValueError("no image in it")
        pixels = seeded(self._cut, decode(image), self._random.getrandbits(62))
        return Sample(pixels, label, self._broken)
