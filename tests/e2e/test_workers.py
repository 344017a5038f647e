"""Workers of a loader: killed ones, the training's garbage and memory, what they receive."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from samples.fetching import message, opened
from samples.images import put
from samples.processes import is_gone, kill, wait_for
from torch.utils.data import Dataset

from e2e.data.loaders import cpus
from e2e.data.loaders.workers import Workers
from e2e.data.types import LoadSpec

CPU = torch.device("cpu")


def test_a_killed_worker_ends_the_run_by_name(root: Path) -> None:
    signal.signal(signal.SIGCHLD, before := signal.SIG_DFL)  # another test may have left torch's
    feed = opened(root).load(LoadSpec(4, CPU, 1, workers=2))
    assert feed.pids == ()
    next(feed)
    assert feed.ahead == 4
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


def counted(make: Callable[[int], object], batch_bytes: int = 8) -> Workers:
    batches = ([number] for number in itertools.count())
    spec = LoadSpec(1, CPU, 1, workers=1)
    return Workers(
        Each(make), spec, batch_bytes=batch_bytes, batch_sampler=batches, collate_fn=list
    )


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


def test_shared_memory_that_is_too_small_is_found_before_workers_start(root: Path) -> None:
    feed = opened(root).load(LoadSpec(10**9, CPU, 1, workers=2))
    said = message(lambda: next(feed))
    assert "--workers 2 has 5 batches of 776,000.0 MB under way, 3,880,000 MB" in said
    assert "fewer --workers or a smaller --batch" in said
    assert "--shm-size" in said
    assert feed.pids == ()
    feed.close()
    free = cpus.free_shared_memory()
    assert free is not None
    workers = counted(abs, batch_bytes=free // 4)
    assert next(workers) == [0]
    workers.close()


def test_more_workers_than_cores_are_noted(root: Path) -> None:
    many = cpus.cores() + 1
    data = opened(root, workers=many)
    assert data.notes == (f"{many} loader workers on {many - 1} cores: they take turns",)
    assert opened(root, "resident", workers=many).notes == ()
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


def test_a_process_can_be_limited_to_some_cores_or_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        assert pool.submit(limited).result() == (1, 1, 1, True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    monkeypatch.setattr(cpus, "_spun", lambda threads: threads - 1.0)
    said = message(lambda: cpus.limit_cpus(1))
    assert "--cpus 1: this system does not enforce CPU affinity" in said
    assert "threads got 2.0 cores at once" in said


def test_physical_cores_come_before_their_second_threads(tmp_path: Path) -> None:
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


def test_cpu_time_of_processes() -> None:
    began_s = cpus.cpu_seconds([os.getpid()])
    assert began_s > 0
    end_s = time.process_time() + 0.05
    while time.process_time() < end_s:
        pass
    assert cpus.cpu_seconds([os.getpid(), 2**22 + 1]) > began_s
