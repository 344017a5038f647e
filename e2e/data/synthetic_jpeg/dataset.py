"""Synthetic JPEG datasets on disk: class folders below train/ and val/, and optional tar shards.

manifest.json says which dataset a folder holds. A dataset is generated in a hidden subfolder and
moved up when complete, the manifest last, so that an interrupted one is never taken for complete.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import shutil
import tarfile
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from e2e.data.synthetic_jpeg.picture import CLASSES, FIELDS, KINDS, jpeg, look_of, noise_plane
from kernels.files import read_json_file
from kernels.user_folders import cache_folder, made_writable, temporary_folder, warn
from microbench.device.host import usable_cores
from microbench.errors import UserError
from microbench.stopping import die_with_parent

FORMAT = 1  # raised when other pixels or other files are made
WHAT = "images made by halfway"
MANIFEST = "manifest.json"
PART = ".part-"  # how the name of a folder begins in which a dataset is generated

TRAIN, HELD_OUT = "train", "val"
MOST_IMAGES = 10_000_000
HELD_OUT_OF = 10  # rounds of all classes, in one of which the images are held out
HELD_OUT_ROUND = 1  # the second, so that every class has one of each
CHUNK = 16  # images that a process makes before it reports them
MEAN_BYTES = 110_000  # of an image, about
BLOCK_BYTES = 4096  # of a file system: each file wastes half of one
TAR_BYTES = 2560  # that a tar file adds to an image and its label

SPARE_HANDLES = 6  # that removing a folder of three levels takes
MOST_DAMAGED = 9  # folders of one dataset in the cache

OnProgress = Callable[[int, int], None]  # images that are made, and those wanted


class OtherContent(UserError):
    """A folder that holds something else than the dataset, or a damaged one."""


@dataclass(frozen=True)
class Plan:
    """The images of a dataset; classes alternate, so a shorter plan is a part of a longer one.

    UserError for numbers out of range.
    """

    images: int
    classes: int
    seed: int = 1

    def __post_init__(self) -> None:
        images, classes = self.images, self.classes
        if not 1 <= classes <= CLASSES:
            raise UserError(f"--classes takes 1 to {CLASSES:,}, not {classes:,}")
        if images < 2 * classes:
            raise UserError(
                f"--images {images:,} is too few for {classes:,} classes: each needs one for "
                f"training and one held out, {2 * classes:,} in total"
            )
        if images > MOST_IMAGES:
            raise UserError(f"--images takes at most {MOST_IMAGES:,}, not {images:,}")
        if self.seed < 0:
            raise UserError(f"--seed takes a number from 0, not {self.seed}")

    def label(self, index: int) -> int:
        """The class of an image."""
        return index % self.classes

    def is_held_out(self, index: int) -> bool:
        """Whether an image belongs to val/."""
        return index // self.classes % HELD_OUT_OF == HELD_OUT_ROUND

    def trained(self) -> list[int]:
        """The numbers of the training images."""
        return [index for index in range(self.images) if not self.is_held_out(index)]

    def path(self, index: int) -> str:
        """An image's file below the folder; names of classes sort as their numbers do."""
        part = HELD_OUT if self.is_held_out(index) else TRAIN
        return f"{part}/class-{self.label(index):04}/{index:08}.jpg"

    def in_words(self) -> str:
        """Such as "200 images of 10 classes, seed 1"."""
        return f"{self.images:,} images of {self.classes:,} classes, seed {self.seed}"


USUAL = Plan(4000, 100)  # `--data made`: it fits into any page cache, and is made in seconds


def make(
    folder: Path,
    plan: Plan,
    *,
    shards: int = 0,
    processes: int | None = None,
    on_progress: OnProgress,
) -> bool:
    """Generate a dataset in a folder, and `shards` tar files; False if it already exists.

    Pixels depend only on the seed, the image's number and its class. UserError for a folder with
    other content, too little disk space, and a file that cannot be written; what was in the folder
    before is not changed.
    """
    trained = plan.trained()
    if not 0 <= shards <= len(trained):
        raise UserError(
            f"--shards takes 0 to {len(trained):,} (at least one image each), not {shards}"
        )
    if processes is not None and processes < 1:
        raise UserError(f"--workers takes a number from 1, not {processes}")
    if _is_there(folder, plan, shards):
        on_progress(plan.images, plan.images)
        return False
    _check_space(folder, plan.images, len(trained) if shards else 0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _work_folder(folder) as work:
            _write_images(work, plan, processes or usable_cores(), on_progress)
            names = _shard_names(shards)
            for number, name in enumerate(names):  # spread evenly and in order
                some = slice(*(len(trained) * at // shards for at in (number, number + 1)))
                _write_shard(work, plan, name, trained[some])
            content = {"what": WHAT, "format": FORMAT, **asdict(plan), "shards": shards}
            (work / MANIFEST).write_text(f"{json.dumps(content, indent=1)}\n", encoding="utf-8")
            if _is_there(folder, plan, shards):  # another process was faster
                return False
            for name in (TRAIN, HELD_OUT, *names, MANIFEST):
                (work / name).rename(folder / name)
    except OSError as error:
        raise UserError(f"cannot write {error.filename or folder}: {error.strerror}") from None
    return True


@contextmanager
def _work_folder(folder: Path) -> Generator[Path]:
    """A folder to generate in, removed at the end, even where no more files can be opened."""
    with ExitStack() as spare:
        for _ in range(SPARE_HANDLES):
            spare.enter_context(open(os.devnull, "rb"))
        with TemporaryDirectory(prefix=PART, dir=folder) as part:
            try:
                yield Path(part)
            finally:
                spare.close()


def cached(plan: Plan, on_progress: OnProgress, say: Callable[[str], None] = warn) -> Path:
    """The folder of such a dataset in the user's cache; generated once. UserError as of `make`.

    Without a cache that takes files it is among the temporary files, and beside a damaged one where
    that has its place; `say` gets the text.
    """
    cache, name = cache_folder("made"), f"{FORMAT}-{plan.images}-{plan.classes}-{plan.seed}"
    fault = made_writable(cache)
    if cache is None or (fault and not os.path.isdir(cache / name)):
        try:
            cache = temporary_folder("made")
        except OSError as error:
            raise UserError(
                f"no folder takes the images of --data made ({fault}; {error.filename}: "
                f"{error.strerror}); set XDG_CACHE_HOME to one that does"
            ) from None
        say(f"no cache ({fault}): the images are in {cache}, and made again when it is emptied")
    for number in range(1, MOST_DAMAGED + 1):
        folder = cache / (name if number == 1 else f"{name}-{number}")
        try:
            make(folder, plan, on_progress=on_progress)
            return folder
        except OtherContent as error:
            say(f"the images are made anew beside a folder that cannot be used: {error}")
    raise UserError(f"{cache} has {MOST_DAMAGED} damaged folders of images; delete them")


def _is_there(folder: Path, plan: Plan, shards: int) -> bool:
    """Whether a folder holds the dataset; False where it is empty.

    OtherContent for all else, UserError for what is no folder.
    """
    try:
        names = [name for name in os.listdir(folder) if not name.startswith(PART)]
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(f"{folder} cannot be used as a folder: {error.strerror}") from None
    if not names:
        return False
    held, held_shards = _read_manifest(folder)
    if held != plan or shards not in (0, held_shards):
        raise OtherContent(
            f"{folder} holds {_in_words(held, held_shards)}, not {_in_words(plan, shards)}; "
            "name another folder"
        )
    wanted = {*map(plan.path, range(plan.images)), *_shard_names(held_shards)}
    found = {name for name in names if name.endswith(".tar")}
    for here, _, files in (step for part in (TRAIN, HELD_OUT) for step in os.walk(folder / part)):
        below = os.path.relpath(here, folder)
        found.update(os.path.join(below, file) for file in files)
    if wrong := sorted(wanted ^ found):
        lacks = "lacks its file" if wrong[0] in wanted else "was not generated with the file"
        raise OtherContent(f"{folder} {lacks} {wrong[0]}; name another folder")
    return True


def _read_manifest(folder: Path) -> tuple[Plan, int]:
    """Which dataset a folder holds, and how many tar files. OtherContent when it is not one."""
    try:
        content: Any = read_json_file(folder / MANIFEST)
        # Older versions wrote the manifest first, and this checksum when all was generated.
        if content.get("files_sha256", "") is None:
            raise OtherContent(f"{folder} is unfinished; delete it or name another folder")
        plan = Plan(content["images"], content["classes"], content["seed"])
        listed: int | list[Any] = content["shards"]  # a list in older versions
        shards = listed if isinstance(listed, int) else len(listed)
        if (content["what"], content["format"]) == (WHAT, FORMAT) and 0 <= shards <= plan.images:
            return plan, shards
    except OtherContent:
        raise
    except (OSError, UserError, ValueError, TypeError, KeyError, AttributeError):
        pass
    raise OtherContent(
        f"{folder} is not empty, and has no dataset that this version generated; "
        "name another folder"
    )


def _in_words(plan: Plan, shards: int) -> str:
    return plan.in_words() + f" in {shards} tar files too" * bool(shards)


def _check_space(folder: Path, images: int, packed: int) -> None:
    """UserError when the disk has no room for the images, and `packed` of them in tar files."""
    needed = images * (MEAN_BYTES + BLOCK_BYTES // 2) + packed * (MEAN_BYTES + TAR_BYTES)
    home = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(home).free
    if needed > free:
        raise UserError(
            f"{images:,} images{' and their tar files' if packed else ''} need about "
            f"{needed / 1e9:.1f} GB, and {home} has {free / 1e9:.1f} GB free; "
            "use fewer --images or a folder on another disk"
        )


def _write_images(work: Path, plan: Plan, processes: int, on_progress: OnProgress) -> None:
    """UserError when a process was killed. No process is left, however it ends."""
    for name in {os.path.dirname(plan.path(index)) for index in range(plan.images)}:
        (work / name).mkdir(parents=True)
    for number in range(FIELDS + len(KINDS)):
        noise_plane(number)  # before the processes are forked, so that they share it
    chunks = [range(at, min(at + CHUNK, plan.images)) for at in range(0, plan.images, CHUNK)]
    done = 0
    on_progress(done, plan.images)
    before = set(multiprocessing.active_children())
    pool = None
    try:
        try:
            pool = ProcessPoolExecutor(
                min(processes, len(chunks)), multiprocessing.get_context("fork"), die_with_parent
            )
            parts = [pool.submit(_write_chunk, work, plan, some) for some in chunks]
        except OSError as error:
            raise UserError(
                f"worker processes cannot be started ({error.strerror}): they need shared memory "
                "(/dev/shm) that can be written, and open files (ulimit -n)"
            ) from None
        for part in as_completed(parts):
            done += part.result()
            on_progress(done, plan.images)
    except BrokenProcessPool:
        raise UserError(
            "a worker process was killed (out of memory?); try fewer --workers"
        ) from None
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)
        for process in set(multiprocessing.active_children()) - before:
            process.kill()  # the pool forgets those that it started before one failed to start
            process.join()


def _write_chunk(work: Path, plan: Plan, indices: range) -> int:
    for index in indices:
        raw = jpeg(plan.seed, index, look_of(plan.label(index)))
        (work / plan.path(index)).write_bytes(raw)
    return len(indices)


def _shard_names(shards: int) -> list[str]:
    return [f"{TRAIN}-{number:06}.tar" for number in range(shards)]


def _write_shard(work: Path, plan: Plan, name: str, indices: list[int]) -> None:
    """A tar file of these images, as webdataset reads them."""
    with tarfile.open(work / name, "w", format=tarfile.USTAR_FORMAT) as tar:
        for index in indices:
            raw = (work / plan.path(index)).read_bytes()
            label = str(plan.label(index)).encode()
            for member_name, content in ((f"{index:08}.jpg", raw), (f"{index:08}.cls", label)):
                member = tarfile.TarInfo(member_name)  # no owner and no time: the same everywhere
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
