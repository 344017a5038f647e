"""Files read from the disk itself: what memory holds of them is dropped, where that can be done."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import suppress
from pathlib import Path

from e2e.data.types import Arrays, Source

TRIED = 4  # files of a source
# Seconds to wait before each try to drop a file: pages that were just written or read may be held
# for a moment, longer on a busy machine.
TRIES_S = (0.0, 0.02, 0.05, 0.1, 0.2)


def drop(descriptor: int) -> None:
    """Ask the system to forget what it holds in memory of an open file."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def cannot_drop(path: str | Path) -> str | None:
    """Why a file stays in memory when it is dropped, or may do; None when it does not. OSError.

    Some file systems do nothing when they are asked to: those in memory, and those of sandboxes.
    """
    with open(path, "rb", buffering=0) as file:
        with suppress(OSError):  # where nothing can be written
            os.fsync(file.fileno())
        if not file.read(1):
            return None
        try:
            known = _in_memory(file.fileno())
            kept = all(_kept(file.fileno(), wait_s) for wait_s in TRIES_S)
        except OSError:
            known = kept = False
    if not known:
        return "no cold reads: the file system does not say what it holds in memory"
    return "no cold reads: the file system keeps in memory what it is to drop" if kept else None


def cold_missing(source: Source) -> str | None:
    """Why the files of a source cannot be read cold, by a few of them that can be read at all."""
    if isinstance(source, Arrays):
        return "no cold reads: these images lie in memory"
    pictures = source.pictures[:: max(1, len(source.pictures) // TRIED)][:TRIED]
    shards = itertools.islice(source.root.glob("*.tar"), TRIED)
    for path in [*(picture.path for picture in pictures), *shards]:
        with suppress(OSError):
            reason = cannot_drop(path)
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
