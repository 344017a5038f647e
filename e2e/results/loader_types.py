"""A loader's measurement: batches loaded and copied to the device, no training.

Its types, and their form in the run file's `results`, checked when read.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Annotated

from msgspec import Meta

from e2e.case import TrainCase
from microbench.results.codec import decode
from microbench.results.types import (
    STATUSES,
    Amount,
    AtLeastOne,
    Count,
    Interval,
    Json,
    Positive,
    Timed,
    Warning,
)
from microbench.timing.stats import median_interval

OP = "load"


@dataclass(frozen=True)
class LoadCase:
    """What is loaded, and how. `input` is the shape of one sample ("3x224x224").

    `loader` is a back end of `e2e.data.loaders` with `workers` processes; every field is one of
    `TrainCase` too.
    """

    data: str
    loader: str
    batch: AtLeastOne
    input: str
    workers: Count = 0
    cold: bool = False
    prefetch: Count = 0
    cpus: Count = 0

    @property
    def op(self) -> str:
        """The kind of result, as the run file names it."""
        return OP

    @cached_property
    def key(self) -> str:
        """Stable identity, the same in every run of every version."""
        parts = [f"{f.name}={getattr(self, f.name)}" for f in fields(self)]
        return f"{OP}/{','.join(parts)}"


def load_case(case: TrainCase) -> LoadCase:
    """The loader of a training, alone."""
    return LoadCase(**{f.name: getattr(case, f.name) for f in fields(LoadCase)})


@dataclass(frozen=True)
class LoadBlock:
    """A stretch of loading without a stop, in seconds.

    `cpu_s` is CPU time of the workers and of the process that reads from them, over all cores; None
    where it cannot be measured. `read_bytes` are the file sizes of what was read.
    """

    images: AtLeastOne
    wall_s: Positive
    cpu_s: Amount | None = None
    read_bytes: Count | None = None


@dataclass(frozen=True)
class Loading:
    """One loader, measured alone. `first_s`: seconds to the first batch, with process start."""

    case: LoadCase
    status: Annotated[str, Meta(pattern=f"^({'|'.join(STATUSES)})\\Z")]
    reason: str | None = None
    blocks: tuple[LoadBlock, ...] = ()
    first_s: Amount | None = None
    warnings: tuple[Warning, ...] = ()

    @property
    def timed(self) -> Timed | None:
        """Seconds per image; None if not measured."""
        ends = self.ci95_per_s
        image_s = (1 / ends[1], 1 / ends[0]) if ends else None
        return Timed(1 / self.per_s, image_s) if self.per_s else None

    @property
    def changed_in(self) -> tuple[int, ...]:
        """Loaders are measured as they always were."""
        return ()

    def caveat(self, other: Loading) -> str:
        """Always "": times of loaders need no remark when compared."""
        return ""

    @property
    def images(self) -> int:
        """Images of all blocks."""
        return sum(block.images for block in self.blocks)

    @property
    def wall_s(self) -> float:
        """Wall seconds of all blocks."""
        return math.fsum(block.wall_s for block in self.blocks)

    @property
    def per_s(self) -> float | None:
        """Images per second over all blocks; None if not measured."""
        return self.images / self.wall_s if self.wall_s > 0 else None

    @property
    def ci95_per_s(self) -> Interval | None:
        """95 % interval of images per second, from the blocks; None for fewer than two."""
        interval_s = median_interval([(block.wall_s / block.images,) for block in self.blocks])
        return (1 / interval_s[1], 1 / interval_s[0]) if interval_s else None

    @property
    def cpu_s_per_image(self) -> float | None:
        """CPU seconds per image, over all cores; None if not measured."""
        if not self.blocks or any(block.cpu_s is None for block in self.blocks):
            return None
        return math.fsum(block.cpu_s or 0.0 for block in self.blocks) / self.images

    @property
    def per_s_per_core(self) -> float | None:
        """Images per CPU second: what one busy core loads. None if not measured."""
        cpu_s = self.cpu_s_per_image
        return 1 / cpu_s if cpu_s else None

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes of files read per second; None if not counted."""
        if not self.blocks or any(block.read_bytes is None for block in self.blocks):
            return None
        return sum(block.read_bytes or 0 for block in self.blocks) / self.wall_s


def to_json(loading: Loading) -> Json:
    """The measurement as the schema has it: raw blocks, and rates per second."""
    bytes_per_s = loading.bytes_per_s
    return {
        "op": OP,
        **asdict(loading),
        "images_per_s": loading.per_s,
        "ci95_images_per_s": loading.ci95_per_s,
        "images_per_s_per_core": loading.per_s_per_core,
        "read_mb_per_s": bytes_per_s / 1e6 if bytes_per_s is not None else None,
    }


def from_json(data: Json, where: str) -> Loading:
    """The inverse of `to_json`. ValueError names the field that is wrong."""
    loading = decode(Loading, data, where)
    if loading.status == "ok" and not loading.blocks:
        raise ValueError(f"{where} is ok and has no blocks")
    return loading
