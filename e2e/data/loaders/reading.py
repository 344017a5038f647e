"""Image files: read, from the page cache or cold, and decoded; and the back end that only reads.

A cold read drops the file from the page cache first, where the system can do that.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from torch.utils.data import Dataset

from e2e.data.loaders.workers import SeededIndex, Shuffled, Workers
from e2e.data.types import Broken, Files, ImageFile, LoadSpec, Source
from kernels.messages import first_line

TRIED = 4  # files of a source
# Seconds to wait before each try to drop a file: pages that were just written or read may be held
# for a moment, longer on a busy machine.
TRIES_S = (0.0, 0.02, 0.05, 0.1, 0.2)


def read(path: str, cold: bool = False) -> bytes:
    """A file's bytes; if `cold`, from the disk, not from memory. OSError if it cannot be read."""
    with open(path, "rb", buffering=0) as file:
        if cold:
            drop(file.fileno())
        return file.read()


def drop(descriptor: int) -> None:
    """Ask the system to drop an open file from the page cache."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def cannot_drop(path: str | Path) -> str | None:
    """Why a file may stay in memory when it is dropped, or None. OSError if it cannot be read.

    Some file systems ignore the request: those in memory, and those of sandboxes.
    """
    with open(path, "rb", buffering=0) as file:
        with suppress(OSError):  # where nothing can be written
            os.fsync(file.fileno())
        if not file.read(1):
            return None
        with suppress(OSError):
            if _in_memory(file.fileno()):
                kept = all(_kept(file.fileno(), wait_s) for wait_s in TRIES_S)
                return "no cold reads: the file system keeps what it is to drop" if kept else None
    return "no cold reads: the file system does not say what it holds in memory"


def cold_missing(source: Source | None) -> str | None:
    """Why the files of a source cannot be read cold, or None; tried with a few readable ones."""
    if not isinstance(source, Files):
        return "no cold reads: these images lie in memory" if source else "there are no files"
    for picture in source.pictures[:: max(1, len(source.pictures) // TRIED)][:TRIED]:
        with suppress(OSError):
            reason = cannot_drop(picture.path)
            if reason:
                return reason
    return None


def _kept(descriptor: int, wait_s: float) -> bool:
    time.sleep(wait_s)
    drop(descriptor)
    return _in_memory(descriptor)


def _in_memory(descriptor: int) -> bool:
    """Whether memory holds the beginning of a file. OSError where the system cannot tell."""
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    return True


class Read(NamedTuple):
    """How many files were read, and how many bytes."""

    files: int
    size_bytes: int
    broken: list[Broken]


def open_loader(source: Source, spec: LoadSpec) -> ReadLoader:
    """The files in the order in which training reads them."""
    assert isinstance(source, Files)
    return ReadLoader(
        _Files(source.pictures, spec.cold),
        spec,
        batch_sampler=Shuffled(len(source.pictures), spec.batch, spec.seed, spec.share),
        collate_fn=_added_up,
    )


class ReadLoader(Workers):
    """Only reads; its batches cannot be trained on."""

    def __next__(self) -> Read:
        """Wait until the next batch is read."""
        read_: Read = super().__next__()
        self._spec.on_broken(read_.broken)
        return read_


class _Files(Dataset[Read]):
    def __init__(self, pictures: Sequence[ImageFile], cold: bool) -> None:
        self._pictures, self._cold = pictures, cold

    def __getitem__(self, draw: SeededIndex) -> Read:
        path = self._pictures[draw[0]].path
        try:
            return Read(1, len(read(path, self._cold)), [])
        except OSError as error:
            return Read(0, 0, [(path, short(error))])


def _added_up(parts: Sequence[Read]) -> Read:
    broken = [file for part in parts for file in part.broken]
    return Read(sum(part.files for part in parts), sum(part.size_bytes for part in parts), broken)


# ---------------------------------------------------------------- decoded


def decode(content: bytes) -> Image.Image:
    """The image in a file's bytes as RGB, upright. Raises Pillow's error for a broken one."""
    with warnings.catch_warnings(action="ignore"), Image.open(BytesIO(content)) as image:
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        if image.mode == "RGB":
            return image
        if image.mode == "I" or image.mode.startswith("I;16"):
            return _of_16_bits(image)
        return image.convert("RGB")


def short(error: Exception) -> str:
    """What is wrong with a file, in at most 80 characters without its path."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return first_line(error)[:80]


def _of_16_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    if values.max() > 255:
        values >>= 8
    return Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert("RGB")
