"""Calls that cannot be launched alone: named with their share, and taken from a real step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import pytest
import torch
from in_step_networks import SLEEP_S, Picking, Undecided, network_of
from torch import nn
from tracing import case_of

from e2e.networks.network import Network
from e2e.predict.calls import key_of
from e2e.predict.foretold import Foretold
from e2e.predict.in_step import time_in_step
from e2e.predict.lacking import from_step, uncovered
from e2e.predict.pace import Steady
from e2e.predict.predictor import Predictor
from e2e.predict.replay import CpuStopwatch, OpTime
from e2e.predict.store import Store
from e2e.predict.trace import trace
from kernels.case import Target
from microbench.train_results import TrainCase

CPU, CLASSES, DEVICE = Target("cpu", "a CPU"), 4, torch.device("cpu")
T = TypeVar("T")
PICKED = "halfway_tests.slowly_picked.default"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One for all: what the host does beside calls is learnt once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return Store({"name": "a CPU"}, {})


def quietly(key: str, stage: str) -> None:
    """Nobody listens."""


def foretold(network: Network, store: Store, *, allow_run: bool, **more: object) -> Foretold:
    asked = Predictor(network, CPU, CLASSES, store, allow_run=allow_run, **more)  # type: ignore[arg-type]
    return asked.foretell(case_of(network), quietly)


def timed(
    network: Network, case: TrainCase, stopwatch: CpuStopwatch | None = None
) -> Mapping[str, OpTime]:
    traced = trace(network, case, DEVICE, CLASSES)
    wanted = {i: key_of(case, op) for i, op in enumerate(traced.ops) if op.call.name == PICKED}
    assert wanted
    stopwatch = stopwatch or CpuStopwatch()
    return time_in_step(network, traced, DEVICE, CLASSES, wanted, stopwatch, Steady())


def test_what_is_not_known_is_named_with_its_share(store: Store) -> None:
    told = foretold(network_of(Picking, 2), store, allow_run=False)
    assert told.predicted is not None
    (line,) = told.predicted.uncovered
    launched = sum(op.kind != "view" for op in told.ops)
    assert line.startswith(f"2 x {PICKED}: a custom operator;")
    assert line.count(PICKED) == 1
    assert f"(2 of {launched} calls, " in line
    assert "--allow-run" in line
    assert told.predicted.from_step == ()
    assert all(op.gpu_s == 0 for op in told.ops if op.name == PICKED)


def test_a_slow_call_is_as_slow_in_the_prediction(store: Store) -> None:
    told = foretold(network_of(Picking, 2), store, allow_run=True)
    assert told.predicted is not None
    assert told.simulated is not None
    assert told.predicted.uncovered == ()
    assert [op.gpu_s >= SLEEP_S for op in told.ops if op.name == PICKED] == [True, True]
    (line,) = told.predicted.from_step
    assert line.startswith(f"2 x {PICKED} (")
    assert told.simulated.gpu_s == pytest.approx(math.fsum(op.device_s for op in told.ops))
    assert told.predicted.step_s > 2 * SLEEP_S
    assert told.predicted.took_s["real steps"] > 0


def test_nothing_of_a_real_step_is_kept_for_another_network(store: Store) -> None:
    foretold(network_of(Picking), store, allow_run=True)
    again = foretold(network_of(Picking), store, allow_run=False)
    assert again.predicted is not None
    assert again.predicted.uncovered != ()


def test_a_step_that_breaks_leaves_the_rest_predicted(store: Store) -> None:
    told = foretold(network_of(Picking, 1, 3), store, allow_run=True)
    assert told.predicted is not None
    (line,) = told.predicted.uncovered
    assert "a real step raised ValueError: the step broke" in line


def test_a_call_that_no_real_step_makes_has_no_time(store: Store) -> None:
    network, alike = network_of(Picking, 3), network_of(Picking, 1)
    case = case_of(network)
    traced = trace(network, case, DEVICE, CLASSES)
    places = [i for i, op in enumerate(traced.ops) if op.call.name == PICKED]
    wanted = {place: f"the {i}th" for i, place in enumerate(places)}
    found = time_in_step(alike, traced, DEVICE, CLASSES, wanted, CpuStopwatch(), Steady())
    assert list(found) == ["the 0th"]


def test_sizes_that_depend_on_data_are_timed_where_they_occur(store: Store) -> None:
    told = foretold(network_of(Undecided), store, allow_run=True)
    assert told.predicted is not None
    assert told.predicted.uncovered == ()
    assert any("aten.index" in line for line in told.predicted.from_step)
    assert all((op.gpu_s > 0) == (op.kind != "view") for op in told.ops)


def test_calls_alike_share_their_time_and_a_slower_host_is_told_apart() -> None:
    network = network_of(Picking, 3)
    (time,) = timed(network, case_of(network)).values()
    assert time.gpu_s >= SLEEP_S
    assert time.host_s == 0  # a CPU's calls are its device's


def test_shares_are_of_what_launches(store: Store) -> None:
    network = network_of(Picking)
    case = case_of(network)
    traced = trace(network, case, DEVICE, CLASSES)
    every = {key_of(case, op): "why" for op in traced.ops}
    lines = uncovered(traced, every)
    counts = [int(line.split(" x ")[0]) for line in lines]
    assert f"of {sum(counts)} calls" in lines[0]
    assert uncovered(traced, {}) == ()
    assert from_step(traced, foretold(network, store, allow_run=False).ops, {}) == ()


class Sparse(nn.Module):
    """Its gradient is of a kind that no recording holds."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 4, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Always the same rows."""
        return x + self.embedding(torch.zeros(len(x), dtype=torch.int64))


@pytest.mark.parametrize("allow_run", [False, True])
def test_what_no_step_can_record_promises_nothing(store: Store, allow_run: bool) -> None:
    told = foretold(network_of(Sparse), store, allow_run=allow_run)
    assert told.predicted is None
    assert "sparse" in (told.reason or "")
    assert "aten." in (told.reason or "")
    assert "--allow-run" not in (told.reason or "")


def test_a_step_with_no_room_is_not_measured(store: Store) -> None:
    network = network_of(Picking)
    assert foretold(network, store, allow_run=False, memory_bytes=10**9).predicted is not None
    known = len(store)
    asked = Predictor(network, CPU, CLASSES, store, allow_run=True, memory_bytes=10**9)
    told = asked.foretell(case_of(network, 10**8), quietly)
    assert told.predicted is None
    assert told.runs is False
    assert "GB of the device's 1.0" in (told.reason or "")
    assert len(store) == known


class LateToWait(CpuStopwatch):
    """A device whose third step is the first that holds the host, as when memory has to be made."""

    def __init__(self) -> None:
        self.looks = 0

    def once(self, run: Callable[[], T], *, waits: bool) -> tuple[T, OpTime | None]:
        """A second where it waits, a millisecond where it does not."""
        self.looks += 1
        out = run()
        if waits:
            return out, OpTime(1.0, 0.0, waits=True)
        return out, None if self.looks == 3 else OpTime(1e-3, 1e-4)


def test_a_call_that_is_found_to_wait_is_timed_as_one_that_does() -> None:
    network = network_of(Picking)
    (time,) = timed(network, case_of(network), LateToWait()).values()
    assert time == OpTime(1.0, 0.0, waits=True)
