"""The order in which the calls of a captured step are launched."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from tracing import case_of

from e2e.networks import find
from e2e.predict.calls import Calls, is_view, step_key
from e2e.predict.captured import rows_of
from e2e.predict.pace import Steady
from e2e.predict.replay import Counted
from e2e.predict.store import Store
from e2e.predict.trace import Trace, trace
from kernels.aten import CannotReplay, Replay
from kernels.case import Target

CPU = torch.device("cpu")


def planted(name: str, seen: list[str], *places: int, backward: bool = False) -> Counted:
    def launch(how: str) -> None:
        seen.append(how + name)

    replay = Replay(partial(launch, ""), False, lambda: None, (), {}, partial(launch, "distant "))
    return Counted(replay, places, backward)


def test_calls_are_launched_as_often_and_in_the_order_of_the_step() -> None:
    seen: list[str] = []
    calls = [
        planted("a", seen, 0, 2),
        planted("b", seen, 1),
        planted("c", seen, 3, 5, backward=True),
        planted("d", seen, 4, backward=True),
        planted("e", seen, 6),
    ]
    rows = rows_of(calls, CPU)
    assert seen == [], "made ready, not launched"
    assert len(rows) == 3, "forward, backward, and what comes after"
    for row in rows:
        row()
    assert seen == [f"distant {name}" for name in "abacdce"]


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = Store({"name": "a processor", "kind": "cpu"}, {})
    return Calls(Target("cpu", "a processor"), store, Steady())


def traced_at(batch: int) -> Trace:
    network = find("cnn-cifar")
    return trace(network, case_of(network, batch), CPU, 10)


def test_every_call_of_a_step_is_made_ready_at_its_places(calls: Calls) -> None:
    traced = traced_at(4)
    counted = calls.counted(traced)
    places = sorted(place for one in counted for place in one.places)
    assert places == [i for i, op in enumerate(traced.ops) if not is_view(op)]
    for row in rows_of(counted, CPU):
        row()


def test_a_call_that_cannot_be_launched_alone_is_named(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CannotReplay("not today")

    monkeypatch.setattr("e2e.predict.calls.materialise", refuse)
    with pytest.raises(RuntimeError, match=r"aten.* cannot be launched alone: not today"):
        calls.counted(traced_at(4))


def test_a_step_is_known_by_its_calls_and_their_order() -> None:
    assert step_key(traced_at(4)) == step_key(traced_at(4))
    assert step_key(traced_at(4)) != step_key(traced_at(8))
