"""Predictions on the CPU: their arithmetic, not their timing."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from samples.calibration import shallow_models
from samples.planted_networks import Undecided, network_of
from samples.train_cases import quietly

from e2e.__main__ import train
from e2e.case import TrainCase
from e2e.commands.plan import Work
from e2e.commands.requests import request_of
from e2e.commands.worker import DataFacts
from e2e.explain.annotate import with_predictions
from e2e.networks import find
from e2e.networks.network import Network, written
from e2e.predict.calibration import calibrated
from e2e.predict.host_model.framework_overhead import COUNTED, FrameworkOverhead
from e2e.predict.host_model.host_speed import ConstantSpeed
from e2e.predict.op_timer.cuda_graph import CaptureFailed
from e2e.predict.op_timer.op_costs import CallTimer, key_of
from e2e.predict.op_timer.op_timer import CpuStopwatch, OpTime
from e2e.predict.op_timer.store import Store
from e2e.predict.prediction import HOST_ERROR, Prediction
from e2e.predict.predictor import Predictor
from e2e.predict.trace.fake_trace import trace
from e2e.predict.trace.recorder import is_view
from e2e.results.types import PREDICTED, StepTimes, Training
from e2e.train.speed_readings import SlowdownRange
from kernels.case import Target
from microbench.worker import Greeting

CPU = Target("cpu", "a CPU")
CLASSES = 10
DEVICE = {"name": "a CPU"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        store = Store(DEVICE, {})
        store.keep(FrameworkOverhead((1e-5,) * len(COUNTED), 0.0))  # no calibration here
        return store


def case_of(network: Network, recipe: str = "fp32", batch: int = 4, **more: object) -> TrainCase:
    return TrainCase(network.name, recipe, batch, written(network.input), **more)  # type: ignore[arg-type]


def predictor(network: Network, store: Store, *, allow_run: bool = False) -> Predictor:
    return Predictor(network, CPU, CLASSES, store, allow_run=allow_run)


@pytest.fixture(scope="module")
def told(store: Store) -> dict[str, Prediction]:
    network = find("cnn-cifar")
    asked = predictor(network, store)
    cases = [case_of(network, recipe) for recipe in ("fp32", "amp-bf16")]
    return {case.key: asked.predict(case, quietly) for case in cases}


def test_every_op_is_counted_and_the_step_is_their_sum(told: dict[str, Prediction]) -> None:
    network = find("cnn-cifar")
    for found in told.values():
        traced = trace(network, found.case, torch.device("cpu"), CLASSES)
        assert [op.name for op in found.ops] == [op.call.name for op in traced.ops]
        assert found.predicted is not None
        assert found.simulated is not None
        assert found.predicted.uncovered == ()
        launched = math.fsum(op.gpu_s for op in found.ops)
        assert launched > 0
        assert found.simulated.gpu_s == pytest.approx(launched)
        # A CPU waits for each op, so the rest is what surrounds them.
        assert found.predicted.step_s == pytest.approx(launched + found.simulated.host_s)
        assert found.predicted.interval_s is None, "of a CPU's nobody has seen how far it is off"
        assert found.predicted.limit is None


def test_what_predicting_took_is_told_once(store: Store) -> None:
    network = find("cnn-cifar")
    asked = predictor(network, store)
    first, again = (asked.predict(case_of(network), quietly).predicted for _ in range(2))
    assert first is not None
    assert again is not None
    assert first.took_s["tracing"] > 0
    assert first.took_s["operations"] > 0
    assert again.took_s == {}


def test_every_op_that_launches_takes_time_and_views_take_none(told: dict[str, Prediction]) -> None:
    for found in told.values():
        for op in found.ops:
            assert (op.gpu_s > 0) == (op.kind != "view"), op


def test_the_ledger_adds_up(told: dict[str, Prediction]) -> None:
    arms = [Training(one.case, PREDICTED, step_units=4) for one in told.values()]
    fp32, amp = with_predictions(arms, told)
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
    """A host that is as slow as told, each of these in turn."""

    def __init__(self, *paces: float) -> None:
        self.paces = itertools.cycle(paces)

    def slowdown(self) -> float:
        return next(self.paces)


def test_what_the_host_needs_is_told_for_the_pace_of_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    network, store = find("cnn-cifar"), Store(DEVICE, {})
    traced = trace(network, case_of(network), torch.device("cpu"), CLASSES)
    launched = {key_of(traced.case, op) for op in traced.ops if not is_view(op)}
    store.add({key: OpTime(1e-3, 1e-4) for key in launched})
    store.keep(FrameworkOverhead((1e-3,) * len(COUNTED), 0.0))
    before, slow = (
        Predictor(network, CPU, CLASSES, store, allow_run=False, host_speed=pace).predict(
            case_of(network), quietly
        )
        for pace in (ConstantSpeed(), Planted(2.0, 1.5, 4.0))
    )
    assert before.simulated is not None
    assert slow.simulated is not None
    assert slow.predicted is not None
    assert slow.simulated.gpu_s == pytest.approx(before.simulated.gpu_s)
    assert slow.simulated.host_s == pytest.approx(2 * before.simulated.host_s)
    assert [op.host_s for op in slow.ops] == pytest.approx([2 * op.host_s for op in before.ops])
    assert sum(op.host_s for op in before.ops) > 0
    limited = replace(slow, predicted=replace(slow.predicted, limit="gpu"))  # as on a GPU
    told = limited.predicted_for(SlowdownRange(2.0, 1.5, 4.0)).predicted
    assert told is not None
    low, high = told.interval_s or (0.0, 0.0)
    quick, slowest = (before.simulated.gpu_s + n * before.simulated.host_s for n in (1.5, 4.0))
    assert low == pytest.approx((1 - HOST_ERROR) * quick)
    assert high == pytest.approx((1 + HOST_ERROR) * slowest)


def test_a_step_may_be_told_for_another_pace(told: dict[str, Prediction]) -> None:
    for one in told.values():
        assert one.predicted is not None
        assert one.simulated is not None
        limited = replace(one, predicted=replace(one.predicted, limit="gpu"))  # as on a GPU
        again = limited.predicted_for(SlowdownRange(3.0, 2.0, 4.0))
        assert again.predicted is not None
        assert again.simulated is not None
        assert again.slowdown == 3.0
        assert again.simulated.gpu_s == pytest.approx(one.simulated.gpu_s)
        assert again.simulated.host_s == pytest.approx(3 * one.simulated.host_s / one.slowdown)
        assert again.predicted.step_s == again.simulated.step_s > one.predicted.step_s
        ends = [one.at(pace).simulate().step_s for pace in (2.0, 4.0)]
        error = again.predicted.interval_s
        assert error is not None
        assert error[0] < ends[0]
        assert error[1] > ends[1]
        assert again.predicted.limit == again.simulated.limit
        of_a_cpu = one.predicted_for(SlowdownRange(3.0, 2.0, 4.0)).predicted
        assert of_a_cpu is not None
        assert of_a_cpu.limit is None
        assert of_a_cpu.interval_s is None
        assert (
            again.predicted_for(SlowdownRange(1.0, 1.0, 1.0)).predicted
            == limited.predicted_for(SlowdownRange(1.0, 1.0, 1.0)).predicted
        )
    nothing = Prediction(case_of(find("cnn-cifar")), reason="planted")
    assert nothing.predicted_for(SlowdownRange(3.0, 2.0, 4.0)) == nothing


def test_the_pace_is_looked_at_where_little_is_known_of_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first prediction; at later ones only when the last is long ago."""
    clock, looks = [100.0], []
    network = find("cnn-cifar")
    asked = predictor(network, store)
    monkeypatch.setattr("e2e.predict.host_model.host_speed.time.perf_counter", lambda: clock[0])
    look = asked._recorded_speed.look
    monkeypatch.setattr(asked._recorded_speed, "look", lambda: (looks.append(clock[0]), look()))
    assert asked.predict(case_of(network), quietly).speed_readings
    clock[0] = 105.0
    again = asked.predict(case_of(network), quietly)
    assert looks == [100.0]
    assert again.speed_readings, "those of the last time"
    clock[0] = 200.0
    asked.predict(case_of(network), quietly)
    assert looks == [100.0, 200.0]


def measured(told: Prediction, pace: float, off_s: float = 0.0) -> Training:
    """A training whose steps took as long as is told for a host of this pace, and `off_s` more."""
    step_s = told.at(pace).simulate().step_s + off_s
    steps = StepTimes((step_s,), (step_s,), (1,), step_s, None, step_s, 1, host_pace=pace)
    return Training(told.case, "ok", step_units=4, steps=steps)


def test_steps_are_explained_by_the_pace_of_the_host_while_they_were_measured(
    told: dict[str, Prediction],
) -> None:
    slow = {
        key: replace(one, ops=tuple(replace(op, host_s=1e-3, waits=False) for op in one.ops))
        for key, one in told.items()
    }
    for off_s in (0.0, 0.01):
        arms = [measured(one, 5.0 + i, off_s * i) for i, one in enumerate(slow.values())]
        fp32, amp = with_predictions(arms, slow)
        for arm, one, off in ((fp32, told[fp32.case.key], 0), (amp, told[amp.case.key], off_s)):
            assert arm.predicted is not None
            assert one.predicted is not None
            assert arm.predicted.step_s == one.predicted.step_s  # what was said before stays
            paced_s = arm.predicted.paced_s or 0.0
            assert paced_s == pytest.approx((arm.step_s or 0.0) - off)
            assert paced_s > one.predicted.step_s
        (residual,) = (line.ms for line in amp.ledger if line.term == "residual")
        assert residual == pytest.approx(1e3 * off_s, abs=1e-6)
    without = [Training(arm.case, "ok", step_units=4) for arm in (fp32, amp)]
    unpaced = [t.predicted.paced_s for t in with_predictions(without, slow) if t.predicted]
    assert unpaced == [None, None]


@pytest.mark.slow
def test_what_the_host_does_around_calls_is_kept_as_at_pace_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted times, by a host that says it is a thousand times slower just now."""
    monkeypatch.setattr("e2e.predict.calibration._step_s", lambda step, device: 3e-3)
    monkeypatch.setattr(CpuStopwatch, "passes", lambda self, calls: lambda: 1e-3)
    monkeypatch.setattr("e2e.predict.op_timer.launch_times.WARM_S", 0.0)
    network, device = find("cnn-cifar"), torch.device("cpu")
    traced = trace(network, case_of(network), device, network.classes or 2)
    with shallow_models():
        fits = [
            calibrated(CallTimer(Target("cpu", "a CPU"), Store(DEVICE, {}), pace), pace)
            for pace in (ConstantSpeed(), Planted(1000.0))
        ]
    as_seen, at_1 = (fit.of(traced) for fit in fits)
    assert as_seen == pytest.approx(1000 * at_1)
    assert at_1 > 0


def test_a_compiled_step_is_not_covered_and_says_so(store: Store) -> None:
    network = find("cnn-cifar")
    found = predictor(network, store).predict(case_of(network, compile=True), quietly)
    assert found.predicted is None
    assert "compiled" in (found.reason or "")


def test_a_recipe_that_cannot_run_is_not_predicted(store: Store) -> None:
    network = find("cnn-cifar")
    found = predictor(network, store).predict(case_of(network, "tf32"), quietly)
    assert found.predicted is None
    assert "Tensor Core" in (found.reason or "")


def test_a_captured_step_needs_a_device_that_captures(store: Store) -> None:
    found = predictor(find("cnn-cifar"), store).predict(
        case_of(find("cnn-cifar"), graph=True), quietly
    )
    assert found.predicted is None
    assert "CUDA" in (found.reason or "")


def test_a_capture_that_breaks_off_ends_the_process_that_may_be_broken_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = predictor(find("cnn-cifar"), store)

    def broken(*_: object) -> Prediction:
        raise CaptureFailed("operation not permitted when stream is capturing")

    monkeypatch.setattr(asked, "_prediction", broken)
    with pytest.raises(CaptureFailed):
        asked.predict(case_of(asked.network), quietly)


def test_what_goes_wrong_is_a_reason_and_no_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = predictor(find("cnn-cifar"), store)

    def full() -> float:
        raise torch.OutOfMemoryError("no room for the small step\nand more")

    monkeypatch.setattr(asked.host_speed, "slowdown", full)
    found = asked.predict(case_of(asked.network), quietly)
    assert found.predicted is None
    assert found.reason == "OutOfMemoryError: no room for the small step"


@pytest.mark.parametrize(
    ("flags", "kind", "predicts"),
    [
        ([], "cuda", True), ([], "cpu", False), (["--no-predict"], "cuda", False),
        (["--predict"], "cpu", True), (["--predict"], "cuda", True), (["--verify"], "cpu", True),
    ],
)  # fmt: skip
def test_a_training_is_predicted_by_default_on_a_gpu(
    flags: list[str], kind: str, predicts: bool, tmp_path: Path
) -> None:
    words = train.make_context("train", ["cnn-cifar", *flags]).params
    request = request_of("cnn-cifar", words)
    greeting = Greeting({}, {}, Target(kind, "a device"), None)
    facts = DataFacts("synthetic", CLASSES, None, None, ())
    work = Work(request, tmp_path / "run.json", find("cnn-cifar"), greeting, facts)
    assert work.predicts is predicts


def test_what_fake_tensors_cannot_follow_needs_a_step_that_runs(store: Store) -> None:
    network = network_of(Undecided)
    refused = predictor(network, store).predict(case_of(network), quietly)
    assert refused.predicted is None
    assert "--allow-run" in (refused.reason or "")
    allowed = predictor(network, store, allow_run=True).predict(case_of(network), quietly)
    assert allowed.predicted is not None
    assert any("real step" in note for note in allowed.notes)
    assert any("aten.index" in words for words in allowed.predicted.from_step)


def test_a_store_of_another_device_is_not_touched(store: Store, tmp_path: Path) -> None:
    assert store.path != Store({"name": "another"}, {}).path
