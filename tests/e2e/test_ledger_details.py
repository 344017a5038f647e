"""The layers and numbers that a ledger's lines name, and steps with a predicted wait."""

from __future__ import annotations

import re

import pytest

from e2e.explain.ledger import Step, ledger, op_terms_ms
from e2e.prediction.queue_model import OpCost, simulate
from e2e.results.terms import OTHER, RESIDUAL
from e2e.results.types import LedgerLine

CONV = "aten.convolution.default"


def step(layers: dict[str, float], measured_s: float | None = None, **waits: float) -> Step:
    """Convolutions of so many milliseconds, by layer."""
    ops = [
        OpCost("product", "forward", layer, ms * 1e-3, 1e-6, name=CONV)
        for layer, ms in layers.items()
    ]
    return Step(ops, simulate(ops), measured_s, **waits)


def named(base: Step, other: Step) -> dict[str, float]:
    """Layers and their changes in ms, of the line of convolutions."""
    _, _, layers = next(
        line for line in ledger(base, other) if ";" in line.detail
    ).detail.partition("; ")
    return {layer: float(ms) for layer, ms in (each.split(" ") for each in layers.split(", "))}


def test_layers_of_either_step_are_named_and_those_that_change_most() -> None:
    base = step({"gone": 4.0, "less": 9.0, "alike": 2.0, "little": 1.0, "equal": 5.0})
    other = step({"new": 3.0, "less": 7.0, "alike": 1.998, "little": 0.5, "equal": 5.0})
    assert named(base, other) == {"gone": -4.0, "new": 3.0, "less": -2.0}
    assert named(other, base) == {"gone": 4.0, "new": -3.0, "less": 2.0}
    few = step({"less": 9.0, "alike": 2.0}), step({"less": 8.0, "alike": 1.998})
    assert named(*few) == {"less": -1.0}, "what rounds to nothing is not named"


def residual(base: Step, other: Step) -> LedgerLine:
    return next(line for line in ledger(base, other) if line.term == RESIDUAL)


def test_the_residual_says_what_each_measured_step_takes_beyond_its_prediction() -> None:
    base = step({"body": 100.0}, measured_s=2.1)
    other = step({"body": 50.0}, measured_s=3.25, data_wait_s=0.2)
    for steps, beyond in (
        ((base, other), [2000.0, 3000.0]),
        ((base, step({"body": 50.0})), [2000.0]),
        ((step({"body": 50.0}), other), [3000.0]),
    ):
        numbers = re.findall(r"[+-][\d.]+", residual(*steps).detail)
        assert [float(number) for number in numbers] == pytest.approx(beyond, abs=0.02)


def test_an_expected_step_has_its_predicted_wait() -> None:
    plain = step({"body": 100.0})
    assert plain.expected_s == plain.predicted.step_s
    waiting = step({"body": 100.0}, data_wait_s=0.7, predicted_wait_s=0.3)
    assert waiting.expected_s == pytest.approx(plain.predicted.step_s + 0.3)
    assert waiting.whole_s == pytest.approx(plain.predicted.step_s + 0.7)


@pytest.mark.parametrize("kind", ["zeta", "Alpha", "viewer", ""])
def test_the_time_of_an_unknown_kind_is_other(kind: str) -> None:
    ops = [OpCost(kind, "forward", "", 2e-3, 1e-6), OpCost("view", "forward", "", 5e-3, 1e-6)]
    assert op_terms_ms(ops) == {OTHER: pytest.approx(2.0)}
