"""Synthetic JPEG datasets, and a user's own data: what there is, and the line for a mistake."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from samples.feeding import drawn, message
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

from e2e.data.datasets import Options, open_data
from e2e.data.sources import jpegs
from e2e.data.sources.jpegs import DatasetPlan, cached, make, size_of
from e2e.data.sources.listing import list_images
from e2e.data.types import Data, LoadSpec

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


# ---------------------------------------------------------------- data of a user's own


CPU = torch.device("cpu")
FEATURES = 5


def numbered(count: int = 12) -> TensorDataset:
    """Items of their number, each of one of three classes."""
    numbers = torch.arange(count)
    return TensorDataset(numbers.float()[:, None].expand(-1, FEATURES).contiguous(), numbers % 3)


class Endless(IterableDataset[Any]):
    """Seven items, then an end."""

    def __iter__(self) -> Iterator[Any]:
        return iter([numbered()[number] for number in range(7)])


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


def numbers(batches: list[tuple[Tensor, Tensor]]) -> list[int]:
    return torch.cat([inputs[:, 0] for inputs, _ in batches]).int().tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_comes_in_shuffled_epochs(own: Any, workers: int) -> None:
    data = own(numbered())
    spec = LoadSpec(4, CPU, 1, "dataloader", workers)
    batches = drawn(data.load(spec), 6)
    found = numbers(batches)
    assert sorted(found[:12]) == sorted(found[12:]) == list(range(12))
    assert found[:12] != found[12:]
    assert found == numbers(drawn(data.load(LoadSpec(4, CPU, 1)), 6)), "whatever the workers"
    assert all(targets.equal(inputs[:, 0].long() % 3) for inputs, targets in batches)
    assert (data.train_samples, list(data.held_out(4, CPU))) == (None, [])


def test_iterable_data_begins_again_and_tokens_are_their_own_targets(own: Any) -> None:
    for workers in (0, 1):
        loader = own(Endless()).load(LoadSpec(3, CPU, 1, workers=workers))
        assert numbers(drawn(loader, 5)) == [*range(6), *range(6), *range(3)]
    data = own((numbered(), numbered(5)), share=(1, 2))
    assert (data.train_samples, data.held_out_samples, data.classes) == (12, 5, 3)
    assert numbers(list(data.held_out(2, CPU))) == [2, 3]

    def doubled(items: list[Any]) -> Any:
        inputs, targets = default_collate(items)
        return [2 * inputs, targets]

    loader = DataLoader(numbered(), batch_size=5, collate_fn=doubled)
    found = numbers(drawn(own(loader).load(LoadSpec(3, CPU, 1, workers=1)), 4))
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
            raise ValueError("no shard for this worker\ntake fewer of them")
        return iter([numbered()[0]])


class Broken(Dataset[Any]):
    """Its first item is good."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, number: int) -> Any:
        if number:
            raise KeyError("no such row")
        return numbered()[0]


def raising() -> None:
    raise OSError("no file")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (raising, "--data mine:items: mine:items() raised OSError: no file"),
        (3, "of type int; it must be a Dataset"),
        ([], "returned data without an item"),
        ((numbered(), Endless()), "a pair of that and of what is held out, which has a length"),
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
    assert "reads images" in message(lambda: own(numbered(), loader="resident"))
    assert "could be read cold" in message(
        lambda: own(numbered()).load(LoadSpec(2, CPU, 1, cold=True))
    )
    assert "GPUs cannot share" in message(lambda: own(Endless(), share=(0, 2)))
    assert "--data mine:nothing: mine has no 'nothing'" in message(
        lambda: open_data("mine:nothing", Options((3,)))
    )
