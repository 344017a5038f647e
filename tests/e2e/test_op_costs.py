"""Which of a step's calls are measured, and among which others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from samples.train_cases import case_of

from e2e.networks import find
from e2e.predict.host_speed import ConstantSpeed
from e2e.predict.op_timer.op_costs import CallTimer, key_of
from e2e.predict.op_timer.op_timer import CpuStopwatch, MeasuredTime, OpTime, PlacedCall
from e2e.predict.op_timer.store import Store
from e2e.predict.padding import CONVOLUTIONS
from e2e.predict.trace.fake_trace import Trace, trace
from e2e.predict.trace.recorder import TracedOp, is_view, kind
from kernels.aten import Call, CannotReplay, Replay, materialise
from kernels.case import Target

CPU = Target("cpu", "a CPU")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Store({"name": "a CPU"}, {})


def step() -> Trace:
    network = find("cnn-cifar")
    return trace(network, case_of(network, 4), torch.device("cpu"), 10)


def distinct(traced: Trace) -> dict[str, TracedOp]:
    """The calls that launch something, by key."""
    return {key_of(traced.case, op): op for op in traced.ops if not is_view(op)}


def places(traced: Trace, key: str) -> set[int]:
    """Where in the step a call is."""
    return {i for i, op in enumerate(traced.ops) if key_of(traced.case, op) == key}


class Asked:
    """What a stopwatch was asked for: how many calls, among how many others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: MeasuredTime | str) -> None:
        self.counts: list[tuple[int, int]] = []

        def times(
            _: object, calls: Sequence[PlacedCall], among: Sequence[PlacedCall]
        ) -> list[MeasuredTime | str]:
            self.counts.append((len(calls), len(among)))
            return [answer] * len(calls)

        monkeypatch.setattr(CpuStopwatch, "times", times)


def test_what_was_measured_before_is_not_measured_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, traced = Asked(monkeypatch, "planted"), step()
    launched = distinct(traced)
    products = {key for key, op in launched.items() if kind(op) == "product"}
    store.add({key: OpTime(1e-3, 1e-6) for key in launched.keys() - products})
    calls = CallTimer(CPU, store, ConstantSpeed())
    found = calls.times(traced)
    assert found.known.keys() == launched.keys() - products
    assert found.problems == dict.fromkeys(products, "planted")
    assert asked.counts == [(len(products), 0)]
    calls.times(traced, places(traced, min(products)))
    assert asked.counts[1:] == [(1, 0)], "one of them alone"
    store.add({key: OpTime(1e-3, 1e-6) for key in products})
    assert calls.times(traced).known.keys() == launched.keys()
    assert len(asked.counts) == 2, "nothing is missing"


def test_where_others_matter_calls_are_launched_among_what_is_known_of_the_step(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not among convolutions that this process has not launched, nor among what waits."""
    monkeypatch.setattr(CpuStopwatch, "others_matter", True)
    asked, traced = Asked(monkeypatch, MeasuredTime(OpTime(1e-3, 1e-6), steady=True)), step()
    launched = distinct(traced)
    searched = {key for key, op in launched.items() if op.call.operator in CONVOLUTIONS}
    assert searched
    waits, first, then, *others = sorted(launched.keys() - searched)
    store.add({key: OpTime(1e-3, 1e-6) for key in (*others, *searched)})
    store.add({waits: OpTime(1e-3, 0.0, waits=True)})
    calls = CallTimer(CPU, store, ConstantSpeed())
    for one in (first, then):
        assert calls.times(traced, places(traced, one)).known.keys() == {one}
    assert asked.counts == [(1, len(others)), (1, len(others) + 1)]

    again = CallTimer(CPU, Store({"name": "another"}, {}), ConstantSpeed())
    again.times(traced)
    assert asked.counts[2:] == [(len(launched), 0)]
    again.store = Store({"name": "a third"}, {})
    again.store.add({key: OpTime(1e-3, 1e-6) for key in launched.keys() - {first}})
    again.times(traced)
    assert asked.counts[3:] == [(1, len(launched) - 1)], "convolutions were launched before"


def test_what_cannot_be_replayed_asks_for_nothing_else(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuStopwatch, "others_matter", True)
    monkeypatch.setattr(
        "e2e.predict.op_timer.op_costs.why_not", lambda call: f"{call.name}: planted"
    )
    asked, traced = Asked(monkeypatch, "never"), step()
    launched = distinct(traced)
    unknown = min(launched)
    store.add({key: OpTime(1e-3, 1e-6) for key in launched.keys() - {unknown}})
    assert CallTimer(CPU, store, ConstantSpeed()).times(traced).problems == {unknown: "planted"}
    assert asked.counts == []


def test_what_does_not_fit_says_so_beside_what_does(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: no room for one call's arguments; others are measured."""
    asked, traced = Asked(monkeypatch, MeasuredTime(OpTime(1e-3, 1e-6), steady=True)), step()
    launched = distinct(traced)
    large = max(launched)
    name = launched[large].call.name

    def made(call: Call, *args: Any, **how: Any) -> Replay:
        if call.key == launched[large].call.key:
            raise CannotReplay(f"{name}: planted")
        return materialise(call, *args, **how)

    monkeypatch.setattr("e2e.predict.op_timer.op_costs.materialise", made)
    found = CallTimer(CPU, store, ConstantSpeed()).times(traced)
    assert found.problems == {large: "planted"}
    assert found.known.keys() == launched.keys() - {large}
    assert asked.counts == [(len(launched) - 1, 0)]
