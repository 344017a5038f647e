"""Synthetic JPEG datasets: what the images are like, that they never change, what is on disk."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import tarfile
import tempfile
from collections import Counter, namedtuple
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from samples.fetching import message

from e2e.commands.make_data import MakeProgress, run_make_data
from e2e.data.sources.listing import list_images
from e2e.data.synthetic_jpeg import dataset
from e2e.data.synthetic_jpeg.dataset import MANIFEST, PART, Plan, cached, make
from e2e.data.synthetic_jpeg.picture import (
    CLASSES,
    CLIP_STD,
    FIELD_STD,
    FULL,
    KINDS,
    LONGEST,
    Draws,
    jpeg,
    look_of,
    noise,
    picture,
    size_of,
)

PLAN = Plan(40, 4)
SHARDS = 3
# Of pixels that must never change, by (seed, index, label); Pillow's encoder may change.
DIGESTS = {
    (1, 0, 0): "263x500 q77 s0 ad4d8ba5ebcae1cd",
    (1, 1, 1): "298x448 q96 s0 c354cb32cbee3cd8",
    (1, 37, 1): "469x705 q92 s0 214dd433059b62a0",
    (2, 0, 0): "500x375 q79 s0 58564016d7936894",
    (1, 3999, 99): "359x500 q96 s0 9eb88a9681fa10bc",
    (7, 123_456, 999): "319x465 q96 s0 9b20df88d0d8dab6",
}


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


@cache
def photo(index: int, label: int) -> Image.Image:
    return Image.open(io.BytesIO(jpeg(1, index, look_of(label)))).convert("RGB")


def luminance(image: Image.Image) -> NDArray[np.float64]:
    return np.asarray(image.convert("L")).astype(np.float64)


# ---- the images


def test_pixels_are_the_same_everywhere() -> None:
    for (seed, index, label), wanted in DIGESTS.items():
        size = size_of(seed, index)
        raw = picture(size, seed, index, look_of(label)).tobytes()
        digest = hashlib.sha256(raw).hexdigest()[:16]
        shape = f"{size.height}x{size.width} q{size.quality} s{size.subsampling}"
        assert f"{shape} {digest}" == wanted


def slope(image: Image.Image) -> float:
    """Of the amplitude against the frequency of a square cut, both logarithmic."""
    plane = luminance(image)
    side = min(plane.shape)
    window = np.hanning(side)
    plane = (plane[:side, :side] - plane.mean()) * window * window[:, None]
    power = abs(np.fft.fft2(plane)) ** 2
    frequency = np.hypot(np.fft.fftfreq(side), np.fft.fftfreq(side)[:, None])
    ends = np.geomspace(4 / side, 0.45, 13)
    amplitude = [
        power[(frequency >= low) & (frequency < high)].mean() ** 0.5 for low, high in pairwise(ends)
    ]
    return float(np.polyfit(np.log(ends[1:]), np.log(amplitude), 1)[0])


def test_amplitudes_and_colours_are_those_of_photographs() -> None:
    photos = [photo(index, index % 8) for index in range(16)]
    slopes = [slope(image) for image in photos]
    assert np.mean(slopes) == pytest.approx(-1.15, abs=0.2)
    assert all(-1.7 < each < -0.7 for each in slopes)
    channels = [np.asarray(image).reshape(-1, 3) for image in photos]
    between = np.mean([np.corrcoef(pixels.T) for pixels in channels], 0)
    assert between.min() > 0.7, "colours go together"
    planes = [np.asarray(image.convert("YCbCr")) for image in photos]
    light, blue, red = np.mean([plane.reshape(-1, 3).std(0) for plane in planes], 0)
    assert light > 3 * max(blue, red)
    assert min(blue, red) > 3


def test_fields_fit_into_the_sums_of_16_bits() -> None:
    window = noise(0, 1200, 1200, Draws(1))
    assert abs(window).max() <= CLIP_STD * FIELD_STD
    assert 0.5 * FIELD_STD < window.std() < 1.5 * FIELD_STD


def test_sizes_are_about_those_of_imagenet() -> None:
    sizes = [size_of(1, index) for index in range(3000)]
    widths = np.array([size.width for size in sizes])
    heights = np.array([size.height for size in sizes])
    assert widths.mean() == pytest.approx(465, abs=20)
    assert heights.mean() == pytest.approx(405, abs=20)
    assert 0.2 < (heights > widths).mean() < 0.35
    usual = Counter((size.width, size.height) for size in sizes).most_common(1)[0][0]
    assert usual == (500, 375)
    longer = np.maximum(widths, heights)
    assert 1000 < longer.max() <= LONGEST
    assert 0.01 < (longer > 800).mean() < 0.1
    assert 0.01 < (longer < 250).mean() < 0.1
    assert 0.7 < np.mean([size.subsampling == FULL for size in sizes]) < 0.8


def test_files_have_about_the_bytes_of_imagenet(whole: Path) -> None:
    size_bytes = [path.stat().st_size for path in whole.glob("*/*/*.jpg")]
    assert 80_000 < np.mean(size_bytes) < 140_000
    low, high = np.percentile(size_bytes, (5, 95))
    assert low < 50_000
    assert high > 160_000
    for path in whole.glob("train/*/*.jpg"):
        size = size_of(1, int(path.stem))
        with Image.open(path) as image:
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert image.size == (size.width, size.height)


@cache
def directions() -> NDArray[np.int64]:
    """Of the Fourier coefficients of waves of about 15 pixels, 0 to 7; -1 for all others."""
    down, across = np.fft.fftfreq(512)[:, None], np.fft.rfftfreq(512)[None]
    band = abs(np.hypot(down, across) * 15 - 1) < 0.25
    direction = np.floor((np.degrees(np.arctan2(down, across)) + 11.25) / 22.5).astype(int) % 8
    return np.where(band, direction, -1)


def texture_of(image: Image.Image) -> NDArray[np.float64]:
    """How much there is of waves of 15 pixels in 8 directions and in all, as a logarithm."""
    plane = luminance(image)
    power = abs(np.fft.rfft2(plane - plane.mean(), (512, 512))) ** 2
    waves = np.bincount(directions().ravel() + 1, power.ravel(), 9)
    waves[0] = waves[1:].sum()
    return np.log(waves / power.sum())


def accuracy(features: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Of the nearest mean of a class: the first half is learnt from, the second predicted."""
    features = (features - features.mean(0)) / features.std(0)
    half = len(labels) // 2
    means = [features[:half][labels[:half] == label].mean(0) for label in range(labels.max() + 1)]
    distance = [((features[half:] - mean) ** 2).sum(1) for mean in means]
    return float((np.argmin(distance, 0) == labels[half:]).mean())


def test_classes_can_be_learnt_and_not_by_their_mean_colour() -> None:
    labels = np.arange(112) % 8
    images = [photo(index, int(label)) for index, label in enumerate(labels)]
    colours = np.array([np.asarray(image).reshape(-1, 3).mean(0) for image in images])
    by_texture = accuracy(np.array([texture_of(image) for image in images]), labels)
    by_colour = accuracy(colours, labels)
    assert by_texture > 0.55
    assert by_colour < 0.35
    assert by_texture > 2 * by_colour


def test_no_two_classes_look_the_same() -> None:
    assert len({look_of(label) for label in range(CLASSES)}) == CLASSES
    first = [look_of(label) for label in range(10)]
    assert len({look.hue for look in first}) <= 5
    assert len({look.texture for look in first}) == len(KINDS)


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


def test_the_folders_are_what_training_opens(whole: Path) -> None:
    listing = list_images(whole)
    assert listing.notes == ()
    assert listing.broken == {}
    assert listing.classes == tuple(f"class-{label:04}" for label in range(PLAN.classes))
    assert (len(listing.train), len(listing.held_out)) == (36, 4)
    for image in (*listing.train, *listing.held_out):
        assert image.label == int(Path(image.path).stem) % PLAN.classes


def test_tar_files_have_every_training_image_with_its_label(whole: Path) -> None:
    found: dict[str, tuple[bytes, int]] = {}
    for number in range(SHARDS):
        with tarfile.open(whole / f"train-{number:06}.tar") as tar:
            files = [(member.name, tar.extractfile(member)) for member in tar.getmembers()]
            content = [(name, file.read()) for name, file in files if file]
        assert len(content) == 2 * 12
        for (image, raw), (label, digits) in zip(content[::2], content[1::2], strict=True):
            assert label == image.replace(".jpg", ".cls")
            found[image] = (raw, int(digits))
    assert found == {
        Path(image.path).name: (Path(image.path).read_bytes(), image.label)
        for image in list_images(whole).train
    }


# ---- the same bytes, made once


def test_bytes_do_not_depend_on_the_processes(whole: Path, tmp_path: Path) -> None:
    heard: list[tuple[int, ...]] = []
    make(
        tmp_path / "alone", PLAN, processes=1, shards=SHARDS,
        on_progress=lambda *progress: heard.append(progress),
    )  # fmt: skip
    assert contents(tmp_path / "alone") == contents(whole)
    assert heard == [(0, 40), (16, 40), (32, 40), (40, 40)]


def test_a_dataset_is_not_made_again(copy: Path) -> None:
    before = snapshot(copy)
    for shards in (0, SHARDS):
        assert not made_in(copy, shards=shards)
    assert snapshot(copy) == before
    # As an earlier version left it.
    alter(copy, files_sha256="0" * 64, shards=[{}] * SHARDS, software={}, measured={})
    assert not made_in(copy, shards=SHARDS)


def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, PLAN, processes=2, on_progress=stop)
    assert not list(tmp_path.iterdir())


def test_what_a_killed_run_left_is_not_taken_for_a_dataset(tmp_path: Path) -> None:
    left = tmp_path / f"{PART}1" / "train" / "class-0000" / "00000000.jpg"
    left.parent.mkdir(parents=True)
    left.touch()
    plan = Plan(4, 2)
    assert make(tmp_path, plan, on_progress=ignore)
    assert not make(tmp_path, plan, on_progress=ignore)
    assert left.exists(), "another process may be at it"
    assert len(list_images(tmp_path).train) == 2


def test_a_dataset_that_another_process_made_meanwhile_is_taken(
    whole: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "both"

    def overtake(done: int, total: int) -> None:
        if done == total:
            shutil.copytree(whole, folder, dirs_exist_ok=True)

    assert not make(folder, PLAN, processes=1, on_progress=overtake)
    assert contents(folder) == contents(whole)


def test_the_cache_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cached(Plan(4, 2), ignore)
    assert folder == tmp_path / "halfway" / "made" / "1-4-2-1"
    before = snapshot(folder)
    assert cached(Plan(4, 2), ignore) == folder
    assert snapshot(folder) == before


BROKEN: list[Callable[[Path], object]] = [
    lambda folder: (folder / MANIFEST).write_text("{"),
    lambda folder: (folder / MANIFEST).write_text("[" * 5000),
    lambda folder: (folder / MANIFEST).write_text("9" * 400),
    lambda folder: alter(folder, shards=10**12),
    lambda folder: alter(folder, images=10**30),
    lambda folder: (folder / "train/class-0000/00000000.jpg").unlink(),
    lambda folder: (folder / "val/other").touch(),
]


@pytest.mark.parametrize("change", BROKEN)
def test_a_damaged_cache_is_made_anew_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []
    damaged = cached(Plan(4, 2), ignore, said.append)
    good = contents(damaged)
    assert not said
    change(damaged)
    before = snapshot(damaged)
    folder = cached(Plan(4, 2), ignore, said.append)
    assert contents(folder) == good
    assert snapshot(damaged) == before
    assert len(said) == 1
    assert str(damaged) in said[0]
    assert cached(Plan(4, 2), ignore, said.append) == folder


def test_without_a_cache_the_images_are_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    said: list[str] = []
    folder = cached(Plan(4, 2), ignore, said.append)
    assert folder.is_relative_to(tmp_path / f"halfway-{os.getuid()}")
    assert len(contents(folder)) == 5
    assert len(said) == 1
    assert str(tmp_path / "file") in said[0]


# ---- other people's folders, and what cannot be


def test_a_manifest_that_names_other_files_has_none_of_them_touched(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    victim = tmp_path / "outside" / "victim.txt"
    victim.write_text("keep")
    folder = tmp_path / "here"
    folder.mkdir()
    names = ["../outside/victim.txt", str(victim)]
    old = {"what": dataset.WHAT, "format": dataset.FORMAT, "images": 40, "classes": 4, "seed": 1}
    for more in ({"files_sha256": None}, {"files_sha256": "0"}, {}):
        shards = [{"name": name, "bytes": 4, "sha256": "0"} for name in names]
        (folder / MANIFEST).write_text(json.dumps({**old, "shards": shards, **more}))
        before = snapshot(tmp_path)
        message(lambda: made_in(folder, shards=2))
        message(lambda: made_in(folder))
        assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: alter(folder, seed=2), "holds 40 images of 4 classes, seed 2 in 3 tar"),
        (lambda folder: alter(folder, files_sha256=None), "is unfinished"),
        (lambda folder: alter(folder, format=0), "has no dataset that this version generated"),
        (lambda folder: alter(folder, shards=2), "in 2 tar files too, not 40 images of 4 classes"),
        (lambda folder: alter(folder, shards=None), "has no dataset"),
        (lambda folder: (folder / PLAN.path(3)).unlink(), f"lacks its file {PLAN.path(3)}"),
        (lambda folder: (folder / "train-000001.tar").unlink(), "lacks its file train-000001.tar"),
        (
            lambda folder: (folder / "train/class-0001/cat.jpg").touch(),
            "was not generated with the file train/class-0001/cat.jpg",
        ),
        (lambda folder: (folder / MANIFEST).unlink(), "not empty"),
        (lambda folder: (folder / MANIFEST).write_text('{"name": "an extension"}'), "no dataset"),
        (lambda folder: (folder / MANIFEST).write_text('{"what": "images ma'), "no dataset"),
    ],
)
def test_a_folder_with_anything_else_is_left_alone(
    copy: Path, change: Callable[[Path], None], said: str
) -> None:
    change(copy)
    before = snapshot(copy)
    assert said in message(lambda: made_in(copy, shards=SHARDS))
    assert snapshot(copy) == before


@pytest.mark.parametrize("below", [".", "below"])
def test_a_file_is_no_folder(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    assert "cannot be used as a folder" in message(lambda: made_in(tmp_path / "file" / below))


def test_a_disk_without_room_is_told_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 0, 10**8))
    folder, plan = tmp_path / "a" / "b", Plan(20_000, 100)
    said = message(lambda: make(folder, plan, on_progress=ignore))
    assert "20,000 images need about 2.2 GB" in said
    assert "has 0.1 GB free" in said
    assert "4.3 GB" in message(lambda: make(folder, plan, shards=9, on_progress=ignore))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("numbers", "options", "said"),
    [
        ((10, 0, 1), {}, "--classes takes 1 to 1,024, not 0"),
        ((9999, 1025, 1), {}, "--classes takes 1 to 1,024, not 1,025"),
        ((19, 10, 1), {}, "20 in total"),
        ((10**8, 10, 1), {}, "--images takes at most"),
        ((20, 10, -1), {}, "--seed takes a number from 0, not -1"),
        ((20, 10), {"shards": -1}, "--shards takes 0 to 10"),
        ((20, 10), {"shards": 11}, "--shards takes 0 to 10"),
        ((20, 10), {"processes": 0}, "--workers takes a number from 1, not 0"),
    ],
)
def test_numbers_out_of_range(
    tmp_path: Path, numbers: tuple[int, ...], options: dict[str, int], said: str
) -> None:
    folder = tmp_path / "new"
    assert said in message(lambda: make(folder, Plan(*numbers), **options, on_progress=ignore))
    assert not folder.exists()


def killed(*_: object) -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def test_a_killed_process_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "jpeg", killed)
    assert "was killed" in message(lambda: made_in(tmp_path, processes=2))
    assert not list(tmp_path.iterdir())


# ---- what a person reads


def test_what_was_made_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new data"
    run_make_data(folder, 20, 2, 1, 2, 1, False)
    said = capsys.readouterr().out
    for part in (
        "20 images of 2 classes, seed 1", "18 for training, 2 held out", "kB on average",
        "pixels on average", "2 tar files", "Generated 20 images in", "images/s",
        f"python -m e2e resnet50 --amp --data 'folder:{folder}'",
    ):  # fmt: skip
        assert part in said
    run_make_data(folder, 20, 2, 1, 0, 1, False)
    assert "nothing to generate" in capsys.readouterr().out
    run_make_data(folder, 20, 2, 1, 0, 1, True)
    assert capsys.readouterr().out == ""


def test_progress_tells_rate_and_time_left() -> None:
    now = [0.0]
    file = io.StringIO()
    progress = MakeProgress(Console(file=file, width=100), 400, shards=2, clock=lambda: now[0])
    progress.there(0, 400)
    assert (progress.per_s(), progress.left_s()) == (None, None)
    now[0] = 5.0
    progress.there(50, 400)
    assert (progress.per_s(), progress.left_s()) == (10.0, 35.0)
    assert file.getvalue() == ""
    now[0] = 10.0
    progress.there(100, 400)
    assert file.getvalue() == "[100/400] 10.0 images/s, about 30 s left\n"
    now[0] = 40.0
    progress.there(400, 400)
    assert "packing 2 tar files" in file.getvalue()
