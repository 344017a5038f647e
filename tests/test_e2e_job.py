"""What a run that was timed before is given later."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from e2e.job import Job, Work
from e2e.plans import Comparison, Planned
from e2e.predict.foretold import Foretold
from e2e.progress import TrainProgress
from e2e.worker import DataFacts, TrainSettings
from microbench.results import Run
from microbench.runfile import read_run
from microbench.train_results import Predicted, TrainCase

LEDGER = Path(__file__).parents[1] / "results" / "nvidia-h200" / "ledger-resnet50.json"


class Refusing:
    """A training process that can foretell nothing."""

    def foretell(self, case: TrainCase, on_stage: object) -> Foretold:
        return Foretold(case, reason="cannot be traced: planted")


class Slowing:
    """A training process whose host is slower whenever it is asked; one recipe cannot be told."""

    def __init__(self, refused: str) -> None:
        self.refused, self.asked = refused, 0

    def foretell(self, case: TrainCase, on_stage: object) -> Foretold:
        self.asked += 1
        if case.recipe == self.refused:
            return Foretold(case, reason="planted")
        return Foretold(case, Predicted(1.0, (1.0, 1.0), "gpu", {}, None), pace=self.asked)


@pytest.fixture
def run() -> Run:
    return read_run(LEDGER)


def job_with(worker: object, path: Path) -> Job:
    work = Work(
        TrainSettings("cuda", "resnet50", "synthetic"), path, 1, None,
        DataFacts("synthetic", 1000, None, None, ()), "cuda", "img", 1, 10**11, verify=True,
    )  # fmt: skip
    return Job(work, cast("Any", worker), TrainProgress(Console(quiet=True), 1, quiet=True))


def test_arms_that_are_compared_are_told_when_all_of_them_have_been_measured(
    run: Run, tmp_path: Path
) -> None:
    comparison = Comparison(tuple(Planned(training.case) for training in run.trainings))
    recipes = [case.recipe for case in comparison.cases]
    assert len(recipes) > 2
    worker = Slowing(refused=recipes[1])
    told = list(job_with(worker, tmp_path / "run.json")._foretold(comparison).values())
    assert [one.case.recipe for one in told] == recipes
    assert told[1].reason == "planted"
    assert min(one.pace for one in told if one.predicted) > len(recipes)
    assert worker.asked == 2 * len(recipes) - 1  # what cannot be told is not tried again


def test_fixes_that_cannot_be_foretold_leave_a_run_as_it_was(run: Run, tmp_path: Path) -> None:
    job = job_with(Refusing(), tmp_path / "run.json")
    comparison = Comparison(tuple(Planned(training.case) for training in run.trainings))
    found = job._proposed(run, comparison)
    assert found.trainings == run.trainings
    assert any(training.causes for training in found.trainings)
    assert read_run(tmp_path / "run.json").trainings == run.trainings
