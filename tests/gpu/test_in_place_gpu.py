"""Steps of trainings on a GPU that the profiler recorded, and the ledgers made of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from e2e.__main__ import main
from e2e.results.ledger import terms_ms
from e2e.results.terms import BETWEEN, CONVOLUTIONS, IDLE, OTHER
from e2e.results.types import Training
from microbench.results.runfile import read_run
from microbench.results.types import Run


def run_of(tmp_path: Path, *words: str) -> Run:
    file = tmp_path / "run.json"
    options = ["--batch", "64", "--budget", "3", "--quiet", "--json", str(file)]
    assert main(["resnet18-cifar", *words, *options]) == 0
    return read_run(file)


def by_recipe(run: Run) -> dict[str, Training]:
    return {training.case.recipe: training for training in run.of(Training)}


@pytest.mark.alone
def test_a_ledger_is_of_the_steps_that_were_recorded(tmp_path: Path) -> None:
    run = run_of(tmp_path, "--amp")
    arms = by_recipe(run)
    assert list(arms) == ["fp32", "tf32", "amp"]
    for training in arms.values():
        traced, steps = training.traced, training.steps
        assert traced is not None, training.warnings
        assert steps is not None
        assert steps.busy_s is not None
        assert training.predicted is None
        assert training.measured_s
        assert math.fsum(terms_ms(training).values()) == pytest.approx(1e3 * training.measured_s)
        assert traced.launches / traced.steps == pytest.approx(steps.launches or 0, rel=0.05)
        assert traced.busy_ns / traced.steps / 1e9 == pytest.approx(steps.busy_s, rel=0.25)
        layers = {part.layer for part in traced.parts if part.term == CONVOLUTIONS}
        assert "layer1.0.conv1" in layers
    amp = arms["amp"]
    first, *changes, last = (line.ms for line in amp.ledger)
    assert first + math.fsum(changes) == pytest.approx(last, rel=1e-9)
    assert {line.source for line in amp.ledger} == {"measured", "traced"}
    halves = [part for part in amp.traced.parts if part.dtype == "float16"] if amp.traced else []
    assert halves
    assert run.settings["stages_s"]["recording steps"] > 0


def test_a_captured_step_has_the_terms_of_its_kernels(tmp_path: Path) -> None:
    arms = by_recipe(run_of(tmp_path, "--recipe", "fp32,amp", "--graph"))
    amp = arms["amp"]
    assert amp.traced is not None, amp.warnings
    assert amp.ledger
    terms = terms_ms(amp)
    assert [term for term in terms if term in IDLE] == [BETWEEN]
    assert terms[CONVOLUTIONS] > terms.get(OTHER, 0)
