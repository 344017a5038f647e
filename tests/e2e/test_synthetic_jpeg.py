"""Synthetic JPEG datasets: what the images are like, what is on disk, and what is left alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from samples.fetching import message

from e2e.data.sources.listing import list_images
from e2e.data.synthetic_jpeg import dataset
from e2e.data.synthetic_jpeg.dataset import MANIFEST, Plan, cached, make
from e2e.data.synthetic_jpeg.picture import LONGEST, size_of

PLAN = Plan(20, 2)
SMALL = Plan(4, 2)
SHARDS = 3


def ignore(done: int, total: int) -> None:
    pass


def made_in(folder: Path, *, processes: int = 1, shards: int = 0) -> bool:
    return make(folder, PLAN, processes=processes, shards=shards, on_progress=ignore)


def alter(folder: Path, **fields: object) -> None:
    content = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**content, **fields}))


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def snapshot(folder: Path) -> tuple[dict[str, bytes], list[int]]:
    """What is in a folder, and when each file was written."""
    return contents(folder), sorted(path.stat().st_mtime_ns for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset made by two processes, with tar files; not to be changed."""
    folder = tmp_path_factory.mktemp("made") / "whole"
    assert made_in(folder, processes=2, shards=SHARDS)
    return folder


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


# ---- the images


def test_sizes_are_about_those_of_imagenet() -> None:
    sizes = [size_of(1, index) for index in range(3000)]
    widths = np.array([size.width for size in sizes])
    heights = np.array([size.height for size in sizes])
    assert widths.mean() == pytest.approx(465, abs=20)
    assert heights.mean() == pytest.approx(405, abs=20)
    usual = Counter((size.width, size.height) for size in sizes).most_common(1)[0][0]
    assert usual == (500, 375)
    longer = np.maximum(widths, heights)
    assert 1000 < longer.max() <= LONGEST
    assert 0.01 < (longer < 250).mean() < 0.1


def test_files_have_about_the_bytes_of_imagenet(whole: Path) -> None:
    size_bytes = [path.stat().st_size for path in whole.glob("*/*/*.jpg")]
    assert 80_000 < np.mean(size_bytes) < 140_000
    for path in whole.glob("train/*/*.jpg"):
        size = size_of(1, int(path.stem))
        with Image.open(path) as image:
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert image.size == (size.width, size.height)


# ---- which image is where


@given(st.integers(1, 50), st.integers(2, 40), st.integers(0, 49), st.data())
def test_a_plan_names_each_image_once(
    classes: int, rounds: int, more: int, data: st.DataObject
) -> None:
    plan = Plan(classes * rounds + more % classes, classes)
    index = data.draw(st.integers(0, plan.images - 1))
    assert len({plan.path(i) for i in range(plan.images)}) == plan.images
    trained = Counter(plan.label(i) for i in plan.trained())
    held_out = Counter(plan.label(i) for i in range(plan.images) if plan.is_held_out(i))
    assert set(held_out) == set(trained) == set(range(classes))
    assert sum(held_out.values()) <= max(classes, plan.images / 10 + classes)
    # A longer plan has the same images, and more.
    assert Plan(plan.images + 7, classes).path(index) == plan.path(index)


def test_the_folders_and_tar_files_are_what_training_opens(whole: Path) -> None:
    listing = list_images(whole)
    assert (listing.notes, listing.broken) == ((), {})
    assert listing.classes == tuple(f"class-{label:04}" for label in range(PLAN.classes))
    assert (len(listing.train), len(listing.held_out)) == (18, 2)
    for image in (*listing.train, *listing.held_out):
        assert image.label == int(Path(image.path).stem) % PLAN.classes
    found: dict[str, tuple[bytes, int]] = {}
    for number in range(SHARDS):
        with tarfile.open(whole / f"train-{number:06}.tar") as tar:
            files = [(member.name, tar.extractfile(member)) for member in tar.getmembers()]
            content = [(name, file.read()) for name, file in files if file]
        for (image, raw), (label, digits) in zip(content[::2], content[1::2], strict=True):
            assert label == image.replace(".jpg", ".cls")
            found[image] = (raw, int(digits))
    assert found == {
        Path(image.path).name: (Path(image.path).read_bytes(), image.label)
        for image in listing.train
    }


# ---- made once, and whole or not at all


def test_bytes_do_not_depend_on_the_processes(whole: Path, tmp_path: Path) -> None:
    made_in(tmp_path / "alone", shards=SHARDS)
    assert contents(tmp_path / "alone") == contents(whole)


def test_a_dataset_is_not_made_again(copy: Path) -> None:
    before = snapshot(copy)
    for shards in (0, SHARDS):
        assert not made_in(copy, shards=shards)
    assert snapshot(copy) == before


def killed(*_: object) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def test_a_killed_process_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "jpeg", killed)
    assert "was killed" in message(lambda: made_in(tmp_path, processes=2))
    assert not list(tmp_path.iterdir())


def test_a_damaged_cache_is_made_anew_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []
    damaged = cached(SMALL, ignore, said.append)
    good = contents(damaged)
    assert cached(SMALL, ignore, said.append) == damaged
    assert not said
    (damaged / MANIFEST).write_text("[" * 5000)
    before = snapshot(damaged)
    folder = cached(SMALL, ignore, said.append)
    assert contents(folder) == good
    assert snapshot(damaged) == before
    assert len(said) == 1
    assert str(damaged) in said[0]


# ---- other people's folders


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: alter(folder, seed=2), "seed 2"),
        (lambda folder: alter(folder, files_sha256=None), "is unfinished"),
        (lambda folder: (folder / PLAN.path(3)).unlink(), f"lacks its file {PLAN.path(3)}"),
        (
            lambda folder: (folder / "train/class-0001/cat.jpg").touch(),
            "was not generated with the file train/class-0001/cat.jpg",
        ),
        (lambda folder: (folder / MANIFEST).write_text('{"name": "an extension"}'), "no dataset"),
        (
            lambda folder: alter(folder, shards=[{"name": "../a", "bytes": 4, "sha256": "0"}]),
            "in 1 tar files",
        ),
    ],
)
def test_a_folder_with_anything_else_is_left_alone(
    copy: Path, change: Callable[[Path], None], said: str
) -> None:
    victim = copy.parent / "a"
    victim.write_text("keep")
    change(copy)
    before = snapshot(copy.parent)
    assert said in message(lambda: made_in(copy, shards=SHARDS))
    assert snapshot(copy.parent) == before
