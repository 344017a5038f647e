"""Tar files of the images to train on, as webdataset reads them: NUMBER.jpg and NUMBER.cls."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from e2e.data.synthetic_jpeg.manifest import Shard, part_of
from e2e.data.synthetic_jpeg.parallel import spread
from e2e.data.synthetic_jpeg.plan import TRAIN, Plan


def pack(folder: Path, plan: Plan, shards: int, processes: int) -> Generator[Shard, None, None]:
    """Write the tar files, in any order. The images are spread evenly and keep their order."""
    indices = [index for index in range(plan.images) if not plan.is_held_out(index)]
    ends = [len(indices) * number // shards for number in range(shards + 1)]
    tasks = [
        (name_of(number), indices[ends[number] : ends[number + 1]]) for number in range(shards)
    ]
    return spread(partial(_packed, folder, plan), tasks, processes)


def name_of(number: int) -> str:
    """A tar file's name."""
    return f"{TRAIN}-{number:06}.tar"


def _packed(folder: Path, plan: Plan, task: tuple[str, list[int]]) -> Shard:
    name, indices = task
    part = part_of(folder / name)
    try:
        with part.open("wb") as file:
            counted = _Counted(file)
            with tarfile.open(fileobj=counted, mode="w|", format=tarfile.USTAR_FORMAT) as tar:
                for index in indices:
                    _add(tar, f"{index:08}.jpg", (folder / plan.path(index)).read_bytes())
                    _add(tar, f"{index:08}.cls", str(plan.label(index)).encode())
        part.replace(folder / name)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return Shard(name, counted.size_bytes, counted.digest.hexdigest())


def _add(tar: tarfile.TarFile, name: str, raw: bytes) -> None:
    member = tarfile.TarInfo(name)  # no owner and no time: the same bytes everywhere
    member.size = len(raw)
    tar.addfile(member, io.BytesIO(raw))


class _Counted(io.RawIOBase):
    """A file that is only written to, with its bytes counted and their checksum taken."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size_bytes = 0
        self.digest = hashlib.sha256()

    def write(self, raw: bytes, /) -> int:  # type: ignore[override]
        self.size_bytes += len(raw)
        self.digest.update(raw)
        return self._file.write(raw)
