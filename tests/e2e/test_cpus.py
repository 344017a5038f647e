"""The cores that a process may use, and what processes took of them."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
from samples.fetching import message
from samples.images import put

from e2e.data.loaders import cpus


def limited() -> tuple[int, int, int, bool]:
    """In a process of its own: what is left of it when it is limited to one core."""
    going = threading.Event()
    other = threading.Thread(target=going.wait)
    other.start()
    chosen = cpus.limit_cpus(1)
    mine = os.sched_getaffinity(other.native_id or 0)
    going.set()
    return cpus.cores(), torch.get_num_threads(), len(chosen), mine == set(chosen)


def test_a_process_can_be_limited_to_some_cores() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        assert pool.submit(limited).result() == (1, 1, 1, True)


def test_a_limit_that_does_not_hold_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("count", [0, 10**6])
def test_cores_that_there_are_not(count: int) -> None:
    assert f"--cpus {count}" in message(lambda: cpus.limit_cpus(count))


def test_cpu_time_of_processes() -> None:
    began_s = cpus.cpu_seconds([os.getpid()])
    assert began_s > 0
    end_s = time.process_time() + 0.05
    while time.process_time() < end_s:
        pass
    assert cpus.cpu_seconds([os.getpid(), 2**22 + 1]) > began_s
