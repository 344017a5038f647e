"""Times of calls on disk."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from e2e.predict.framework_overhead import FrameworkOverhead
from e2e.predict.op_timer.op_timer import OpTime
from e2e.predict.op_timer.store import Store
from e2e.predict.queue_model import GraphCosts

DEVICE = {"name": "NVIDIA H200", "power_limit_w": 700.0}
SOFTWARE = {"torch": "2.11.0", "cudnn": "9.19.0"}
GRAPHS = {"a": GraphCosts(2e-3, 0.6e-6, 2e-6), "b": GraphCosts(1e-3, 0.0, 2e-6)}
HOST = FrameworkOverhead((1e-5, -2e-6, 0.0, 1e-6, 0.0, 2e-6, 3e-6, 0.0, 1e-6), 0.05)
TIMES = {"a": OpTime(1e-3, 2e-6, 512, 1e-4, 9e-4, 3), "b": OpTime(0.0, 5e-6, waits=True)}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_one_run_adds_the_next_one_finds() -> None:
    Store(DEVICE, SOFTWARE).add(TIMES)
    Store(DEVICE, SOFTWARE).keep(HOST)
    for key, step in GRAPHS.items():
        Store(DEVICE, SOFTWARE).keep_captured(key, step)
    again = Store(DEVICE, SOFTWARE)
    assert (again.framework, again.captured) == (HOST, GRAPHS)
    assert {key: again.get(key) for key in TIMES} == TIMES
    assert again.get("c") is None


@pytest.mark.parametrize(
    ("device", "software"),
    [
        ({**DEVICE, "power_limit_w": 350.0}, SOFTWARE),
        ({**DEVICE, "name": "NVIDIA H100"}, SOFTWARE),
        (DEVICE, {**SOFTWARE, "cudnn": "9.20.0"}),
        (DEVICE, {**SOFTWARE, "torch": "2.12.0"}),
    ],
)
def test_another_device_or_library_has_times_of_its_own(
    device: dict[str, object], software: dict[str, object]
) -> None:
    Store(DEVICE, SOFTWARE).add(TIMES)
    assert len(Store(device, software)) == 0


def test_two_that_add_at_once_lose_nothing() -> None:
    first, second = Store(DEVICE, SOFTWARE), Store(DEVICE, SOFTWARE)
    first.add({"a": TIMES["a"]})
    second.add({"b": TIMES["b"]})
    assert len(Store(DEVICE, SOFTWARE)) == 2


DAMAGED = [
    "", "{", "[1]", "{}", '{"calls": 1}', '{"calls": {"a": 1}}', '{"calls": {"a": {}}}',
    '{"calls": {"a": {"gpu_s": "x", "host_s": 1}}}',
    '{"calls": {"a": {"gpu_s": -1, "host_s": 1}}}',
    '{"calls": {"a": {"gpu_s": NaN, "host_s": 1}}}',
    json.dumps({"calls": {"a": asdict(OpTime(1.0, 1.0, kernels=0))}}),
    '{"framework": {"seconds": 3, "error": 0.1}}', '{"framework": {"seconds": [1]}}',
    '{"framework": {"seconds": [1], "error": 0.1}}',
    '{"captured": {"a": {"step_s": 1, "gap_s": 1e-6}}}',
    '{"captured": {"a": {"step_s": 1, "gap_s": 1, "launch_s": -1}}}',
    '{"captured": 1}', '{"captured": {"a": {"step_s": 1, "gap_s": Infinity, "launch_s": 1}}}',
    '{"captured": {"a": {"gap_s": 1, "launch_s": 1}}}',
]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_is_measured_again(text: str) -> None:
    store = Store(DEVICE, SOFTWARE)
    store.path.parent.mkdir(parents=True)
    store.path.write_text(text)
    damaged = Store(DEVICE, SOFTWARE)
    assert len(damaged) == 0
    assert (damaged.framework, damaged.captured) == (None, {})
    damaged.add(TIMES)
    assert json.loads(store.path.read_text())["calls"].keys() == TIMES.keys()


def test_a_disk_that_refuses_costs_no_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    store = Store(DEVICE, SOFTWARE)
    store.add(TIMES)
    assert store.get("a") == TIMES["a"]
