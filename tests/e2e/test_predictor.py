"""Predictions on the CPU: their arithmetic, not their timing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from samples.train_cases import case_of, quietly

from e2e.networks import find
from e2e.prediction.host_speed import ConstantSpeed
from e2e.prediction.op_timer.cuda_graph import CaptureFailed
from e2e.prediction.op_timer.store import Store
from e2e.prediction.prediction import GPU_ERROR, Prediction
from e2e.prediction.predictor import Predictor
from e2e.prediction.queue_model import OpCost, Simulated
from e2e.prediction.trace.fake_trace import trace
from e2e.results.types import BORDER, Predicted
from e2e.training.speed_readings import SlowdownRange
from kernels.case import Target

CPU, CLASSES = Target("cpu", "a CPU"), 10
NETWORK = find("cnn-cifar")
CASE = case_of(NETWORK, 4)


def predictor(store: Store, host_speed: ConstantSpeed | None = None) -> Predictor:
    return Predictor(NETWORK, CPU, CLASSES, store, allow_run=False, host_speed=host_speed)


def parts(found: Prediction) -> tuple[Predicted, Simulated]:
    assert found.predicted is not None
    assert found.simulated is not None
    return found.predicted, found.simulated


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


def test_a_slower_host_launches_slower_and_computes_as_fast(
    predictions: dict[str, Prediction],
) -> None:
    for one in predictions.values():
        (before, was), again = parts(one), one.predicted_for(SlowdownRange(3.0, 2.0, 4.0))
        predicted, simulated = parts(again)
        assert again.slowdown == 3.0
        assert simulated.gpu_s == pytest.approx(was.gpu_s)
        assert simulated.host_s == pytest.approx(3 * was.host_s)
        assert predicted.step_s == simulated.step_s > before.step_s
    nothing = Prediction(CASE, reason="planted")
    assert nothing.predicted_for(SlowdownRange(3.0, 2.0, 4.0)) == nothing


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
