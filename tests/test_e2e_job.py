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
from microbench.train_results import TrainCase

LEDGER = Path(__file__).parents[1] / "results" / "nvidia-h200" / "ledger-resnet50.json"


class Refusing:
    """A training process that can foretell nothing."""

    def foretell(self, case: TrainCase, on_stage: object) -> Foretold:
        return Foretold(case, reason="cannot be traced: planted")


@pytest.fixture
def run() -> Run:
    return read_run(LEDGER)


def test_fixes_that_cannot_be_foretold_leave_a_run_as_it_was(run: Run, tmp_path: Path) -> None:
    work = Work(
        TrainSettings("cuda", "resnet50", "synthetic"), tmp_path / "run.json", 1, None,
        DataFacts("synthetic", 1000, None, None, ()), "cuda", "img", 1, 10**11, verify=True,
    )  # fmt: skip
    progress = TrainProgress(Console(quiet=True), 1, quiet=True)
    job = Job(work, cast("Any", Refusing()), progress)
    comparison = Comparison(tuple(Planned(training.case) for training in run.trainings))
    found = job._proposed(run, comparison)
    assert found.trainings == run.trainings
    assert any(training.causes for training in found.trainings)
    assert read_run(tmp_path / "run.json").trainings == run.trainings
