"""Loader back ends and workers: the same images whatever reads them, and who dies is named."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from samples.commands import is_gone, kill, wait_for
from samples.feeding import drawn, encoded, levels, message, opened, photo, put, same
from torch import Tensor
from torch.utils.data import Dataset

from e2e.case import TrainCase
from e2e.data.datasets import Options, open_data
from e2e.data.datasets.images import InMemory
from e2e.data.loaders import FIXED, cpus
from e2e.data.loaders import reading as cold
from e2e.data.loaders.workers import Workers
from e2e.data.sources.cifar10 import NORMAL
from e2e.data.types import IMAGENET, Arrays, Data, LoadSpec
from e2e.results.types import Training
from e2e.training.feeds import Feeds, TimedFeed
from e2e.training.step_timer import StepBlock
from e2e.training.variant import TimedPart, Variant

CPU = torch.device("cpu")


def small_arrays() -> InMemory:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (12, 3, 16, 16), dtype=torch.uint8, generator=generator)
    labelled = Arrays(images, torch.arange(12) % 3)
    return InMemory("small", labelled, labelled, IMAGENET, 3)


def numbers(batches: Iterable[tuple[Tensor, Tensor]]) -> list[int]:
    """Which of the flat images were drawn."""
    return [round(level / 10) for level in levels(batches)]


def broken_note(data: Data) -> str:
    """The note on broken images."""
    (note,) = (note for note in data.notes if "broken" in note)
    return note


def test_a_loader_that_does_not_take_this_data_or_run_here_says_why(root: Path) -> None:
    said = message(lambda: small_arrays().load(LoadSpec(4, CPU, 1, "dali")))
    assert "takes image files (--data folder:DIR)" in said
    assert "for this data choose from synthetic, pinned, torchvision, resident" in said
    said = message(lambda: opened(root, "resident"))
    assert "takes images in memory (--data cifar10:DIR, generated)" in said
    assert "which returns its WebDataset" in message(lambda: opened(root, "webdataset"))
    assert "cannot train" in message(lambda: opened(root, "read"))
    said = message(lambda: opened(root, "torchvision-draft"))
    assert said.startswith("--loader torchvision-draft is gone; use torchvision")
    said = message(lambda: opened(root, "gpu-decode"))
    assert said.startswith("--loader gpu-decode is gone; use dali")


# ---- what comes


def test_each_image_of_a_folder_comes_once_an_epoch(root: Path) -> None:
    data = opened(root)
    batches = drawn(data.load(LoadSpec(8, CPU, 1)), 5, channels_last=True)
    for images, classes in batches:
        assert images.shape == (8, 3, 16, 16)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert (images.dtype, classes.dtype) == (torch.float32, torch.int64)
    order = numbers(batches)
    assert sorted(order[:20]) == sorted(order[20:]) == list(range(20))
    assert order[:20] != order[20:]
    assert torch.cat([classes for _, classes in batches]).tolist() == [n % 2 for n in order]
    assert same(batches, drawn(data.load(LoadSpec(8, CPU, 1)), 5))
    assert same(batches, drawn(data.load(LoadSpec(8, CPU, 1, cold=True)), 5)), (
        "from the disk itself"
    )
    assert not same(batches, drawn(data.load(LoadSpec(8, CPU, 2)), 5))
    others = opened(root, workers=2)
    assert same(batches, drawn(others.load(LoadSpec(8, CPU, 1, workers=2)), 5))
    assert same(data.held_out(4, CPU), others.held_out(4, CPU))
    assert numbers(data.held_out(4, CPU)) == [0, 2, 1, 3]


def test_what_is_dropped_from_memory_is_not_there(root: Path) -> None:
    path = root / "train" / "a" / "0.jpg"
    if cold.cannot_drop(path):
        pytest.skip("the file system of temporary files drops nothing")
    assert cold.cold_missing(opened(root).source) is None  # type: ignore[attr-defined]
    with path.open("rb") as file:
        file.read()
        assert os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1

        def dropped() -> bool:
            cold.drop(file.fileno())
            try:
                os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
            except BlockingIOError:
                return True
            return False

        wait_for(dropped)  # another processor may hold pages for a moment


def test_arrays_are_cut_as_cifars_scripts_do() -> None:
    data = small_arrays()
    batches = drawn(data.load(LoadSpec(6, CPU, 1, "torchvision")), 4)
    assert same(batches, drawn(data.load(LoadSpec(6, CPU, 1, "torchvision", workers=2)), 4))
    assert [len(images) for images, _ in batches] == [6] * 4
    classes = torch.cat([classes for _, classes in batches[:2]])
    assert Counter(classes.tolist()) == {0: 4, 1: 4, 2: 4}
    # Each is a window of the mirrored image, flipped or not.
    scale, shift = IMAGENET.scale_and_shift(CPU)
    pad = torch.nn.functional.pad(data.train.images.float(), (4, 4, 4, 4), mode="reflect")
    windows = pad.unfold(2, 16, 1).unfold(3, 16, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, 16, 16)
    for image in ((batches[0][0] - shift) / scale).round():
        both = torch.stack([image, image.flip(2)])
        assert any((windows == one).all((1, 2, 3)).any() for one in both)


def test_reading_counts_bytes_and_broken_files(root: Path) -> None:
    (root / "train" / "a" / "0.jpg").write_bytes(encoded(photo(1)))
    data = opened(root)
    size_bytes = sum(path.stat().st_size for path in root.glob("train/*/*.jpg"))
    (root / "train" / "a" / "2.jpg").rename(root / "gone.jpg")
    size_bytes -= (root / "gone.jpg").stat().st_size
    for from_disk in (False, True):
        feed = data.load(LoadSpec(20, CPU, 1, "read", cold=from_disk))
        read = next(feed)
        assert (read.files, read.size_bytes) == (19, size_bytes)
        feed.close()
    assert "train/a/2.jpg (No such file or directory)" in broken_note(data)


@pytest.mark.gpu
@pytest.mark.parametrize("loader", ["torchvision", "pinned"])
def test_batches_reach_a_gpu_as_they_are(root: Path, loader: str) -> None:
    gpu = torch.device("cuda")
    want = drawn(opened(root, loader).load(LoadSpec(3, CPU, 1)), 12)
    feed = opened(root, loader).load(LoadSpec(3, gpu, 1, workers=2))
    much = torch.rand(4000, 4000, device=gpu)
    batches: list[tuple[Tensor, Tensor]] = []
    for _ in range(12):
        much = (much @ much).clamp(-1, 1)  # copies run beside it
        batches.append(feed.to_device(next(feed), channels_last=True))
    feed.close()
    assert all(images.is_contiguous(memory_format=torch.channels_last) for images, _ in batches)
    for (images, classes), (right, right_classes) in zip(batches, want, strict=True):
        torch.testing.assert_close(images.cpu(), right, check_stride=False)
        assert torch.equal(classes.cpu(), right_classes)


# ---- batches that are always the same


def test_any_data_can_be_replaced_by_a_batch_on_the_device_or_in_pinned_memory(root: Path) -> None:
    for data in (opened(root), small_arrays()):
        for name in FIXED:
            feed = data.load(LoadSpec(64, CPU, 1, loader=name))
            first, again = (feed.to_device(next(feed), channels_last=True) for _ in range(2))
            assert first[0].shape == (64, 3, 16, 16)
            assert first[0].is_contiguous(memory_format=torch.channels_last)
            assert abs(first[0].mean()) < 0.5
            assert set(first[1].tolist()) == set(range(data.classes))
            assert same([first], [again])
            assert (first[0] is again[0]) == (name == "synthetic")
            assert (feed.queue_depth, feed.pids) == (0, ())
            feed.close()
    for loader in FIXED:
        data = open_data("synthetic", Options((64,), classes=5, tokens=50))
        ((tokens, targets),) = drawn(data.load(LoadSpec(32, CPU, 1, loader)), 1)
        assert targets is tokens
        assert (tokens.shape, tokens.dtype) == ((32, 64), torch.int64)
        assert set(tokens.unique().tolist()) == set(range(50))
    data = open_data("synthetic", Options((7,), classes=5))
    ((features, classes),) = drawn(data.load(LoadSpec(4, CPU, 1, "pinned")), 1)
    assert (features.shape, features.dtype, classes.shape) == ((4, 7), torch.float32, (4,))


# ---------------------------------------------------------------- workers


def test_a_killed_worker_ends_the_run_by_name(root: Path) -> None:
    signal.signal(signal.SIGCHLD, before := signal.SIG_DFL)  # another test may have left torch's
    feed = opened(root).load(LoadSpec(4, CPU, 1, workers=2))
    assert feed.pids == ()
    next(feed)
    assert feed.queue_depth == 4
    victim = feed.pids[1]
    assert signal.getsignal(signal.SIGCHLD) == before
    kill(victim)
    said = message(lambda: [next(feed) for _ in range(9)])
    assert f"loader worker 2 of 2 (pid {victim}) was killed by signal 9 (SIGKILL)" in said
    assert "out of memory" in said
    assert feed.pids == ()
    feed.close()


def loading(pids: Any) -> None:
    """In a process of its own: have workers, and wait to be killed."""
    workers = counted(lambda _: bytes(1 << 20))  # it fills the pipe, until somebody reads it
    next(workers)
    pids.put(workers.pids)
    time.sleep(600)


def test_workers_end_with_a_run_that_is_killed() -> None:
    fork = multiprocessing.get_context("fork")
    pids = fork.SimpleQueue()
    process = fork.Process(target=loading, args=(pids,))
    process.start()
    (worker,) = pids.get()
    time.sleep(0.2)  # until the pipe is full
    assert not is_gone(worker)
    process.kill()
    process.join()
    try:
        wait_for(lambda: is_gone(worker))
    finally:
        if not is_gone(worker):
            os.kill(worker, signal.SIGKILL)


class Each(Dataset[Any]):
    """What a function makes of each number."""

    def __init__(self, make: Callable[[int], object]) -> None:
        self.make = make

    def __getitem__(self, number: int) -> object:
        return self.make(number)


def counted(make: Callable[[int], object]) -> Workers:
    batches = ([number] for number in itertools.count())
    spec = LoadSpec(1, CPU, 1, workers=1)
    return Workers(Each(make), spec, batch_sampler=batches, collate_fn=list)


def test_a_batch_that_cannot_be_sent_ends_the_run_instead_of_hanging() -> None:
    workers = counted(lambda number: (lambda: number) if number else number)  # no pickle
    assert next(workers) == [0]
    assert "could not hand over a batch" in message(lambda: next(workers))
    assert workers.pids == ()


class Ended:
    """As a CUDA event: to be let go in the process that made it alone, and kept by a cycle."""

    def __init__(self) -> None:
        self.itself, self.owner = self, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.owner:
            os.abort()


def test_workers_leave_the_garbage_of_the_training_alone() -> None:
    gc.disable()
    try:
        Ended()
        workers = counted(lambda _: gc.collect() >= 0)  # the garbage of its process
        assert [next(workers), next(workers)] == [[True]] * 2
        workers.close()
        assert gc.get_freeze_count() == 0
    finally:
        gc.enable()
        gc.collect()


def test_shared_memory_that_runs_out_is_said() -> None:
    workers = counted(lambda _: os.kill(os.getpid(), signal.SIGBUS))
    said = message(lambda: next(workers))
    assert "(SIGBUS): shared memory (/dev/shm) ran out, most likely: fewer --workers" in said
    assert "--shm-size" in said


def test_more_workers_than_cores_are_noted(root: Path) -> None:
    many = cpus.cores() + 1
    data = opened(root, workers=many)
    assert data.notes == (f"{many} loader workers on {many - 1} cores: they take turns",)
    assert opened(root, "synthetic", workers=many).notes == ()
    data = opened(root)
    data.load(LoadSpec(4, CPU, 1, workers=many)).close()
    assert "they take turns" in data.notes[0]


# ---------------------------------------------------------------- cpus


def limited() -> tuple[int, int, int, bool]:
    """In a process of its own: what is left of it when it is limited to one core."""
    going = threading.Event()
    other = threading.Thread(target=going.wait)
    other.start()
    chosen = cpus.limit_cpus(1)
    mine = os.sched_getaffinity(other.native_id or 0)
    going.set()
    return cpus.cores(), torch.get_num_threads(), len(chosen), mine == set(chosen)


def test_a_process_can_be_limited_to_some_cores_and_has_a_cpu_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        assert pool.submit(limited).result() == (1, 1, 1, True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(cpus, "_spun", lambda threads: threads - 1.0)
    said = message(lambda: cpus.limit_cpus(1))
    assert "--cpus 1: this system does not enforce CPU affinity" in said
    assert "threads got 2.0 cores at once" in said
    for number in range(8):
        core = tmp_path / f"sys/devices/system/cpu/cpu{number}/topology"
        put(core / "thread_siblings_list", b"%d,%d\n" % (number % 4, number % 4 + 4))
    assert cpus.physical_first(range(8), tmp_path) == list(range(8))
    assert cpus.physical_first([5, 1, 0, 4, 2], tmp_path) == [0, 1, 2, 4, 5]
    assert cpus.physical_first([9, 8], tmp_path) == [8, 9]  # of which nothing is known
    for number in range(4):
        core = tmp_path / f"sys/devices/system/cpu/cpu{number}/topology"
        put(core / "thread_siblings_list", b"0-1\n" if number < 2 else b"2-3\n")
    assert cpus.physical_first(range(4), tmp_path) == [0, 2, 1, 3]
    began_s = cpus.cpu_seconds([os.getpid()])
    assert began_s > 0
    end_s = time.process_time() + 0.05
    while time.process_time() < end_s:
        pass
    assert cpus.cpu_seconds([os.getpid(), 2**22 + 1]) > began_s


# ---------------------------------------------------------------- feeds


FED = TrainCase(
    "cnn-cifar", "fp32", 4, "3x32x32", data="generated", loader="torchvision", workers=1
)


@pytest.fixture
def data() -> InMemory:
    """Twelve pictures, each of its number as a grey."""
    pixels = torch.arange(12, dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 3, 32, 32)
    images = Arrays(pixels.contiguous(), torch.arange(12))
    return InMemory("generated", images, images, NORMAL, 12)


@pytest.fixture
def fed(data: InMemory) -> Iterator[Callable[..., TimedFeed]]:
    """Opens feeds of cases like FED, which share loaders; closes them when a test ends."""
    feeds = Feeds(data, CPU, seed=1)
    with ExitStack() as stack:
        yield lambda **changes: stack.enter_context(closing(feeds.open(replace(FED, **changes))))


def classes(feed: TimedFeed) -> list[int]:
    """Of the next batch."""
    return feed.to_device(next(feed))[1].tolist()


def in_order(data: InMemory, count: int) -> list[list[int]]:
    """The classes of the first batches of FED's loader."""
    own = data.load(LoadSpec(4, CPU, 1, "torchvision"))
    return [targets.tolist() for _, targets in drawn(own, count)]


# ---------------------------------------------------------------- sharing


def test_variants_that_load_alike_take_turns_with_one_loader(
    data: InMemory, fed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[LoadSpec] = []
    monkeypatch.setattr(data, "load", lambda spec: asked.append(spec) or InMemory.load(data, spec))
    one, other = fed(), fed(recipe="amp-bf16", layout="nhwc")
    assert len(asked) == 1, "none is opened just to place batches"
    found = [classes(feed) for feed in (one, other, other, one)]
    assert found == in_order(data, 4), "no batch twice, none left out"
    images, _ = other.to_device(next(other), channels_last=True)
    assert images.is_contiguous(memory_format=torch.channels_last)
    one.close()
    one.close()
    next(other)  # the loader is there while anybody needs it
    assert len(classes(fed(workers=0, batch=2))) == 2, "who loads otherwise has another"


def test_what_lies_ready_is_thrown_away(data: InMemory, fed: Any) -> None:
    feed, order = fed(), in_order(data, 8)
    assert classes(feed) == order[0]
    time.sleep(0.5)  # for the worker to get ahead
    feed.drop_prefetched()
    assert 2 <= order.index(classes(feed)) <= 3, "at most as many as the worker may be ahead"
    assert feed.waited_s > 0


def test_a_refill_lasts_until_the_workers_rest_and_who_waits_is_known_by_its_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They work for two looks; of a third they take less than a tenth."""
    took_s = iter([0.0, 0.2, 0.2, 0.3, 0.3, 0.31])
    monkeypatch.setattr("e2e.training.feeds.cpu_seconds", lambda _: next(took_s))
    monkeypatch.setattr("e2e.training.feeds.MAX_REFILL_S", 1e9)
    feed = TimedFeed(SimpleNamespace(pids=(1,)), lambda: None)  # type: ignore[arg-type]
    feed.wait_until_full()
    assert list(took_s) == []
    parts = (TimedPart("", lambda: None, 0.01),)
    fed = Variant(Training(FED, "ok"), None, None, parts)  # type: ignore[arg-type]
    assert fed.waits, "nothing is known yet"
    for waited_s, waits in ((0.0, False), (0.01, False), (0.2, True), (0.0, True)):
        fed.blocks.append(StepBlock((0.1,), None, (0.1,), 1.0, 10, waited_s))
        assert fed.waits == waits, "once is enough: after that it begins with nothing ready"
