"""Image files decoded once, and kept as bytes on the device."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from e2e.data.loaders.cpus import cores, free_shared_memory
from e2e.data.loaders.crop_sizes import kept_size, no_room
from e2e.data.loaders.pillow import middle, once
from e2e.data.loaders.pixels import none_left
from e2e.data.types import Files, Tell, Wanted
from microbench.device.host import available_memory_bytes
from microbench.errors import UserError

DECODED_AT_ONCE = 16
MOST_WORKERS = 16


def decoded(files: Files, wanted: Wanted, tell: Tell) -> tuple[Tensor, Tensor]:
    """Images, uint8 [N, 3, H, W] with 256 pixels for every 224 that are wanted, and classes, int64.

    Broken files are left out and reported. It has workers of its own, whatever is wanted: nothing
    is measured meanwhile; `note` gets the time it took. UserError when the images do not fit into
    SHARE of the device's free memory, or none can be decoded.
    """
    start_s = time.perf_counter()
    height, width = size = kept_size(wanted.size)
    count = len(files.pictures)
    _check_memory(count, wanted.size, wanted.device)
    images = torch.empty((count, 3, height, width), dtype=torch.uint8, device=wanted.device)
    classes = torch.empty(count, dtype=torch.int64, device=wanted.device)
    at = 0
    some = _in_workers(replace(wanted, size=size, batch=DECODED_AT_ONCE), count)
    for batch in once(files.pictures, some, middle(size, max(size))):
        tell(batch.broken)
        good = len(batch.labels)
        if good:
            images[at : at + good] = batch.images
            classes[at : at + good] = batch.labels
        at += good
    if not at:
        raise none_left(files)
    took_s = time.perf_counter() - start_s
    wanted.note(f"{at:,} images decoded once, in {took_s:.0f} s (workers: {some.workers})")
    return images[:at], classes[:at]


def _in_workers(wanted: Wanted, count: int) -> Wanted:
    """The same with as many workers as there are cores, batches and shared memory for."""
    free, most = free_shared_memory(), min(MOST_WORKERS, cores(), count // wanted.batch)
    if free is not None:
        # One batch more may be under way than the workers have ready.
        most = min(most, (free // wanted.batch_bytes - 1) // wanted.prefetch)
    return replace(wanted, workers=max(0, most))


def _check_memory(count: int, size: tuple[int, int], device: torch.device) -> None:
    on_gpu = device.type == "cuda"
    reason = no_room(
        count, size, torch.cuda.mem_get_info(device)[0] if on_gpu else available_memory_bytes()
    )
    if reason:
        raise UserError(reason)
