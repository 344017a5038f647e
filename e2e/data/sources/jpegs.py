"""The synthetic JPEG dataset: class folders below train/ and val/.

An image is a part of 1/f noise, as photographs are, with the tint and the stripes of its class.
Sizes and compression are about those of ImageNet: most of it came from Flickr, which gives
photographs 500 pixels at their longer side, and is compressed at quality 96 without halving the
colours' resolution (terryalanunlimited.com/compression-in-the-imagenet-dataset, with torchjpeg).

On one machine an image depends on the seed, its number and its class alone. A dataset is made in a
hidden folder, renamed when complete: the next call goes on with an interrupted one.
"""

from __future__ import annotations

import fcntl
import io
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from kernels.files import cache_folder, made_writable, temporary_folder, warn
from microbench.device.host import usable_cores
from microbench.errors import UserError
from microbench.stopping import die_with_parent

FORMAT = 2  # raised when other pixels or other files are made
MANIFEST = "manifest.json"
PART, DRAFT, LOCK = ".part-", ".draft", ".lock"  # names of what is not complete
TRAIN, HELD_OUT = "train", "val"
HELD_OUT_OF = 10  # rounds of all classes, of which the second is held out
CHUNK = 16  # images that a process makes before it reports them
MEAN_BYTES = 116_000  # of an image on a disk, about

FIELD = 2048  # pixels a side of the noise
SLOPE, LONGEST_WAVE = 1.1, 1024  # amplitude 1/f ** SLOPE; longer waves would change a whole image
# Equidistant quantiles: of the longer side in pixels, the shorter over the longer, JPEG's quality.
SIDES = (140, 300, 400, 450, *(500,) * 15, 640, 840, 1200)
SHAPES = (0.52, 0.62, *(2 / 3,) * 6, *(3 / 4,) * 12, 0.82, 1.0)
QUALITIES = (75, 88, 92, *(96,) * 8)
PORTRAIT_SHARE, HALVED_SHARE = 0.28, 0.25
BRIGHTNESS, CONTRAST, COLOURS = (90, 165), (11, 25), 0.2  # of the noise: mean, deviation, share
TINT, STRIPES, WAVELENGTH = 24, 9, (10, 30)  # strengths, and pixels from stripe to stripe

OnProgress = Callable[[int, int], None]  # images that are made, and those wanted


def size_of(seed: int, index: int) -> tuple[int, int]:
    """(width, height) of an image in pixels."""
    draw = np.random.default_rng((seed, index, 0))
    longer = int(_drawn(SIDES, draw))
    shorter = int(longer * _drawn(SHAPES, draw))
    return (shorter, longer) if draw.random() < PORTRAIT_SHARE else (longer, shorter)


def _drawn(quantiles: Sequence[float], draw: np.random.Generator) -> float:
    last = len(quantiles) - 1
    return float(np.interp(draw.uniform(0, last), range(last + 1), quantiles))


def jpeg(seed: int, index: int, label: int) -> bytes:
    """An image as JPEG bytes, encoded by Pillow."""
    width, height = size_of(seed, index)
    draw = np.random.default_rng((seed, index, 1))
    top, left = draw.integers(FIELD - height + 1), draw.integers(FIELD - width + 1)
    part = _field()[top : top + height, left : left + width]
    part = part[:: draw.choice((-1, 1)), :: draw.choice((-1, 1))]
    pixels = part * np.float32(draw.uniform(*CONTRAST))
    look = np.random.default_rng((label, 2))  # of the class, the same for every seed
    stripes = 2 * np.pi / look.uniform(*WAVELENGTH) * np.exp(1j * look.uniform(0, np.pi))
    tint = TINT * np.exp(1j * look.uniform(0, 2 * np.pi))
    across = (np.arange(width) * stripes.real + draw.uniform(0, 2 * np.pi)).astype(np.float32)
    down = (np.arange(height) * stripes.imag).astype(np.float32)
    pixels[..., 0] += STRIPES * np.sin(down[:, None] + across)
    mean = (draw.uniform(*BRIGHTNESS), 128 + tint.real, 128 + tint.imag)
    pixels += np.array(mean, np.float32)
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8), "YCbCr")
    file, subsampling = io.BytesIO(), "4:2:0" if draw.random() < HALVED_SHARE else "4:4:4"
    image.save(file, "JPEG", quality=int(_drawn(QUALITIES, draw)), subsampling=subsampling)
    return file.getvalue()


@cache
def _field() -> NDArray[np.float32]:
    """1/f noise of brightness and two colours, [FIELD, FIELD, 3]: a second and 50 MB a process."""
    draw = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(FIELD)[:, None], np.fft.rfftfreq(FIELD)[None])
    kept = frequency >= 1 / LONGEST_WAVE
    amplitude = np.where(kept, np.maximum(frequency, 1 / FIELD) ** -SLOPE, 0)
    field = np.empty((FIELD, FIELD, 3), np.float32)
    for plane, strength in enumerate((1, COLOURS, COLOURS)):
        waves = np.fft.irfft2(amplitude * np.exp(2j * np.pi * draw.random(frequency.shape)))
        field[..., plane] = waves * (strength / waves.std())
    return field


@dataclass(frozen=True)
class DatasetPlan:
    """The images of a dataset; classes alternate, so a shorter plan is a part of a longer one."""

    images: int
    classes: int
    seed: int = 1

    def path(self, index: int) -> str:
        """An image's file below the folder; names of classes sort as their numbers do."""
        part = HELD_OUT if index // self.classes % HELD_OUT_OF == 1 else TRAIN
        return f"{part}/class-{index % self.classes:04}/{index:08}.jpg"


USUAL = DatasetPlan(4000, 100)  # `--data made`: it fits into any page cache, and is made in seconds


def cached(
    on_progress: OnProgress, say: Callable[[str], None] = warn,
    begin: Callable[[str], None] = lambda _: None,
) -> Path:  # fmt: skip
    """The folder of `USUAL` in the user's cache; generated once. UserError as of `make`.

    Without a cache that takes files it is among the temporary files; `say` gets the text. `begin`
    is told how much is written and where, before it is.
    """
    cache, name = cache_folder("made"), f"{FORMAT}-{USUAL.images}-{USUAL.classes}"
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
    if not (cache / name / MANIFEST).exists():
        size = USUAL.images * MEAN_BYTES / 1e9
        begin(f"--data made: {USUAL.images:,} images, {size:.1f} GB, are kept in {cache / name}")
        make(cache / name, USUAL, on_progress)
    return cache / name


def make(
    folder: Path, plan: DatasetPlan, on_progress: OnProgress, processes: int | None = None
) -> None:
    """Generate a dataset in a new folder, unless it is there already.

    UserError for too little disk space, and a file that cannot be written.
    """
    work = folder.with_name(PART + folder.name)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of two that make the same, one does it
            if not (folder / MANIFEST).exists():
                work.mkdir(exist_ok=True)
                _write(work, plan, processes or usable_cores(), on_progress)
                (work / MANIFEST).write_text(json.dumps({"format": FORMAT, **asdict(plan)}))
                if folder.exists():  # half made by an older version
                    shutil.rmtree(folder)
                work.rename(folder)
    except OSError as error:
        raise UserError(f"cannot write {error.filename or folder}: {error.strerror}") from None


def _write(work: Path, plan: DatasetPlan, processes: int, on_progress: OnProgress) -> None:
    """Write what is not there yet. UserError when a process was killed."""
    todo = [index for index in range(plan.images) if not (work / plan.path(index)).exists()]
    needed, free = MEAN_BYTES * len(todo), shutil.disk_usage(work).free
    if needed > free:
        raise UserError(
            f"{len(todo):,} images need about {needed / 1e9:.1f} GB, and {work.parent} has "
            f"{free / 1e9:.1f} GB free; XDG_CACHE_HOME may name a folder on another disk"
        )
    for name in {os.path.dirname(plan.path(index)) for index in todo}:
        (work / name).mkdir(parents=True, exist_ok=True)
    done = plan.images - len(todo)
    on_progress(done, plan.images)
    _field()  # before the processes are forked, so that they share it
    chunks = [todo[at : at + CHUNK] for at in range(0, len(todo), CHUNK)]
    before, pool = set(multiprocessing.active_children()), None
    try:
        try:
            fork = multiprocessing.get_context("fork")
            pool = ProcessPoolExecutor(min(processes, len(chunks) or 1), fork, die_with_parent)
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
            "a process that makes images was killed (out of memory?); the same command goes on"
        ) from None
    finally:
        if pool:
            pool.shutdown(cancel_futures=True)
        for process in set(multiprocessing.active_children()) - before:
            process.kill()  # the pool forgets those that it started before one failed to start
            process.join()


def _write_chunk(work: Path, plan: DatasetPlan, indices: Sequence[int]) -> int:
    for index in indices:
        path = work / plan.path(index)
        draft = path.with_name(path.name + DRAFT)
        draft.write_bytes(jpeg(plan.seed, index, index % plan.classes))
        draft.rename(path)  # whole or not at all
    return len(indices)
