"""Made data on disk: what is missing is made, what is there is left as it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from e2e.data.synthetic_jpeg.class_attributes import look_of
from e2e.data.synthetic_jpeg.folder import Found, check_space, locked, look_into
from e2e.data.synthetic_jpeg.manifest import (
    FILES,
    FORMAT,
    Entry,
    Manifest,
    Shard,
    line_of,
    put,
    size_of_file,
    software,
    write_manifest,
)
from e2e.data.synthetic_jpeg.parallel import spread
from e2e.data.synthetic_jpeg.picture import jpeg
from e2e.data.synthetic_jpeg.plan import Plan, checked_plan
from e2e.data.synthetic_jpeg.shards import pack
from e2e.data.synthetic_jpeg.sizes import size_of
from e2e.data.synthetic_jpeg.textures import fields
from kernels.tuned import user_directory
from microbench.device.host import usable_cores
from microbench.errors import UserError

CHUNK = 16  # images that a process makes before it tells of them
OnProgress = Callable[[int, int], None]  # images that are there, and those wanted


@dataclass(frozen=True)
class Made:
    """A folder of made data; `made` images are new, `there` were in it before."""

    folder: Path
    images: int
    classes: int
    mean_bytes: float
    made: int
    there: int


@dataclass(frozen=True)
class Job:
    """What to make, where, and with how many processes."""

    folder: Path
    plan: Plan
    shards: int
    processes: int


def make(
    folder: Path,
    images: int,
    classes: int,
    seed: int = 1,
    *,
    shards: int = 0,
    processes: int | None = None,
    on_progress: OnProgress,
) -> Made:
    """Make images in a folder, or what is missing of them; `shards` tar files too, if above 0.

    Which pixels an image has depends on the seed, its number and its class alone. Stopped in the
    middle, the next call goes on. UserError for numbers that make no sense, a folder that holds
    anything else, a disk without room, and a file that cannot be written.
    """
    job = Job(folder, checked_plan(images, classes, seed), shards, _processes(processes))
    trained = images - job.plan.held_out_images()
    if not 0 <= shards <= trained:
        raise UserError(f"--shards takes 0 to {trained:,}, one image each at least, not {shards}")
    found = look_into(folder, job.plan)
    on_progress(len(found.entries), images)
    entries = found.entries
    if not _is_whole(job, found):
        check_space(folder, images - len(entries), trained if shards else 0)
        found, entries = _completed(job, on_progress)
    there = sum(found.entries.get(index) is entry for index, entry in entries.items())
    mean_bytes = fmean(entry.size_bytes for entry in entries.values())
    return Made(folder, images, classes, mean_bytes, images - there, there)


def cached(images: int, classes: int, on_progress: OnProgress, *, seed: int = 1) -> Path:
    """The folder of such data in the user's cache, made the first time."""
    folder = user_directory("made") / f"{FORMAT}-{images}-{classes}-{seed}"
    make(folder, images, classes, seed, on_progress=on_progress)
    return folder


def _processes(asked: int | None) -> int:
    if asked is not None and asked < 1:
        raise UserError(f"--workers starts at 1, not {asked}")
    return asked or usable_cores()


def _is_whole(job: Job, found: Found) -> bool:
    """Whether there is nothing to do: every image has its size, and the tar files are those."""
    whole = found.is_finished and len(found.entries) == job.plan.images
    return whole and (job.shards == 0 or _has_shards(job, found.manifest))


def _has_shards(job: Job, manifest: Manifest | None) -> bool:
    shards = manifest.shards if manifest else ()
    return len(shards) == job.shards and all(
        size_of_file(job.folder / shard.name) == shard.size_bytes for shard in shards
    )


def _completed(job: Job, on_progress: OnProgress) -> tuple[Found, dict[int, Entry]]:
    """What was there, and what is there when all is made; no other process makes any meanwhile."""
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        with locked(job.folder):
            found = look_into(job.folder, job.plan)
            return found, _make_missing(job, found, on_progress)
    except OSError as error:
        raise UserError(
            f"cannot write {error.filename or job.folder}: {error.strerror}; what is made stays, "
            "and the same command goes on"
        ) from None


def _make_missing(job: Job, found: Found, on_progress: OnProgress) -> dict[int, Entry]:
    """All entries, after everything is there that was asked for."""
    for part in found.parts:
        part.unlink()
    entries = dict(found.entries)
    before = found.manifest
    if len(entries) < job.plan.images and before and before.software != software():
        entries.clear()  # files of two encoders would be no data set that can be made again
    had = before.shards if before else ()
    if len(entries) < job.plan.images or not found.is_finished:
        manifest = Manifest(job.plan, software(), None, had)
        write_manifest(job.folder, manifest)
        _make_images(job, entries, on_progress)
        manifest = replace(manifest, files_sha256=_write_list(job, entries))
    else:
        assert before is not None
        manifest = before
    if job.shards and not _has_shards(job, manifest):
        manifest = replace(manifest, shards=_make_shards(job, had))
    write_manifest(job.folder, manifest, entries.values())
    return entries


def _make_images(job: Job, entries: dict[int, Entry], on_progress: OnProgress) -> None:
    """Make what is missing, and list each image when it is there."""
    plan = job.plan
    missing = [index for index in range(plan.images) if index not in entries]
    for label in range(plan.classes):
        for held_out in (False, True):
            (job.folder / plan.folder(label, held_out)).mkdir(parents=True, exist_ok=True)
    put(job.folder / FILES, _lines(plan, entries))
    fields()  # before the processes are forked, so that they share them
    chunks = [missing[at : at + CHUNK] for at in range(0, len(missing), CHUNK)]
    with (
        (job.folder / FILES).open("a", encoding="utf-8") as listing,
        closing(spread(partial(_make_chunk, job.folder, plan), chunks, job.processes)) as ready,
    ):
        for made in ready:
            listing.writelines(line_of(plan, entry) for entry in made)
            listing.flush()
            entries.update((entry.number, entry) for entry in made)
            on_progress(len(entries), plan.images)


def _make_chunk(folder: Path, plan: Plan, indices: list[int]) -> list[Entry]:
    made = []
    for index in indices:
        raw = jpeg(fields(), plan.seed, index, look_of(plan.label(index)))
        put(folder / plan.path(index), raw)
        size = size_of(plan.seed, index)
        digest = hashlib.sha256(raw).hexdigest()
        made.append(Entry(index, len(raw), digest, size.width, size.height))
    return made


def _write_list(job: Job, entries: dict[int, Entry]) -> str:
    """files.tsv in the order of the images' numbers; its checksum."""
    lines = _lines(job.plan, entries)
    put(job.folder / FILES, lines)
    return hashlib.sha256(lines).hexdigest()


def _lines(plan: Plan, entries: dict[int, Entry]) -> bytes:
    return "".join(line_of(plan, entries[index]) for index in sorted(entries)).encode()


def _make_shards(job: Job, had: tuple[Shard, ...]) -> tuple[Shard, ...]:
    with closing(pack(job.folder, job.plan, job.shards, job.processes)) as ready:
        shards = tuple(sorted(ready))
    for name in {shard.name for shard in had} - {shard.name for shard in shards}:
        (job.folder / name).unlink(missing_ok=True)
    return shards
