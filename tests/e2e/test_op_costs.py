"""Which of a step's calls are measured; times on disk."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from samples.train_cases import case_of

from e2e.aten import Call
from e2e.case import SHORT
from e2e.networks import find
from e2e.prediction.framework_overhead import COUNTED, FrameworkOverhead
from e2e.prediction.host_speed import ConstantSpeed
from e2e.prediction.op_timer.op_costs import CallTimer, key_of
from e2e.prediction.op_timer.op_timer import OpTime
from e2e.prediction.op_timer.store import Store
from e2e.prediction.padding import CONVOLUTIONS
from e2e.prediction.queue_model import GraphCosts
from e2e.prediction.trace.fake_trace import Trace, trace
from e2e.prediction.trace.recorder import TracedOp, is_view, kind
from kernels.case import Target

CPU = Target("cpu", "a CPU")
KNOWN = OpTime(1e-3, 1e-6)
pytestmark = pytest.mark.usefixtures("empty_store")


def step() -> Trace:
    network = find("cnn-cifar")
    return trace(network, case_of(network, 4), torch.device("cpu"), 10)


def distinct(traced: Trace) -> dict[str, TracedOp]:
    """The calls that launch something, by key."""
    return {key_of(traced.case, op): op for op in traced.ops if not is_view(op)}


def test_what_was_measured_before_is_not_measured_again(empty_store: Store) -> None:
    traced = step()
    launched = distinct(traced)
    products = {key for key, op in launched.items() if kind(op) == "product"}
    planted = {key: KNOWN for key in launched.keys() - products}
    empty_store.add(planted)
    calls = CallTimer(CPU, empty_store, ConstantSpeed())
    one = min(products)
    places = {i for i, op in enumerate(traced.ops) if key_of(traced.case, op) == one}
    assert calls.times(traced, places).known.keys() == {one}
    found = calls.times(traced)
    assert found.problems == {}
    assert found.known.keys() == launched.keys()
    assert {key: found.known[key] for key in planted} == planted
    assert all(found.known[key].gpu_s > 0 for key in products)
    assert all(time.host_s == 0 for key, time in found.known.items() if key in products)


def test_times_of_convolutions_belong_to_the_search_that_chose_their_algorithm() -> None:
    traced = step()
    briefly = replace(traced.case, search=SHORT)
    for op in traced.ops:
        alike = key_of(briefly, op) == key_of(traced.case, op)
        assert alike == (op.call.operator not in CONVOLUTIONS)


def test_a_call_that_torch_refuses_has_its_reason_beside_what_is_measured(
    empty_store: Store,
) -> None:
    traced = step()
    place = next(i for i, op in enumerate(traced.ops) if op.call.operator == "convolution")
    refused = replace(traced.ops[place], call=Call("aten.mm.default", (1, 2)))
    ops = (*traced.ops[:place], refused, *traced.ops[place + 1 :])
    planted = replace(traced, ops=ops)
    found = CallTimer(CPU, empty_store, ConstantSpeed()).times(planted)
    key = key_of(traced.case, refused)
    assert found.problems.keys() == {key}
    assert "mm" in found.problems[key]
    assert found.known.keys() == distinct(planted).keys() - {key}


# ------------------------------------------------------------ on disk

DEVICE = {"name": "NVIDIA H200", "power_limit_w": 700.0}
SOFTWARE = {"torch": "2.11.0", "cudnn": "9.19.0"}
GRAPHS = {"a": GraphCosts(2e-3, 0.6e-6, 2e-6), "b": GraphCosts(1e-3, 0.0, 2e-6)}
HOST = FrameworkOverhead((1e-5, -2e-6, 0.0, 1e-6, 0.0, 2e-6, 3e-6, 0.0, 1e-6), 0.05)
TIMES = {"a": OpTime(1e-3, 2e-6, 512, 1e-4, 9e-4, 3), "b": OpTime(0.0, 5e-6, waits=True)}


def test_what_one_run_adds_the_next_one_finds() -> None:
    Store(DEVICE, SOFTWARE).add(TIMES)
    Store(DEVICE, SOFTWARE).keep(HOST)
    for key, step in GRAPHS.items():
        Store(DEVICE, SOFTWARE).keep_captured(key, step)
    again = Store(DEVICE, SOFTWARE)
    assert (again.framework, again.captured) == (HOST, GRAPHS)
    assert {key: again.get(key) for key in TIMES} == TIMES
    assert again.get("c") is None


def test_another_device_or_library_has_times_of_its_own() -> None:
    Store(DEVICE, SOFTWARE).add(TIMES)
    for other in ({"power_limit_w": 350.0}, {"name": "NVIDIA H100"}):
        assert len(Store({**DEVICE, **other}, SOFTWARE)) == 0
    for other in ({"cudnn": "9.20.0"}, {"torch": "2.12.0"}):
        assert len(Store(DEVICE, {**SOFTWARE, **other})) == 0


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
    "[" * 5000, '{"calls": ' + "9" * 400 + "}", '{"calls": {"a": {"gpu_s": 1e300, "host_s": 1}}}',
    '{"calls": {"a": {"gpu_s": ' + "9" * 40 + ', "host_s": 1}}}',
    '{"calls": {"a": {"gpu_s": 1, "host_s": 1, "scratch_bytes": ' + "9" * 400 + "}}}",
    json.dumps({"framework": {"seconds": [1e9] * len(COUNTED), "error": 0.1}}),
]  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_file_is_measured_again(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(DEVICE, SOFTWARE)
    store.path.parent.mkdir(parents=True)
    store.path.write_text(text)
    damaged = Store(DEVICE, SOFTWARE)
    assert len(damaged) == 0
    assert (damaged.framework, damaged.captured) == (None, {})
    Store(DEVICE, SOFTWARE)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == (text != "{}")  # which is empty, not damaged
    assert all(str(store.path) in line for line in said)
    damaged.add(TIMES)
    assert json.loads(store.path.read_text())["calls"].keys() == TIMES.keys()


def test_a_disk_that_refuses_costs_no_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    store = Store(DEVICE, SOFTWARE)
    store.add(TIMES)
    store.keep(HOST)
    assert store.get("a") == TIMES["a"]
    (line,) = capsys.readouterr().err.splitlines()
    assert str(blocked) in line


def test_without_a_home_times_last_as_long_as_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_entry(_user: int) -> None:
        raise KeyError

    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", no_entry)
    store = Store(DEVICE, SOFTWARE)
    store.add(TIMES)
    assert store.get("a") == TIMES["a"]
    assert len(Store(DEVICE, SOFTWARE)) == 0
    assert capsys.readouterr().err.count("\n") == 1


def test_the_other_entries_of_a_damaged_file_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(DEVICE, SOFTWARE)
    store.add(TIMES)
    store.keep(HOST)
    content = json.loads(store.path.read_text())
    content["calls"]["c"] = {"gpu_s": -1, "host_s": 1}
    content["captured"] = 3
    store.path.write_text(json.dumps(content))
    again = Store(DEVICE, SOFTWARE)
    assert (len(again), again.framework, again.captured) == (2, HOST, {})
    assert capsys.readouterr().err.count("\n") == 1
