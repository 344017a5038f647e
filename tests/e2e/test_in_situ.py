"""Calls that cannot be launched alone: named with their share, and taken from a real step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import pytest
import torch
from samples.planted_networks import SLEEP_S, Picking, Undecided, network_of
from samples.train_cases import case_of, quietly
from torch import nn

from e2e.case import TrainCase
from e2e.networks.network import Network
from e2e.predict.host_speed import ConstantSpeed
from e2e.predict.op_timer.in_situ import STEPS, time_in_step
from e2e.predict.op_timer.op_costs import key_of
from e2e.predict.op_timer.op_timer import CpuStopwatch, OpTime
from e2e.predict.op_timer.store import Store
from e2e.predict.prediction import Prediction
from e2e.predict.predictor import Predictor
from e2e.predict.step_profile import StepProfile
from e2e.predict.trace.fake_trace import Trace, trace
from e2e.train.speed_readings import HostSpeed
from kernels.aten import TensorSpec
from kernels.case import Target
from microbench.device.profiler import KernelTime

CPU, CLASSES, DEVICE = Target("cpu", "a CPU"), 4, torch.device("cpu")
T = TypeVar("T")
PICKED = "halfway_tests.slowly_picked.default"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One for all: what the host does beside calls is learnt once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return Store({"name": "a CPU"}, {})


def foretold(network: Network, store: Store, *, allow_run: bool, **more: object) -> Prediction:
    asked = Predictor(network, CPU, CLASSES, store, allow_run=allow_run, **more)  # type: ignore[arg-type]
    return asked.predict(case_of(network), quietly)


def timed(
    network: Network, case: TrainCase, stopwatch: CpuStopwatch, pace: HostSpeed | None = None
) -> Mapping[str, OpTime]:
    traced = trace(network, case, DEVICE, CLASSES)
    wanted = {i: key_of(case, op) for i, op in enumerate(traced.ops) if op.call.name == PICKED}
    assert wanted
    return time_in_step(
        network, traced, DEVICE, CLASSES, wanted, stopwatch, pace or ConstantSpeed()
    )


@pytest.mark.slow
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
    found = time_in_step(alike, traced, DEVICE, CLASSES, wanted, CpuStopwatch(), ConstantSpeed())
    assert list(found) == ["the 0th"]


def test_sizes_that_depend_on_data_are_timed_where_they_occur(store: Store) -> None:
    told = foretold(network_of(Undecided), store, allow_run=True)
    assert told.predicted is not None
    assert told.predicted.uncovered == ()
    assert any("aten.index" in line for line in told.predicted.from_step)
    assert all((op.gpu_s > 0) == (op.kind != "view") for op in told.ops)


class Launching(CpuStopwatch):
    """A device that a call keeps busy for a millisecond, and its host for a tenth of one; calls
    hold the host in the `held` looks.
    """

    def __init__(self, *held: int) -> None:
        self.held, self.looks = held, 0

    def once(self, run: Callable[[], T], *, waits: bool) -> tuple[T, OpTime | None]:
        """A second of both where it is known to wait."""
        self.looks += 1
        out = run()
        if waits:
            return out, OpTime(1.0, 0.0, waits=True)
        return out, None if self.looks in self.held else OpTime(1e-3, 1e-4)

    def kernels_in(
        self, step: Callable[[Callable[[str | None], None]], None]
    ) -> Mapping[str, list[list[KernelTime]]]:
        """Two kernels a call: half a millisecond, half of it in both."""
        owners: list[str] = []
        step(lambda owner: owners.append(owner) if owner else None)
        both = [KernelTime("a", 4e-4, 0.0), KernelTime("b", 3e-4, 2e-4)]
        return {key: [both] * owners.count(key) for key in owners}


class Twice(ConstantSpeed):
    """A host that takes twice as long as at pace 1."""

    def slowdown(self) -> float:
        """Always 2."""
        return 2.0


def test_the_hosts_time_is_kept_as_at_pace_1_and_kernels_as_seen() -> None:
    network = network_of(Picking, 3)
    (time,) = timed(network, case_of(network), Launching(), Twice()).values()
    assert time == OpTime(1e-3, 0.5e-4, busy_s=pytest.approx(5e-4), kernels=2)


class Warming(Launching):
    """A device that is quicker at every look."""

    def once(self, run: Callable[[], T], *, waits: bool) -> tuple[T, OpTime | None]:
        """A millisecond, a half, a third ..."""
        out, taken = super().once(run, waits=waits)
        return out, taken and replace(taken, gpu_s=taken.gpu_s / self.looks)


def test_kernels_run_no_longer_than_their_call() -> None:
    network = network_of(Picking)
    (time,) = timed(network, case_of(network), Warming()).values()
    assert time.gpu_s == time.busy_s == pytest.approx(1e-3 / 3)


def test_of_a_call_that_waits_the_device_has_what_kernels_run_in() -> None:
    network = network_of(Picking)
    (time,) = timed(network, case_of(network), Launching(3, 4), Twice()).values()
    assert time.waits
    assert time.gpu_s == time.busy_s == pytest.approx(5e-4)
    assert time.host_s == pytest.approx((1.0 - 5e-4) / 2)


def test_a_gate_that_opens_once_makes_no_call_wait_for_ever() -> None:
    network = network_of(Picking)
    stopwatch = Launching(3)
    (time,) = timed(network, case_of(network), stopwatch).values()
    assert not time.waits
    assert stopwatch.looks == STEPS + 1  # a step more for the one that was held


def test_a_call_found_late_to_wait_is_timed_as_often_as_any() -> None:
    network = network_of(Picking)
    stopwatch = Launching(3, 5)
    (time,) = timed(network, case_of(network), stopwatch).values()
    assert time.waits
    assert stopwatch.looks == 5 + STEPS


def test_another_call_in_its_place_is_not_timed_for_it() -> None:
    network = network_of(Picking)
    case = case_of(network)
    traced = trace(network, case, DEVICE, CLASSES)
    (place,) = (i for i, op in enumerate(traced.ops) if op.call.name == PICKED)
    op = traced.ops[place]
    first, *others = op.call.args
    assert isinstance(first, TensorSpec)
    flat = replace(op, call=replace(op.call, args=(replace(first, shape=(32,)), *others)))
    ops = (*traced.ops[:place], flat, *traced.ops[place + 1 :])
    found = time_in_step(
        network,
        replace(traced, ops=ops),
        DEVICE,
        CLASSES,
        {place: "it"},
        CpuStopwatch(),
        ConstantSpeed(),
    )
    assert found == {}


def test_shares_are_of_what_launches(store: Store) -> None:
    network = network_of(Picking)
    case = case_of(network)
    traced = trace(network, case, DEVICE, CLASSES)
    every = {key_of(case, op): "why" for op in traced.ops}
    profile = StepProfile(traced, {}, {}, every, ())
    lines = profile.uncovered
    counts = [int(line.split(" x ")[0]) for line in lines]
    assert f"of {sum(counts)} calls" in lines[0]
    assert replace(profile, problems={}).uncovered == ()
    assert profile.from_step(foretold(network, store, allow_run=False).ops) == ()


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


def test_a_step_that_runs_out_of_memory_while_it_is_recorded_does_not_fit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Trace:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("e2e.predict.step_profile.trace_real", full)
    told = foretold(network_of(Undecided), store, allow_run=True)
    assert told.predicted is None
    assert told.runs is False
    assert not told.broke
    assert "does not fit" in (told.reason or "")


def test_a_step_with_no_room_is_not_measured(store: Store) -> None:
    network = network_of(Picking)
    assert foretold(network, store, allow_run=False, memory_bytes=10**9).predicted is not None
    known = len(store)
    asked = Predictor(network, CPU, CLASSES, store, allow_run=True, memory_bytes=10**9)
    told = asked.predict(case_of(network, 10**8), quietly)
    assert told.predicted is None
    assert told.runs is False
    assert "GB of the device's 1.0" in (told.reason or "")
    assert len(store) == known
