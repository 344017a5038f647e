"""A folder of made data: whose it is, what is in it, and its being written by one process only."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.data.synthetic_jpeg.manifest import Entry, Manifest, is_part, read_entries, read_manifest
from e2e.data.synthetic_jpeg.plan import HELD_OUT, TRAIN, Plan
from microbench.errors import UserError

MEAN_BYTES = 110_000  # of an image, about
BLOCK_BYTES = 4096  # of a file system: each file wastes half of one
TAR_BYTES = 2560  # that a tar file adds to an image and its label


@dataclass(frozen=True)
class Found:
    """What is in a folder: images that are listed and have the size listed there, and leavings."""

    manifest: Manifest | None
    entries: dict[int, Entry]
    parts: list[Path]  # half written

    @property
    def is_finished(self) -> bool:
        """Whether every image was there once."""
        return self.manifest is not None and self.manifest.files_sha256 is not None


def look_into(folder: Path, plan: Plan) -> Found:
    """What is there; nothing is changed. UserError when the folder holds anything else."""
    manifest = owned(folder, plan)
    if manifest is None:
        return Found(None, {}, [])
    sizes, parts = files_in(folder)
    entries = {
        index: entry
        for index, entry in read_entries(folder, plan).items()
        if sizes.get(plan.path(index)) == entry.size_bytes
    }
    strange = [path for path in sizes if plan.index_of(path) is None]
    if strange:
        raise UserError(f"{folder} holds what was not made, {strange[0]}: take it out of there")
    return Found(manifest, entries, parts)


def owned(folder: Path, plan: Plan) -> Manifest | None:
    """The manifest of this plan, None where nothing is yet. UserError for what is another's."""
    try:
        names = [name for name in os.listdir(folder) if not is_part(name)]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{folder} cannot be used as a folder: {error.strerror}") from None
    manifest = read_manifest(folder)
    if manifest is None:
        if names:
            raise UserError(f"{folder} is not empty and holds no made data; name another folder")
        return None
    if manifest.plan != plan:
        raise UserError(
            f"{folder} holds {manifest.plan.in_words()}, not {plan.in_words()}; name another folder"
        )
    return manifest


def files_in(folder: Path) -> tuple[dict[str, int], list[Path]]:
    """The files of train and val with their bytes, and those that are half written."""
    sizes: dict[str, int] = {}
    parts: list[Path] = []
    for part in (TRAIN, HELD_OUT):
        for here, _, names in os.walk(folder / part):
            inside = os.path.relpath(here, folder)
            for name in names:
                if is_part(name):
                    parts.append(Path(here, name))
                else:
                    sizes[f"{inside}/{name}"] = os.lstat(os.path.join(here, name)).st_size
    return sizes, parts


def check_space(folder: Path, images: int, packed: int) -> None:
    """UserError when the disk has no room for so many images and so many more in tar files."""
    needed = images * (MEAN_BYTES + BLOCK_BYTES // 2) + packed * (MEAN_BYTES + TAR_BYTES)
    home = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(home).free
    if needed > free:
        raise UserError(
            f"{images:,} images{' and their tar files' if packed else ''} need about "
            f"{needed / 1e9:.1f} GB, and {home} has {free / 1e9:.1f} GB free; "
            "ask for fewer --images or name a folder on another disk"
        )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Only one process at a time. UserError when another one is at it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise UserError(f"another process makes images in {folder}; wait until it ends") from None
    finally:
        os.close(handle)
