"""Times of calls on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.predict.replay import OpTime
from e2e.predict.store import Store

DEVICE = {"name": "NVIDIA H200", "power_limit_w": 700.0}
SOFTWARE = {"torch": "2.11.0", "cudnn": "9.19.0"}
TIMES = {"a": OpTime(1e-3, 2e-6, 512, 1e-4), "b": OpTime(0.0, 5e-6)}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_one_run_adds_the_next_one_finds() -> None:
    Store(DEVICE, SOFTWARE).add(TIMES)
    again = Store(DEVICE, SOFTWARE)
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


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1}', '{"a": {"gpu_s": "x"}}', '{"a": {}}'])
def test_a_damaged_file_is_measured_again(text: str) -> None:
    store = Store(DEVICE, SOFTWARE)
    store.path.parent.mkdir(parents=True)
    store.path.write_text(text)
    damaged = Store(DEVICE, SOFTWARE)
    assert len(damaged) == 0
    damaged.add(TIMES)
    assert json.loads(store.path.read_text()).keys() == TIMES.keys()


def test_a_disk_that_refuses_costs_no_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    store = Store(DEVICE, SOFTWARE)
    store.add(TIMES)
    assert store.get("a") == TIMES["a"]
