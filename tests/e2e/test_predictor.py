"""Predictions on the CPU: their arithmetic, not their timing."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from samples.calibration import shallow_models
from samples.train_cases import case_of, quietly

from e2e.__main__ import train
from e2e.commands.child import DataFacts
from e2e.commands.plan import Work
from e2e.commands.requests import request_of
from e2e.explain.annotate import with_predictions
from e2e.networks import find
from e2e.prediction.calibration import calibrated
from e2e.prediction.framework_overhead import COUNTED, FrameworkOverhead
from e2e.prediction.host_speed import ConstantSpeed
from e2e.prediction.op_timer.cuda_graph import CaptureFailed
from e2e.prediction.op_timer.op_costs import CallTimer, key_of
from e2e.prediction.op_timer.op_timer import CpuStopwatch, OpTime
from e2e.prediction.op_timer.store import Store
from e2e.prediction.prediction import GPU_ERROR, HOST_ERROR, Prediction
from e2e.prediction.predictor import Predictor
from e2e.prediction.queue_model import OpCost, Simulated
from e2e.prediction.trace.fake_trace import trace
from e2e.prediction.trace.recorder import is_view
from e2e.results.types import BORDER, PREDICTED, Predicted, StepTimes, Training
from e2e.training.speed_readings import SlowdownRange
from kernels.case import Target
from microbench.worker import Greeting

CPU, CLASSES = Target("cpu", "a CPU"), 10
NETWORK = find("cnn-cifar")
CASE = case_of(NETWORK, 4)


def predictor(store: Store, host_speed: ConstantSpeed | None = None) -> Predictor:
    return Predictor(NETWORK, CPU, CLASSES, store, allow_run=False, host_speed=host_speed)


def parts(found: Prediction) -> tuple[Predicted, Simulated]:
    assert found.predicted is not None
    assert found.simulated is not None
    return found.predicted, found.simulated


def as_on_a_gpu(found: Prediction) -> Prediction:
    return replace(found, predicted=replace(parts(found)[0], limit="gpu"))


@pytest.fixture(scope="module")
def predictions(store: Store) -> dict[str, Prediction]:
    asked = predictor(store)
    cases = [case_of(NETWORK, 4, recipe=recipe) for recipe in ("fp32", "amp-bf16")]
    return {case.key: asked.predict(case, quietly) for case in cases}


def test_every_op_is_counted_and_the_step_is_their_sum(predictions: dict[str, Prediction]) -> None:
    for found in predictions.values():
        predicted, simulated = parts(found)
        traced = trace(NETWORK, found.case, torch.device("cpu"), CLASSES)
        assert [op.name for op in found.ops] == [op.call.name for op in traced.ops]
        assert all((op.gpu_s > 0) == (op.kind != "view") for op in found.ops)
        assert predicted.uncovered == ()
        launched = math.fsum(op.gpu_s for op in found.ops)
        assert simulated.gpu_s == pytest.approx(launched)
        # A CPU waits for each op, so the rest is what surrounds them.
        assert predicted.step_s == pytest.approx(launched + simulated.host_s)
        assert predicted.interval_s is None, "the error on a CPU is not known"
        assert predicted.limit is None


def test_what_predicting_took_is_noted_once(store: Store) -> None:
    asked = predictor(store)
    first, again = (parts(asked.predict(CASE, quietly))[0] for _ in range(2))
    assert first.took_s["tracing"] > 0
    assert first.took_s["operations"] > 0
    assert again.took_s == {}


def test_the_ledger_adds_up(predictions: dict[str, Prediction]) -> None:
    arms = [Training(one.case, PREDICTED, step_units=4) for one in predictions.values()]
    fp32, amp = with_predictions(arms, predictions)
    assert fp32.ledger == ()
    assert amp.ledger_base == "fp32"
    first, *changes, last = amp.ledger
    assert first.ms + math.fsum(line.ms for line in changes) == pytest.approx(last.ms)
    assert amp.predicted is not None
    assert fp32.predicted is not None
    assert last.ms == pytest.approx(1e3 * amp.predicted.step_s)
    ratio = fp32.predicted.step_s / amp.predicted.step_s
    assert amp.predicted.speedup == {"fp32": pytest.approx(ratio)}


class Planted(ConstantSpeed):
    """A host with these slowdowns, one after another, again and again."""

    def __init__(self, *slowdowns: float) -> None:
        self.left, self.readings = itertools.cycle(slowdowns), 0

    def slowdown(self) -> float:
        self.readings += 1
        return next(self.left)


def test_host_times_are_predicted_for_the_slowdown_of_the_moment(empty_store: Store) -> None:
    store = empty_store
    traced = trace(NETWORK, CASE, torch.device("cpu"), CLASSES)
    launched = {key_of(traced.case, op) for op in traced.ops if not is_view(op)}
    store.add({key: OpTime(1e-3, 1e-4) for key in launched})
    store.keep(FrameworkOverhead((1e-3,) * len(COUNTED), 0.0))
    before, slow = (
        predictor(store, speed).predict(CASE, quietly)
        for speed in (ConstantSpeed(), Planted(2.0, 1.5, 4.0))
    )
    simulated = parts(before)[1]
    assert parts(slow)[1].gpu_s == pytest.approx(simulated.gpu_s)
    assert parts(slow)[1].host_s == pytest.approx(2 * simulated.host_s)
    assert [op.host_s for op in slow.ops] == pytest.approx([2 * op.host_s for op in before.ops])
    assert sum(op.host_s for op in before.ops) > 0
    predicted, _ = parts(as_on_a_gpu(slow).predicted_for(SlowdownRange(2.0, 1.5, 4.0)))
    ends = [
        (1 + gpu) * (simulated.gpu_s + (1 + host) * slowdown * simulated.host_s)
        for slowdown, host, gpu in ((1.5, -HOST_ERROR, -GPU_ERROR), (4.0, HOST_ERROR, GPU_ERROR))
    ]
    assert predicted.interval_s == pytest.approx(ends)


def of_ops(gpu_s: float, host_s: float) -> Prediction:
    """A GPU's step of 100 equal operations, predicted for the reference speed."""
    op = OpCost("other", "forward", "", gpu_s / 100, host_s / 100, busy_s=gpu_s / 100)
    return Prediction(CASE, predicted=Predicted(1.0, None, "gpu", {}), ops=(op,) * 100)


@given(st.floats(0.1, 10.0), st.floats(0.5, 1.0), st.floats(1.0, 2.0))
def test_a_bottleneck_that_the_host_speed_decides_is_on_the_border(
    ratio: float, low: float, high: float
) -> None:
    gpu_s = 0.020
    slowdowns = SlowdownRange(1.0, low, high)
    predicted, simulated = parts(of_ops(gpu_s, ratio * gpu_s).predicted_for(slowdowns))
    host_s = 0.9 * ratio * gpu_s  # more than a tenth of the step without a kernel is the host's
    assume(all(abs(host_s * end / gpu_s - 1) > 1e-6 for end in (low, high, 0.8, 1.25)))
    either = host_s * min(low, 0.8) < gpu_s < host_s * max(high, 1.25)
    assert predicted.limit == (BORDER if either else simulated.limit)
    quick, slow = predicted.interval_s or (math.inf, 0.0)
    for slowdown in (low, 1.0, high):
        assert quick < max(gpu_s, slowdown * ratio * gpu_s) < slow
    assert quick >= (1 - GPU_ERROR) * gpu_s, "no step is shorter than its kernels"


def test_a_step_may_be_predicted_for_another_slowdown(predictions: dict[str, Prediction]) -> None:
    slower, usual = SlowdownRange(3.0, 2.0, 4.0), SlowdownRange(1.0, 1.0, 1.0)
    for one in predictions.values():
        (before, was), limited = parts(one), as_on_a_gpu(one)
        again = limited.predicted_for(slower)
        predicted, simulated = parts(again)
        assert again.slowdown == 3.0
        assert simulated.gpu_s == pytest.approx(was.gpu_s)
        assert simulated.host_s == pytest.approx(3 * was.host_s / one.slowdown)
        assert predicted.step_s == simulated.step_s > before.step_s
        low, high = predicted.interval_s or (math.inf, 0.0)
        assert low < one.at(2.0).simulate().step_s < one.at(4.0).simulate().step_s < high
        assert predicted.limit in (simulated.limit, BORDER)
        assert (predicted.gpu_s, predicted.host_s) == (simulated.gpu_s, simulated.host_s)
        of_a_cpu, _ = parts(one.predicted_for(slower))
        assert (of_a_cpu.limit, of_a_cpu.interval_s) == (None, None)
        assert again.predicted_for(usual).predicted == limited.predicted_for(usual).predicted
    nothing = Prediction(CASE, reason="planted")
    assert nothing.predicted_for(slower) == nothing


def test_the_host_speed_is_read_where_little_is_known_of_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first prediction; at later ones only when the last is long ago."""
    clock, speed = [100.0], Planted(1.0)
    monkeypatch.setattr("e2e.prediction.host_speed.time.perf_counter", lambda: clock[0])
    asked = predictor(store, speed)
    first, clock[0] = asked.predict(CASE, quietly), 105.0
    at_first = speed.readings
    assert asked.predict(CASE, quietly).speed_readings == first.speed_readings != ()
    assert speed.readings == at_first
    clock[0] = 200.0
    assert {at_s for at_s, _ in asked.predict(CASE, quietly).speed_readings} == {200.0}


def measured(predicted: Prediction, slowdown: float, off_s: float = 0.0) -> Training:
    """Its steps took as long as predicted for a host of this slowdown, and `off_s` more."""
    step_s = predicted.at(slowdown).simulate().step_s + off_s
    steps = StepTimes((step_s,), (step_s,), (1,), step_s, None, step_s, 1, host_pace=slowdown)
    return Training(predicted.case, "ok", step_units=4, steps=steps)


def test_steps_are_explained_by_the_host_speed_while_they_were_measured(
    predictions: dict[str, Prediction],
) -> None:
    slow = {
        key: replace(one, ops=tuple(replace(op, host_s=1e-3, waits=False) for op in one.ops))
        for key, one in predictions.items()
    }
    for off_s in (0.0, 0.01):
        arms = [measured(one, 5.0 + i, off_s * i) for i, one in enumerate(slow.values())]
        fp32, amp = with_predictions(arms, slow)
        for arm, off in ((fp32, 0), (amp, off_s)):
            before, _ = parts(predictions[arm.case.key])
            assert arm.predicted is not None
            assert arm.predicted.step_s == before.step_s  # what was said before stays
            paced_s = arm.predicted.paced_s or 0.0
            assert paced_s == pytest.approx((arm.step_s or 0.0) - off)
            assert paced_s > before.step_s
        (residual,) = (line.ms for line in amp.ledger if line.term == "residual")
        assert residual == pytest.approx(1e3 * off_s, abs=1e-6)
    without = [Training(arm.case, "ok", step_units=4) for arm in (fp32, amp)]
    unpaced = [t.predicted.paced_s for t in with_predictions(without, slow) if t.predicted]
    assert unpaced == [None, None]


@pytest.mark.slow
def test_what_the_host_does_around_calls_is_kept_at_the_reference_speed(
    empty_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted times, by a host that says it is a thousand times slower just now."""
    monkeypatch.setattr("e2e.prediction.calibration._step_s", lambda step, device: 3e-3)
    monkeypatch.setattr(CpuStopwatch, "passes", lambda self, calls: lambda: 1e-3)
    monkeypatch.setattr("e2e.prediction.op_timer.launch_times.WARM_S", 0.0)
    traced = trace(NETWORK, CASE, torch.device("cpu"), CLASSES)
    with shallow_models():
        as_seen, at_1 = (
            calibrated(CallTimer(CPU, empty_store, speed), speed).of(traced)
            for speed in (ConstantSpeed(), Planted(1000.0))
        )
    assert as_seen == pytest.approx(1000 * at_1)
    assert at_1 > 0


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"compile": True}, "compiled"), ({"recipe": "tf32"}, "Tensor"), ({"graph": True}, "CUDA")],
)  # fmt: skip
def test_what_cannot_run_is_not_predicted(
    settings: dict[str, object], named: str, store: Store
) -> None:
    found = predictor(store).predict(case_of(NETWORK, 4, **settings), quietly)
    assert found.predicted is None
    assert named in (found.reason or "")


def test_a_capture_that_breaks_off_ends_the_process_that_may_be_broken_too(store: Store) -> None:
    def broken(*_: object) -> None:
        raise CaptureFailed("operation not permitted when stream is capturing")

    with pytest.raises(CaptureFailed):
        predictor(store).predict(CASE, broken)


def test_what_goes_wrong_is_a_reason_and_no_end(store: Store) -> None:
    class Full(ConstantSpeed):
        def slowdown(self) -> float:
            raise torch.OutOfMemoryError("no room for the small step\nand more")

    found = predictor(store, Full()).predict(CASE, quietly)
    assert found.predicted is None
    assert found.reason == "OutOfMemoryError: no room for the small step"


@pytest.mark.parametrize(
    ("flags", "kind", "predicts"),
    [
        ([], "cuda", False), ([], "cpu", False), (["--no-predict"], "cuda", False),
        (["--predict"], "cpu", True), (["--predict"], "cuda", True), (["--verify"], "cpu", True),
        (["--fixes"], "cuda", True),
    ],
)  # fmt: skip
def test_a_training_is_predicted_on_request(
    flags: list[str], kind: str, predicts: bool, tmp_path: Path
) -> None:
    request = request_of("cnn-cifar", train.make_context("train", ["cnn-cifar", *flags]).params)
    greeting = Greeting({}, {}, Target(kind, "a device"), None)
    facts = DataFacts("synthetic", CLASSES, None, None, ())
    assert Work(request, tmp_path / "run.json", NETWORK, greeting, facts).predicts is predicts
