"""Workers of a loader, killed ones too, and variants that share a loader and its waits."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from samples.feeding import drawn, message, opened
from samples.images import put
from samples.processes import is_gone, kill, wait_for
from torch.utils.data import Dataset

from e2e.case import TrainCase
from e2e.data.datasets.images import InMemory
from e2e.data.loaders import cpus
from e2e.data.loaders.workers import Workers
from e2e.data.sources.cifar10 import NORMAL
from e2e.data.types import Arrays, LoadSpec
from e2e.results.types import Training
from e2e.training.feeds import Feeds, TimedFeed
from e2e.training.step_timer import StepBlock
from e2e.training.variant import TimedPart, Variant

CPU = torch.device("cpu")


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
    assert feed.wait_stats.waited_s > 0


def test_a_loader_whose_batches_are_thrown_away_runs_once_it_is_started(fed: Any) -> None:
    feed = fed(cached=True)
    first = feed.to_device(next(feed))
    assert not feed.wait_stats.arrivals_s
    feed.wait_until_full()  # it never rests, and is not waited for
    feed.start()
    wait_for(lambda: len(feed.wait_stats.arrivals_s) >= 3)
    again = feed.to_device(next(feed))
    assert torch.equal(first[0], again[0]), "it trains on one batch"


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
