"""Data that networks train on, made and of a user's own: what is drawn, and what bad files are."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import signal
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from PIL.ExifTags import Base
from samples.feeding import drawn, flat, message, random_image, same, save
from samples.feeding import drawn as batches
from samples.feeding import levels as numbers
from samples.judge import Files, files_in
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    default_collate,
    get_worker_info,
)
from torchvision.datasets import CIFAR10

from e2e.data.datasets import Options, open_data, tokens
from e2e.data.datasets.images import InMemory
from e2e.data.datasets.tokens import SUCCESSORS, entropy, rows_of_tokens
from e2e.data.loaders.reading import decode
from e2e.data.loaders.resident import PADDING, Rows
from e2e.data.sources import generated, jpegs
from e2e.data.sources.jpegs import DatasetPlan, cached, make, size_of
from e2e.data.sources.listing import list_images
from e2e.data.types import Arrays, Data, LoadSpec, Normal

CPU = torch.device("cpu")
VOCABULARY = 251
SIDEWAYS = Image.Exif()
SIDEWAYS[Base.Orientation] = 6


def opened(spec: str, sample: tuple[int, ...] = (3, 32, 32), **options: Any) -> Data:
    return open_data(spec, Options(sample, **options))


# ---- of several ranks, of the word, synthetic


def test_ranks_share_a_batch_of_noise_and_what_is_held_out(pictures: Path) -> None:
    for spec in ("generated", f"folder:{pictures}"):
        alone = list(opened(spec).held_out(2, CPU))
        for rank in range(3):
            own = opened(spec, share=(rank, 3)).held_out(2, CPU)
            assert same(own, alone[rank::3])
    for loader in ("synthetic", "pinned"):
        spec = LoadSpec(4, CPU, 5, loader)
        parts = [
            batches(opened("synthetic", classes=9, share=(rank, 3)).load(spec), 1)[0]
            for rank in range(3)
        ]
        whole = opened("synthetic", classes=9).load(replace(spec, batch=12))
        ((images, classes),) = batches(whole, 1)
        for rank, (own, own_classes) in enumerate(parts):
            assert torch.equal(own, images[rank::3])
            assert torch.equal(own_classes, classes[rank::3])


def test_data_that_does_not_fit_the_network(pictures: Path) -> None:
    for spec in ("cifar10:/data", "folder:/data"):
        assert "--data synthetic" in message(lambda spec=spec: opened(spec, (128,), tokens=500))
    for spec in ("generated", "cifar10:/data"):
        said = message(lambda spec=spec: opened(spec, (3, 224, 224)))
        assert all(part in said for part in ("3x32x32", "3x224x224", "resnet18-cifar"))
    assert "takes no folder" in message(lambda: opened("generated:/data"))
    assert "--loader torchvision reads images" in message(lambda: text_of("torchvision"))
    assert "has images" in message(lambda: open_data("made", Options((64,), tokens=256)))
    assert "3 channels" in message(lambda: opened(f"folder:{pictures}", (1, 28, 28)))
    save(random_image(1), pictures / "val" / "vogel" / "1.jpg")
    assert "vogel" in message(lambda: opened(f"folder:{pictures}", (3, 16, 16)))


def test_synthetic_images_are_one_normal_batch_of_the_seed() -> None:
    data = opened("synthetic", (3, 16, 24), classes=7)
    feed = data.load(LoadSpec(64, CPU, 3))
    images, classes = feed.to_device(next(feed))
    assert images.shape == (64, 3, 16, 24)
    assert (images.dtype, classes.dtype) == (torch.float32, torch.int64)
    assert abs(images.mean()) < 0.02
    assert abs(images.std() - 1) < 0.02
    assert set(classes.tolist()) == set(range(7))
    assert feed.to_device(next(feed))[0] is images, "so that a captured step need not copy it"
    assert data.train_samples is None
    assert same(batches(data.load(LoadSpec(64, CPU, 3)), 1), [(images, classes)])
    assert not same(batches(data.load(LoadSpec(64, CPU, 4)), 1), [(images, classes)])
    assert not list(data.held_out(64, CPU))


# ---- data that lives on the device


HALF = Normal((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def numbered(count: int, classes: int = 10) -> InMemory:
    """Images that are their own number in every pixel; classes follow one another."""
    pixels = torch.arange(count, dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 3, 8, 8)
    labelled = Arrays(pixels.contiguous(), torch.arange(count) % classes)
    return InMemory("numbered", labelled, labelled, HALF, classes)


def bytes_of(images: Tensor) -> Tensor:
    return ((images * 0.25 + 0.5) * 255).round().long()


def test_an_epoch_has_every_image_once_and_leaves_global_random_numbers(pictures: Path) -> None:
    data = numbered(50)
    drawn = batches(data.load(LoadSpec(16, CPU, 1)), 25)  # 8 epochs of 50
    assert all(images.shape == (16, 3, 8, 8) and images.is_contiguous() for images, _ in drawn)
    numbers = torch.cat([bytes_of(images)[:, 0, 0, 0] for images, _ in drawn])
    classes = torch.cat([classes for _, classes in drawn])
    assert torch.equal(numbers % 10, classes)
    epochs = numbers.split(50)
    assert all(sorted(epoch.tolist()) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 8
    state = torch.get_rng_state()
    batches(numbered(40).load(LoadSpec(16, CPU, 5)), 4)
    for workers in (0, 1):
        data = opened(f"folder:{pictures}", (3, 16, 16))
        batches(data.load(LoadSpec(4, CPU, 1, workers=workers)), 2)
    batches(opened("synthetic").load(LoadSpec(4, CPU, 1)), 2)
    assert torch.equal(torch.get_rng_state(), state)


def test_augmentation_is_every_cut_of_the_mirrored_border_and_its_flip() -> None:
    image = torch.randint(256, (1, 3, 12, 10), dtype=torch.uint8)
    padded = F.pad(image.float(), (PADDING,) * 4, mode="reflect").long()
    cuts = {}
    for down in range(2 * PADDING + 1):
        for across in range(2 * PADDING + 1):
            cut = padded[0, :, down : down + 12, across : across + 10]
            cuts[cut.numpy().tobytes()] = (down, across, False)
            cuts[cut.flip(2).numpy().tobytes()] = (down, across, True)
    data = InMemory(
        "one", Arrays(image, torch.zeros(1, dtype=torch.int64)), numbered(1).kept, HALF, 1
    )
    ((images, _),) = batches(data.load(LoadSpec(4000, CPU, 1)), 1)
    found = [cuts[cut.contiguous().numpy().tobytes()] for cut in bytes_of(images)]
    flips = sum(flipped for _, _, flipped in found)
    assert abs(flips - 2000) < 5 * 1000**0.5  # five standard deviations
    for places in (
        Counter(down for down, _, _ in found),
        Counter(across for _, across, _ in found),
    ):
        assert len(places) == 9
        assert all(abs(count - 4000 / 9) < 5 * 20 for count in places.values())


def test_held_out_images_come_once_in_order_and_some_of_them_have_every_class() -> None:
    data = numbered(50)
    drawn = list(data.held_out(16, CPU))
    assert [len(images) for images, _ in drawn] == [16, 16, 16, 2]
    images = torch.cat([images for images, _ in drawn])
    torch.testing.assert_close(images, (data.kept.images / 255 - 0.5) / 0.25)
    assert torch.equal(torch.cat([classes for _, classes in drawn]), data.kept.classes)
    for classes in (2, 5, 10):
        data = numbered(4000, classes=classes)
        found, again = (
            torch.cat([some for _, some in data.held_out(64, CPU, count=400)]) for _ in range(2)
        )
        assert len(found) == 400
        assert torch.bincount(found, minlength=classes).min() > 400 / classes / 2
        assert torch.equal(found, again)


def test_generated_images_have_ten_classes_and_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generated, "images", generated.images.__wrapped__)  # not the cached ones
    monkeypatch.setattr(generated, "TRAIN", 5000)
    monkeypatch.setattr(generated, "HELD_OUT", 1000)
    data = opened("generated", classes=1000)
    assert (data.name, data.classes) == ("generated", 10)
    assert (data.train_samples, data.held_out_samples) == (5000, 1000)
    for part, each in ((data.train, 500), (data.kept, 100)):
        assert torch.equal(part.classes.bincount(), torch.full((10,), each))
    images = [bytes(one) for part in (data.train, data.kept) for one in part.images.numpy()]
    assert len(set(images)) == 6000
    ((drawn, _),) = batches(data.load(LoadSpec(512, CPU, 1)), 1)
    assert drawn.shape == (512, 3, 32, 32)
    assert abs(drawn.mean()) < 0.1
    assert abs(drawn.std() - 1) < 0.1


# ---- generated text


def text_of(loader: str = "", **options: Any) -> Data:
    """Of a vocabulary that no other test uses: what is made is kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "TRAIN_TOKENS", 1 << 14)
        return open_data("generated", Options((64,), tokens=VOCABULARY, loader=loader, **options))


@pytest.mark.parametrize("vocabulary", [4, 64, 50_257])
def test_the_entropy_is_that_of_the_chain_that_is_drawn(vocabulary: int) -> None:
    """Counted in long text: the surprise of each token after the one before it."""
    assert 0 < entropy(vocabulary) <= math.log(SUCCESSORS)
    if vocabulary > 64:
        assert entropy(vocabulary) == entropy(SUCCESSORS)
        return
    text = rows_of_tokens(1000, 256, vocabulary, 1)
    pairs, firsts = Counter[tuple[int, int]](), Counter[int]()
    for row in text.tolist():
        pairs.update(pairwise(row))
        firsts.update(row[:-1])
    counted = -sum(n * math.log(n / firsts[a]) for (a, _), n in pairs.items()) / pairs.total()
    assert counted == pytest.approx(entropy(vocabulary), rel=0.01)


@given(st.integers(1, 5), st.integers(1, 40), st.integers(2, 300), st.integers(1, 2))
def test_tokens_are_alike_each_time(rows: int, length: int, vocabulary: int, stream: int) -> None:
    text = rows_of_tokens(rows, length, vocabulary, stream)
    assert text.shape == (rows, length)
    assert text.min() >= 0
    assert text.max() < vocabulary
    assert np.array_equal(text, rows_of_tokens(rows, length, vocabulary, stream))


def test_both_parts_walk_through_one_chain_and_rows_come_once_as_their_own_targets() -> None:
    train, kept = (rows_of_tokens(400, 256, 64, stream) for stream in (1, 2))
    assert not np.array_equal(train, kept)
    after = [set((rows[:, 1:][rows[:, :-1] == 7]).tolist()) for rows in (train, kept)]
    assert after[0] == after[1]
    assert len(after[0]) == SUCCESSORS
    opened = text_of()
    held_out = list(opened.held_out(16, CPU, count=40))
    assert [len(inputs) for inputs, _ in held_out] == [16, 16, 8]
    assert all(inputs is targets and inputs.shape[1:] == (64,) for inputs, targets in held_out)
    assert opened.classes == VOCABULARY
    rows = torch.arange(10).reshape(10, 1)
    feed = Rows(rows, 4, seed=3)
    seen = torch.cat([feed.to_device(next(feed))[0] for _ in range(5)]).flatten()
    assert sorted(seen[:10].tolist()) == sorted(seen[10:].tolist()) == list(range(10))


@pytest.mark.parametrize("loader", ["", "pinned"])
@pytest.mark.parametrize(("batch", "ranks", "steps"), [(1, 3, 4), (9, 2, 2), (4, 1, 1)])
def test_ranks_share_one_order(batch: int, ranks: int, steps: int, loader: str) -> None:
    def rows(batch: int, share: tuple[int, int]) -> list[torch.Tensor]:
        feed = text_of(loader, share=share).load(LoadSpec(batch, CPU, 7, loader))
        return [feed.to_device(next(feed))[0] for _ in range(steps)]

    parts = [rows(batch, (rank, ranks)) for rank in range(ranks)]
    for whole, *own in zip(rows(batch * ranks, (0, 1)), *parts, strict=True):
        assert torch.equal(torch.stack(own, dim=1).flatten(0, 1), whole)


# ---- CIFAR-10


RECORDS = 200  # a file, in place of 10,000


def cifar_records(seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    raw = np.frombuffer(np.random.PCG64(seed).random_raw(RECORDS * 384).tobytes(), np.uint8)
    return raw.reshape(RECORDS, 3072), raw[:RECORDS] % 10


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Short files of CIFAR-10's kind with noise in them, as if they were the published ones."""
    folder = tmp_path / CIFAR10.base_folder
    folder.mkdir()
    tables: dict[str, dict[str, Any]] = {"batches.meta": {"label_names": list("abcdefghij")}}
    for seed, name in enumerate((*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")):
        pixels, labels = cifar_records(seed)
        tables[name] = {"data": pixels, "labels": labels.tolist()}
    sums = {}
    for name, table in tables.items():
        (folder / name).write_bytes(content := pickle.dumps(table))
        sums[name] = hashlib.md5(content).hexdigest()
    *train, kept = ([name, sums[name]] for name in tables if "batch_" in name or "_batch" in name)
    monkeypatch.setattr(CIFAR10, "train_list", train)
    monkeypatch.setattr(CIFAR10, "test_list", [kept])
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": sums["batches.meta"]})
    return folder


def test_cifar10_is_read_from_its_folder_and_the_one_above(cifar: Path) -> None:
    for folder in (cifar, cifar.parent):
        data = opened(f"cifar10:{folder}")
        assert (data.name, data.classes) == ("cifar10", 10)
        assert (data.train_samples, data.held_out_samples) == (5 * RECORDS, RECORDS)
        for images, number, at in (
            (data.train, 1, RECORDS),
            (data.train, 3, 3 * RECORDS),
            (data.kept, 5, 0),
        ):
            pixels, labels = cifar_records(number)
            assert np.array_equal(images.images[at : at + RECORDS].reshape(-1, 3072), pixels)
            assert np.array_equal(images.classes[at : at + RECORDS], labels)


class Trap:
    """Runs a program when it is unpickled."""

    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.sprung}",)


def test_files_that_are_not_the_published_ones_are_refused(cifar: Path, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    evil = pickle.dumps({"data": Trap(sprung), "labels": []})
    (cifar / "data_batch_3").write_bytes(evil)
    said = message(lambda: opened(f"cifar10:{cifar}"))
    assert f"no CIFAR-10 in {cifar}" in said
    assert "unpack cifar-10-python.tar.gz there" in said
    assert not sprung.exists()
    pickle.loads(evil)  # it is a real trap
    assert sprung.exists()
    (tmp_path / "cifar-10-python.tar.gz").touch()
    (cifar / "data_batch_3").unlink()
    assert f"tar -xf {tmp_path}" in message(lambda: opened(f"cifar10:{tmp_path}"))


# ---- folders


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Flat pictures, each as bright as its number: 12 of cats, 8 of dogs, and 3 and 2 held out."""
    root = tmp_path / "pictures"
    for number in range(20):
        save(flat(number), root / "train" / ("katze", "犬")[number >= 12] / f"{number}.png")
    for number in range(200, 205):
        save(flat(number), root / "val" / ("katze", "犬")[number >= 203] / f"{number}.png")
    return root


def test_a_folder_is_trained_on_in_its_sample_shape_and_holds_out_its_val(pictures: Path) -> None:
    for name in ("valid", "validation", "test"):
        (pictures / "val").rename(pictures / name)
        assert opened(f"folder:{pictures}", (3, 16, 8)).held_out_samples == 5
        (pictures / name).rename(pictures / "val")
    data = opened(f"folder:{pictures}", (3, 16, 8))
    assert (data.name, data.classes, data.notes) == ("folder", 2, ())
    ((images, classes),) = batches(data.load(LoadSpec(20, CPU, 1)), 1)
    assert images.is_contiguous()
    assert classes.tolist() == [int(number >= 12) for number in numbers([(images, classes)])]
    drawn = list(data.held_out(4, CPU))
    assert [images.shape for images, _ in drawn] == [(4, 3, 16, 8), (1, 3, 16, 8)]
    assert numbers(drawn) == [200, 201, 202, 203, 204]
    assert torch.cat([classes for _, classes in drawn]).tolist() == [0, 0, 0, 1, 1]
    Path(os.fsdecode(bytes(pictures) + b"/train/katze/\xff\n.jpg")).touch()
    data = opened(f"folder:{pictures}", (3, 16, 16))
    batches(data.load(LoadSpec(21, CPU, 1)), 1)
    (note,) = data.notes
    assert note == "1 broken image left out: train/katze/??.jpg (not an image)"
    note.encode()


def test_without_val_a_tenth_of_each_class_is_held_out(tmp_path: Path) -> None:
    for number in range(60):
        save(flat(number), tmp_path / ("many" if number < 40 else "some") / f"{number}.png")
    data = opened(f"folder:{tmp_path}", (3, 8, 8))
    assert (data.train_samples, data.held_out_samples) == (54, 6)
    assert "6 of train are held out" in data.notes[0]
    held_out = numbers(data.held_out(60, CPU))
    assert sum(number < 40 for number in held_out) == 4
    trained = numbers(batches(data.load(LoadSpec(54, CPU, 1)), 1))
    assert sorted(trained + held_out) == list(range(60))
    assert list_images(tmp_path) == list_images(tmp_path)


def deep(image: Image.Image, kind: Any, factor: int) -> Image.Image:
    return Image.fromarray(np.asarray(image.convert("L")).astype(kind) * factor)


KINDS_OF_IMAGES: dict[str, tuple[Callable[[Image.Image], Image.Image], str, dict[str, Any]]] = {
    "colour": (lambda image: image, "jpg", {}),
    "progressive": (lambda image: image, "jpg", {"progressive": True}),
    "grey": (lambda image: image.convert("L"), "jpg", {}),
    "black and white": (lambda image: image.convert("1"), "png", {}),
    "CMYK": (lambda image: image.convert("CMYK"), "jpg", {}),
    "palette": (lambda image: image.convert("P"), "gif", {}),
    "transparent": (lambda image: image.convert("RGBA"), "png", {}),
    "grey and transparent": (lambda image: image.convert("LA"), "png", {}),
    "webp": (lambda image: image, "webp", {}),
    "16 bits": (lambda image: deep(image, np.uint16, 257), "png", {}),
    "16 bits, tiff": (lambda image: deep(image, np.uint16, 257), "tiff", {}),
    "32 bits": (lambda image: deep(image, np.int32, 1), "tiff", {}),
    "on its side": (lambda image: image.rotate(90, expand=True), "jpg", {"exif": SIDEWAYS}),
}


@pytest.mark.parametrize("kind", KINDS_OF_IMAGES)
def test_images_of_all_kinds_become_rgb(tmp_path: Path, kind: str) -> None:
    changed, suffix, options = KINDS_OF_IMAGES[kind]
    halves = Image.new("RGB", (32, 16), (255, 255, 255))
    halves.paste((0, 0, 0), (0, 0, 16, 16))
    content = save(changed(halves), tmp_path / f"a.{suffix}", **options).read_bytes()
    image = decode(content)
    assert (image.mode, image.size) == ("RGB", (32, 16))
    found = np.asarray(image)
    assert found[4:12, 2:12].mean() < 10
    assert found[4:12, 20:30].mean() > 245


def bomb(path: Path) -> None:
    """A PNG that claims 60,000 x 60,000 pixels."""
    save(random_image(1), path)
    raw = bytearray(path.read_bytes())
    raw[16:24] = struct.pack(">II", 60_000, 60_000)
    path.write_bytes(raw)


@pytest.fixture
def damaged(pictures: Path) -> Path:
    """The pictures and five that are broken."""
    cats, held_out = pictures / "train" / "katze", pictures / "val" / "犬"
    (cats / "empty.jpg").touch()
    (cats / "text.jpg").write_text("not an image at all")
    (cats / "._0.png").write_text("hidden, so nobody's image")
    (cats / "gone.png").symlink_to(pictures / "nowhere.png")
    whole = save(random_image(3, (300, 300)), cats / "cut.jpg").read_bytes()
    (cats / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    bomb(held_out / "bomb.png")
    return pictures


def test_broken_images_are_counted_by_name(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = opened(f"folder:{damaged}", (3, 16, 16), workers=1)
    assert (data.train_samples, data.notes) == (23, ("left out, as no images: 1 .png",))
    drawn = batches(data.load(LoadSpec(8, CPU, 1)), 6)
    _, note = data.notes
    assert note.startswith("3 broken images left out")
    for name in ("empty.jpg", "text.jpg", "cut.jpg"):
        assert f"train/katze/{name} (" in note, "each is listed"
    monkeypatch.setattr("e2e.data.datasets.images.NAMED", 2)
    _, note = data.notes
    assert note.endswith("and 1 more"), "as far as a note may go"
    # The next good one takes the place of one that is broken: its number comes again.
    counts = Counter(numbers(drawn))
    assert sum(counts.values()) == 48
    assert set(counts) == set(range(20))
    held_out = list(data.held_out(3, CPU))
    assert sorted(numbers(held_out)) == [200, 201, 202, 203, 204]
    assert data.notes[1].startswith("4 broken images")


def test_a_folder_of_broken_images_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for number in range(3):
            path = save(random_image(number, (64, 64)), tmp_path / name / f"{number}.jpg")
            path.write_bytes(path.read_bytes()[:200])
    data = opened(f"folder:{tmp_path}", (3, 16, 16))
    loader = data.load(LoadSpec(2, CPU, 1))
    assert "none of the 4 training images" in message(lambda: batches(loader, 1))
    assert "none of the 2 held-out images" in message(lambda: list(data.held_out(2, CPU)))
    assert "6 broken images" in data.notes[1]
    assert str(tmp_path) not in data.notes[1]


def test_what_a_folder_leaves_out_is_noted(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, train = list_images(pictures), pictures / "train"
    (train / "circle").symlink_to("circle")
    (train / "katze" / "circle").symlink_to("circle")
    (train / "none").mkdir()
    (train / ".hidden").mkdir()
    (train / "katze" / "other.txt").touch()
    (train / "up").symlink_to("..")
    (train / "katze" / "link").symlink_to(train / "none")
    os.mkfifo(train / "katze" / "pipe.jpg")
    locked = train / "katze" / "locked"
    locked.mkdir()
    real = os.scandir

    def scandir(path: Path) -> Any:  # root may read every folder
        if Path(path) == locked:
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = list_images(pictures)
    assert (found.train, found.held_out, found.classes) == (
        whole.train, whole.held_out, whole.classes
    )  # fmt: skip
    notes = " ".join(found.notes)
    for said in (f"no image in {train / 'none'}", "2 link that leads nowhere or up", "1 .txt",
                 "1 .jpg", "1 link to a folder", "1 folder that cannot be read"):  # fmt: skip
        assert said in notes
    assert "hidden" not in notes


# ---- synthetic JPEGs


PLAN = DatasetPlan(20, 2)


def made_in(folder: Path, processes: int = 1) -> list[int]:
    """How many images there were at each report; none where all were there."""
    reports: list[int] = []
    make(folder, PLAN, lambda done, _: reports.append(done), processes)
    return reports


def snapshot(folder: Path) -> tuple[Files, list[int]]:
    """What is in a folder, and when each file was written."""
    return files_in(folder), sorted(path.stat().st_mtime_ns for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset made by two processes; not to be changed."""
    folder = tmp_path_factory.mktemp("made") / "whole"
    assert made_in(folder, processes=2)[-1] == PLAN.images
    return folder


# ---- the images


def test_sizes_and_bytes_are_about_those_of_imagenet(whole: Path) -> None:
    sizes = np.array([size_of(1, index) for index in range(3000)])
    assert sizes.mean(axis=0) == pytest.approx([465, 405], abs=20)
    assert Counter(map(tuple, sizes.tolist())).most_common(1)[0][0] == (500, 375)
    longer = sizes.max(axis=1)
    assert 1000 < longer.max() <= 1200
    assert 0.01 < (longer < 250).mean() < 0.1
    bits, pixels = 0, 0
    for path in whole.glob("*/*/*.jpg"):
        with Image.open(path) as image:
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert image.size == size_of(1, int(path.stem))
            bits, pixels = bits + 8 * path.stat().st_size, pixels + image.width * image.height
    assert 3.8 < bits / pixels < 5.2


# ---- which image is where


@given(st.integers(1, 50), st.integers(2, 40), st.integers(0, 49), st.data())
def test_plans_name_each_image(classes: int, rounds: int, more: int, data: st.DataObject) -> None:
    images = classes * rounds + more % classes
    plan = DatasetPlan(images, classes)
    index = data.draw(st.integers(0, images - 1))
    paths = [plan.path(i) for i in range(images)]
    assert len(set(paths)) == images
    parts = Counter((path.split("/")[0], i % classes) for i, path in enumerate(paths))
    assert set(parts) == {(part, label) for part in ("train", "val") for label in range(classes)}
    held_out = sum(count for (part, _), count in parts.items() if part == "val")
    assert held_out <= max(classes, images / 10 + classes)
    # A longer plan has the same images, and more.
    assert DatasetPlan(images + 7, classes).path(index) == plan.path(index)


def test_the_folders_are_what_training_opens(whole: Path, tmp_path: Path) -> None:
    listing = list_images(whole)
    assert listing.notes == ()
    assert listing.classes == tuple(f"class-{label:04}" for label in range(PLAN.classes))
    assert (len(listing.train), len(listing.held_out)) == (18, 2)
    for image in (*listing.train, *listing.held_out):
        assert image.label == int(Path(image.path).stem) % PLAN.classes
    made_in(tmp_path / "alone")
    assert files_in(tmp_path / "alone") == files_in(whole)


# ---- made once, and whole or not at all


@pytest.mark.parametrize("last", [17, 5])
def test_an_interrupted_dataset_is_hidden_and_gone_on_with(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """A process is killed at an image, and then another one."""
    real = jpegs.jpeg

    def killed(seed: int, index: int, label: int) -> bytes:
        if index == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(seed, index, label)

    folder = tmp_path / "made"
    with monkeypatch.context() as patch:
        patch.setattr(jpegs, "jpeg", killed)
        assert "was killed" in message(lambda: made_in(folder))
    assert not folder.exists()
    assert len([*tmp_path.rglob("*.jpg")]) == last
    (folder / "train").mkdir(parents=True)  # as older versions left it
    assert made_in(folder)[0] == last
    assert files_in(folder) == files_in(whole)
    assert made_in(folder) == []


def test_the_usual_dataset_is_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpegs, "USUAL", DatasetPlan(4, 2))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said: list[str] = []
    begun: list[str] = []
    folder = cached(lambda *_: None, said.append, begun.append)
    assert folder.is_relative_to(tmp_path)
    assert begun == [f"--data made: 4 images, 0.0 GB, are kept in {folder}"]
    before = snapshot(folder)
    assert cached(lambda *_: None, said.append, begun.append) == folder
    assert len(begun) == 1
    assert snapshot(folder) == before
    assert not said


# ---- data of a user's own


FEATURES = 5


def items(count: int = 12) -> TensorDataset:
    """Items of their number, each of one of three classes."""
    drawn_numbers = torch.arange(count)
    return TensorDataset(
        drawn_numbers.float()[:, None].expand(-1, FEATURES).contiguous(), drawn_numbers % 3
    )


class Endless(IterableDataset[Any]):
    """Seven items, then an end."""

    def __iter__(self) -> Iterator[Any]:
        return iter([items()[number] for number in range(7)])


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Data]:
    """Opens what a function in a module of that name returns, as a user's own data."""

    def opened(make: Any, **options: Any) -> Data:
        module = ModuleType("mine")
        module.items = make if callable(make) else lambda: make  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "mine", module)
        given = {"sample": (FEATURES,), "classes": 3} | options
        return open_data("mine:items", Options(**given))

    return opened


def drawn_numbers(batches: list[tuple[Tensor, Tensor]]) -> list[int]:
    return torch.cat([inputs[:, 0] for inputs, _ in batches]).int().tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_comes_in_shuffled_epochs(own: Any, workers: int) -> None:
    data = own(items())
    spec = LoadSpec(4, CPU, 1, "dataloader", workers)
    batches = drawn(data.load(spec), 6)
    found = drawn_numbers(batches)
    assert sorted(found[:12]) == sorted(found[12:]) == list(range(12))
    assert found[:12] != found[12:]
    assert found == drawn_numbers(drawn(data.load(LoadSpec(4, CPU, 1)), 6)), "whatever the workers"
    assert all(targets.equal(inputs[:, 0].long() % 3) for inputs, targets in batches)
    assert (data.train_samples, list(data.held_out(4, CPU))) == (None, [])


def test_iterable_data_begins_again_and_tokens_are_their_own_targets(own: Any) -> None:
    for workers in (0, 1):
        loader = own(Endless()).load(LoadSpec(3, CPU, 1, workers=workers))
        assert drawn_numbers(drawn(loader, 5)) == [*range(6), *range(6), *range(3)]
    data = own((items(), items(5)), share=(1, 2))
    assert (data.train_samples, data.held_out_samples, data.classes) == (12, 5, 3)
    assert drawn_numbers(list(data.held_out(2, CPU))) == [2, 3]

    def doubled(items: list[Any]) -> Any:
        inputs, targets = default_collate(items)
        return [2 * inputs, targets]

    loader = DataLoader(items(), batch_size=5, collate_fn=doubled)
    found = drawn_numbers(drawn(own(loader).load(LoadSpec(3, CPU, 1, workers=1)), 4))
    assert sorted(found) == [2 * number for number in range(12)]

    class Rows(Dataset[Tensor]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, number: int) -> Tensor:
            return torch.full((8,), number)

    data = own(Rows(), sample=(8,), tokens=10)
    ((tokens, targets),) = drawn(data.load(LoadSpec(6, CPU, 1)), 1)
    assert sorted(tokens[:, 0].tolist()) == list(range(6))
    assert targets.equal(tokens)
    assert "mine:items has token 5; the network has 4" in message(
        lambda: drawn(own(Rows(), sample=(8,), tokens=4).load(LoadSpec(6, CPU, 1)), 1)
    )


class Shards(IterableDataset[Any]):
    """One alone, where there are several workers: the first ends at once."""

    def __iter__(self) -> Iterator[Any]:
        if (worker := get_worker_info()) and worker.id:
            time.sleep(0.5)
            raise ValueError("no shard for this worker\ntake fewer of them\n  at shard 7")
        return iter([items()[0]])


class Broken(Dataset[Any]):
    """Its first item is good."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> Any:
        if number:
            raise KeyError("no such row")
        return items()[0]


def raising() -> None:
    raise OSError("no file")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (raising, "--data mine:items: mine:items() raised OSError: no file"),
        (3, "of type int; it must be a Dataset"),
        ([], "returned data without an item"),
        (
            (items(), Endless()),
            "a pair of that and of what is held out, which has a length",
        ),
        ([(torch.zeros(FEATURES), 7)], "--data mine:items has class 7; the network has 3"),
        ([torch.zeros(FEATURES)], "they must be (inputs, targets)"),
        ([(torch.zeros(2, 2), 0)], "has inputs of 2x2, the network takes 5 (--input)"),
        ([(torch.zeros(FEATURES).byte(), 0)], "has inputs of uint8, the network takes float32"),
    ],
)
def test_each_mistake_has_one_line(own: Any, make: Any, said: str) -> None:
    assert said in message(lambda: own(make))


def test_what_an_item_raises_in_a_worker_is_one_line(own: Any) -> None:
    for workers in (0, 1):
        said = message(lambda: drawn(own(Broken()).load(LoadSpec(2, CPU, 1, workers=workers)), 1))  # noqa: B023
        assert said == "--data mine:items: an item raised KeyError: 'no such row'"
    parts = own(Shards()).load(LoadSpec(2, CPU, 1, workers=2))
    said = message(lambda: drawn(parts, 9))
    assert said == "--data mine:items: an item raised ValueError: no shard for this worker"
    few = own(Endless()).load(LoadSpec(9, CPU, 1))
    assert message(lambda: next(few)) == "--data mine:items has no batch of 9 items"
    assert "reads images" in message(lambda: own(items(), loader="resident"))
    assert "could be read cold" in message(
        lambda: own(items()).load(LoadSpec(2, CPU, 1, cold=True))
    )
    assert "GPUs cannot share" in message(lambda: own(Endless(), share=(0, 2)))
    assert "--data mine:nothing: mine has no 'nothing'" in message(
        lambda: open_data("mine:nothing", Options((3,)))
    )
