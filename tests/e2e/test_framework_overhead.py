"""What the host does beside calls: the fit finds what was planted."""

from __future__ import annotations

import pytest
import torch
from samples.calibration import shallow_models

from e2e.prediction.calibration import CLASSES, small_case, small_networks, small_recipes
from e2e.prediction.framework_overhead import CalibrationStep, FrameworkOverhead, fitted
from e2e.prediction.trace.fake_trace import trace

PLANTED = (40e-6, 3e-6, 2e-6, 4e-6, 1e-6, 60e-6, 30e-6, 50e-6, 2e-6)


def test_what_was_planted_is_found() -> None:
    with shallow_models():
        traces = [
            trace(network, small_case(network, recipe), torch.device("cpu"), CLASSES)
            for network in small_networks("cpu")
            for recipe in small_recipes(network, "cuda")
        ]
    truth = FrameworkOverhead(PLANTED, 0.0)
    samples = [CalibrationStep(found, truth.of(found) + 1e-4, 1e-4) for found in traces]
    found = fitted(samples)
    assert found.error < 0.01
    for sample in samples:
        assert found.of(sample.trace) == pytest.approx(truth.of(sample.trace), rel=0.02)
    slower = [CalibrationStep(one.trace, one.calls_s / 2, one.calls_s) for one in samples]
    assert set(fitted(slower).seconds) == {0.0}, "coefficients are not negative"
