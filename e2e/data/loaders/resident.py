"""Images kept on the device as uint8: sampled, cropped, flipped and normalised there.

Files are decoded once, to 256 pixels for every 224 that are wanted. It is loaded without
torchvision, which takes seconds and is not needed for images in memory.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from e2e.data.loaders.cpus import cores, free_shared_memory
from e2e.data.types import ALL, PREFETCH, Arrays, Files, Loader, LoadSpec, Source, laid_out
from microbench.device.host import available_memory_bytes
from microbench.errors import UserError

PADDING = 4  # pixels that a crop of a small image may lie beyond it, where the image is mirrored
CENTRE = 224 / 256  # of the shorter side: the centre crop of a held-out image
SHARE = 0.5  # of the device's free memory that images may take: training needs the rest


def kept_size(size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) in pixels of an image before crops of `size`: 256 for every 224."""
    return math.ceil(size[0] / CENTRE), math.ceil(size[1] / CENTRE)


def no_room(count: int, size: tuple[int, int], free_bytes: int | None) -> str | None:
    """Why `count` images for crops of `size` may not be kept on the device, or None.

    The limit is half of the free bytes; None if those are unknown.
    """
    needed = count * 3 * math.prod(kept_size(size))
    if free_bytes is None or needed <= SHARE * free_bytes:
        return None
    return (
        f"loader resident keeps {count:,} images in {needed / 1e9:,.1f} GB of the device's memory, "
        f"more than half of the {free_bytes / 1e9:,.1f} GB that are free; another --loader reads "
        "them as it goes"
    )


DECODED_AT_ONCE = 16
MOST_WORKERS = 16

Kept = tuple[Tensor, Tensor]
# All loaders of a source share its images, which go when the source does.
_kept: WeakKeyDictionary[Source, dict[tuple[tuple[int, int], torch.device], Kept]]
_kept = WeakKeyDictionary()


def open_loader(source: Source, spec: LoadSpec) -> Resident:
    """Images on the device; files are decoded now, once for all loaders of a source.

    UserError when they do not fit, or when none can be decoded.
    """
    by_size = _kept.setdefault(source, {})
    key = (spec.size, spec.device)
    if key not in by_size:
        if isinstance(source, Arrays):
            by_size[key] = source.images.to(spec.device), source.classes.to(spec.device)
        else:
            by_size[key] = _decoded(source, spec)
    return Resident(*by_size[key], spec)


def _decoded(files: Files, spec: LoadSpec) -> Kept:
    """Images, uint8 [N, 3, H, W], and classes, int64; broken files are left out and reported.

    It has workers of its own, whatever is wanted: nothing is measured meanwhile.
    """
    # These load slowly, and arrays do not need them.
    from e2e.data.loaders.images import middle, once
    from e2e.data.loaders.reading import none_left

    start_s = time.perf_counter()
    device, count = spec.device, len(files.pictures)
    on_gpu = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if on_gpu else available_memory_bytes()
    if reason := no_room(count, spec.size, free):
        raise UserError(reason)
    height, width = size = kept_size(spec.size)
    images = torch.empty((count, 3, height, width), dtype=torch.uint8, device=device)
    classes = torch.empty(count, dtype=torch.int64, device=device)
    at = 0
    some = _in_workers(replace(spec, size=size, batch=DECODED_AT_ONCE, share=ALL), count)
    for batch in once(files.pictures, some, middle(size, max(size))):
        spec.on_broken(batch.broken)
        good = len(batch.labels)
        if good:
            images[at : at + good] = batch.images
            classes[at : at + good] = batch.labels
        at += good
    if not at:
        raise none_left(files)
    took_s = time.perf_counter() - start_s
    spec.on_note(f"{at:,} images decoded once, in {took_s:.0f} s (workers: {some.workers})")
    return images[:at], classes[:at]


def _in_workers(spec: LoadSpec, count: int) -> LoadSpec:
    """The same with as many workers as there are cores, batches and shared memory for."""
    free, most = free_shared_memory(), min(MOST_WORKERS, cores(), count // spec.batch)
    if free is not None:
        # One batch more may be under way than the workers have ready.
        most = min(most, (free // spec.batch_bytes - 1) // PREFETCH)
    return replace(spec, workers=max(0, most))


class Resident(Loader):
    """Crops, flips and normalises on the device: six kernels per batch.

    Images larger than wanted are cropped anywhere inside, others up to PADDING pixels beyond their
    edges. The device draws the random numbers, so a seed gives other batches on another kind of
    device.
    """

    def __init__(self, images: Tensor, classes: Tensor, spec: LoadSpec) -> None:
        self._images, self._classes = images, classes
        self._batch, self._share = spec.batch, spec.share
        device = images.device
        self._generator = torch.Generator(device).manual_seed(spec.seed)
        self._scale, self._shift = spec.normal.scale_and_shift(device)
        self._rows = _crops(images.shape[2], spec.size[0]).to(device)
        columns = _crops(images.shape[3], spec.size[1])
        self._columns = torch.cat([columns, columns.flip(1)]).to(device)
        self._channels = torch.arange(images.shape[1], device=device).reshape(1, -1, 1, 1)
        self._drawn = self._epoch(len(images))

    def to_device(self, batch: object, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """The next images of the epoch, float32 [batch, 3, H, W], and classes, int64 [batch]."""
        rank, ranks = self._share
        whole = self._batch * ranks
        while self._drawn.shape[1] < whole:
            self._drawn = torch.cat([self._drawn, self._epoch(len(self._images))], dim=1)
        which, down, across = self._drawn[:, rank:whole:ranks]
        self._drawn = self._drawn[:, whole:]
        rows = self._rows[down][:, None, :, None]
        columns = self._columns[across][:, None, None, :]
        bytes_ = self._images[which[:, None, None, None], self._channels, rows, columns]
        bytes_ = laid_out(bytes_, channels_last)
        return (bytes_ * self._scale).add_(self._shift), self._classes[which]

    def _epoch(self, count: int) -> Tensor:
        """int64 [3, N]: every image once, and the rows and columns to cut from each."""
        device = self._channels.device
        order = torch.randperm(count, generator=self._generator, device=device)
        down, across = (
            torch.randint(len(table), (count,), generator=self._generator, device=device)
            for table in (self._rows, self._columns)
        )
        return torch.stack([order, down, across])


def _crops(side: int, size: int) -> Tensor:
    """int64 [crops, wanted]: which pixels each cut takes, mirrored beyond the edges."""
    assert size <= side
    beyond = PADDING if size == side else 0
    at = torch.arange(size) + torch.arange(-beyond, side - size + beyond + 1)[:, None]
    last = side - 1
    return last - (last - at.abs()).abs()
