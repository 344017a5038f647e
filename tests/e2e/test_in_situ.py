"""Calls that cannot be launched alone: named with their share, and taken from a real step."""

from __future__ import annotations

import math

import pytest
from samples.planted_networks import SLEEP_S, Picking, network_of
from samples.train_cases import case_of, quietly

from e2e.networks.network import Network
from e2e.prediction.op_timer.store import Store
from e2e.prediction.prediction import Prediction
from e2e.prediction.predictor import Predictor
from e2e.results.types import Predicted
from kernels.case import Target

PICKED = "halfway_tests.slowly_picked.default"


def predict(network: Network, store: Store, *, allow_run: bool) -> Prediction:
    asked = Predictor(network, Target("cpu", "a CPU"), 4, store, allow_run=allow_run)
    return asked.predict(case_of(network, 8), quietly)


def known(found: Prediction) -> Predicted:
    assert found.predicted is not None
    return found.predicted


def test_what_is_not_known_is_named_with_its_share(store: Store) -> None:
    found = predict(network_of(Picking, 2), store, allow_run=False)
    (line,) = known(found).uncovered
    launched = sum(op.kind != "view" for op in found.ops)
    assert line.startswith(f"2 x {PICKED}: ")
    assert f"(2 of {launched} calls, " in line
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
    assert known(predict(network_of(Picking, 2), store, allow_run=False)).uncovered != ()
