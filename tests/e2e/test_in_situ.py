"""Calls that cannot be launched alone: named with their share, and taken from a real step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import pytest
import torch
from samples.host_speeds import PlannedSpeeds
from samples.planted_networks import SLEEP_S, Picking, Undecided, network_of
from samples.train_cases import case_of, quietly
from torch import nn

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
from e2e.results.types import Predicted
from e2e.train.speed_readings import HostSpeed
from kernels.aten import TensorSpec
from kernels.case import Target
from microbench.device.profiler import KernelTime

CPU, CLASSES, DEVICE = Target("cpu", "a CPU"), 4, torch.device("cpu")
T = TypeVar("T")
PICKED = "halfway_tests.slowly_picked.default"


def predict(
    network: Network, store: Store, *, allow_run: bool, batch: int = 8, **more: object
) -> Prediction:
    asked = Predictor(network, CPU, CLASSES, store, allow_run=allow_run, **more)  # type: ignore[arg-type]
    return asked.predict(case_of(network, batch), quietly)


def known(found: Prediction) -> Predicted:
    assert found.predicted is not None
    return found.predicted


def picking(times: int = 1) -> tuple[Network, Trace, list[int]]:
    """A network that picks, its step, and where in that it does."""
    network = network_of(Picking, times)
    traced = trace(network, case_of(network), DEVICE, CLASSES)
    return network, traced, [i for i, op in enumerate(traced.ops) if op.call.name == PICKED]


def timed(stopwatch: CpuStopwatch, host_speed: HostSpeed | None = None, times: int = 1) -> OpTime:
    """Of the one sort of call that cannot be launched alone."""
    network, traced, places = picking(times)
    wanted = {place: key_of(traced.case, traced.ops[place]) for place in places}
    speed = host_speed or ConstantSpeed()
    (time,) = time_in_step(network, traced, DEVICE, CLASSES, wanted, stopwatch, speed).values()
    return time


def test_what_is_not_known_is_named_with_its_share(store: Store) -> None:
    found = predict(network_of(Picking, 2), store, allow_run=False)
    (line,) = known(found).uncovered
    launched = sum(op.kind != "view" for op in found.ops)
    assert line.startswith(f"2 x {PICKED}: a custom operator;")
    assert line.count(PICKED) == 1
    assert f"(2 of {launched} calls, " in line
    assert "--allow-run" in line
    assert known(found).from_step == ()
    assert all(op.gpu_s == 0 for op in found.ops if op.name == PICKED)


def test_a_slow_call_is_as_slow_in_the_prediction_and_kept_for_no_other(store: Store) -> None:
    found = predict(network_of(Picking, 2), store, allow_run=True)
    assert found.simulated is not None
    assert known(found).uncovered == ()
    assert [op.gpu_s >= SLEEP_S for op in found.ops if op.name == PICKED] == [True, True]
    (line,) = known(found).from_step
    assert line.startswith(f"2 x {PICKED} (")
    assert found.simulated.gpu_s == pytest.approx(math.fsum(op.device_s for op in found.ops))
    assert known(found).step_s > 2 * SLEEP_S
    assert known(found).took_s["real steps"] > 0
    assert known(predict(network_of(Picking, 2), store, allow_run=False)).uncovered != ()


def test_a_step_that_breaks_leaves_the_rest_predicted(store: Store) -> None:
    (line,) = known(predict(network_of(Picking, 1, 3), store, allow_run=True)).uncovered
    assert "a real step raised ValueError: the step broke" in line


def test_a_call_that_no_real_step_makes_has_no_time() -> None:
    _, traced, places = picking(3)
    wanted = {place: f"the {i}th" for i, place in enumerate(places)}
    args = (traced, DEVICE, CLASSES, wanted, CpuStopwatch(), ConstantSpeed())
    assert list(time_in_step(network_of(Picking, 1), *args)) == ["the 0th"]


def test_another_call_in_its_place_is_not_timed_for_it() -> None:
    network, traced, (place,) = picking()
    op = traced.ops[place]
    first, *others = op.call.args
    assert isinstance(first, TensorSpec)
    flat = replace(op, call=replace(op.call, args=(replace(first, shape=(32,)), *others)))
    other = replace(traced, ops=(*traced.ops[:place], flat, *traced.ops[place + 1 :]))
    args = (DEVICE, CLASSES, {place: "it"}, CpuStopwatch(), ConstantSpeed())
    assert time_in_step(network, other, *args) == {}


def test_sizes_that_depend_on_data_are_timed_where_they_occur(store: Store) -> None:
    refused = predict(network_of(Undecided), store, allow_run=False)
    assert refused.predicted is None
    assert "--allow-run" in (refused.reason or "")
    found = predict(network_of(Undecided), store, allow_run=True)
    assert any("real step" in note for note in found.notes)
    assert known(found).uncovered == ()
    assert any("aten.index" in line for line in known(found).from_step)
    assert all((op.gpu_s > 0) == (op.kind != "view") for op in found.ops)


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


class Warming(Launching):
    """A device that is quicker at every look: a millisecond, a half, a third ..."""

    def once(self, run: Callable[[], T], *, waits: bool) -> tuple[T, OpTime | None]:
        out, taken = super().once(run, waits=waits)
        return out, taken and replace(taken, gpu_s=taken.gpu_s / self.looks)


def test_host_times_are_at_the_reference_speed_and_kernels_as_seen() -> None:
    time = timed(Launching(), PlannedSpeeds(*[2.0] * 20), times=3)
    assert time == OpTime(1e-3, 0.5e-4, busy_s=pytest.approx(5e-4), kernels=2)


def test_kernels_run_no_longer_than_their_call() -> None:
    time = timed(Warming())
    assert time.gpu_s == time.busy_s == pytest.approx(1e-3 / 3)


def test_of_a_call_that_waits_the_device_has_what_kernels_run_in() -> None:
    time = timed(Launching(3, 4), PlannedSpeeds(*[2.0] * 20))
    assert time.waits
    assert time.gpu_s == time.busy_s == pytest.approx(5e-4)
    assert time.host_s == pytest.approx((1.0 - 5e-4) / 2)


@pytest.mark.parametrize(
    ("held", "waits", "looks"), [((3,), False, STEPS + 1), ((3, 5), True, 5 + STEPS)]
)
def test_a_call_that_holds_the_host_once_does_not_wait_and_twice_does(
    held: tuple[int, ...], waits: bool, looks: int
) -> None:
    """A step more for the one that was held; one found late to wait is timed as often as any."""
    stopwatch = Launching(*held)
    assert timed(stopwatch).waits is waits
    assert stopwatch.looks == looks


def test_shares_are_of_what_launches(store: Store) -> None:
    network, traced, _ = picking()
    every = {key_of(traced.case, op): "why" for op in traced.ops}
    profile = StepProfile(traced, {}, {}, every, ())
    counts = [int(line.split(" x ")[0]) for line in profile.uncovered]
    assert f"of {sum(counts)} calls" in profile.uncovered[0]
    assert replace(profile, problems={}).uncovered == ()
    assert profile.from_step(predict(network, store, allow_run=False).ops) == ()


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
    found = predict(network_of(Sparse), store, allow_run=allow_run)
    assert found.predicted is None
    assert "sparse" in (found.reason or "")
    assert "aten." in (found.reason or "")
    assert "--allow-run" not in (found.reason or "")


def test_a_step_that_runs_out_of_memory_while_it_is_recorded_does_not_fit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Trace:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("e2e.predict.step_profile.trace_real", full)
    found = predict(network_of(Undecided), store, allow_run=True)
    assert (found.predicted, found.runs, found.broke) == (None, False, False)
    assert "does not fit" in (found.reason or "")


def test_a_step_with_no_room_is_not_measured(store: Store) -> None:
    network = network_of(Picking)
    known(predict(network, store, allow_run=False, memory_bytes=10**9))
    before = len(store)
    found = predict(network, store, allow_run=True, batch=10**8, memory_bytes=10**9)
    assert (found.predicted, found.runs) == (None, False)
    assert "GB of the device's 1.0" in (found.reason or "")
    assert len(store) == before
