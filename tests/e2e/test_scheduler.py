"""What a run that was timed before is given later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from e2e.case import TrainCase
from e2e.commands.plan import Comparison, Planned
from e2e.commands.progress import TrainProgress
from e2e.commands.requests import request_of
from e2e.commands.scheduler import Job, Work, _with_what_was
from e2e.commands.worker import DataFacts
from e2e.networks import find
from e2e.predict.prediction import Prediction
from e2e.predict.queue_model import OpCost
from e2e.results.types import PREDICTED, Predicted, Training
from e2e.train.speed_readings import SlowdownRange
from kernels.case import Target
from microbench.results.runfile import read_run
from microbench.results.types import Run
from microbench.worker import Greeting, WorkerDied

LEDGER = Path(__file__).parents[2] / "results" / "nvidia-h200" / "ledger-resnet50.json"


class Refusing:
    """A training process that can foretell nothing."""

    def predict(self, case: TrainCase, on_stage: object) -> Prediction:
        return Prediction(case, reason="cannot be traced: planted")


class Slowing:
    """A training process whose host is slower whenever it is asked, or dies of one recipe."""

    def __init__(self, deadly: str) -> None:
        self.deadly, self.asked = deadly, list[str]()

    def predict(self, case: TrainCase, on_stage: object) -> Prediction:
        self.asked.append(case.key)
        if case.recipe == self.deadly:
            raise WorkerDied(case.key, "planted")
        pace = float(len(self.asked))
        told = Predicted(1.0, (1.0, 1.0), "gpu", {}, None)
        op = OpCost("product", "forward", "", 1.0, 1.0)
        return Prediction(case, told, ops=(op,), speed_readings=((pace, pace),)).predicted_for(
            SlowdownRange(pace, pace, pace)
        )


@pytest.fixture
def run() -> Run:
    return read_run(LEDGER)


def job_with(worker: object, path: Path, **asked: Any) -> Job:
    work = Work(
        request_of("resnet50", {"verify": True}, **asked), path, find("resnet50"),
        Greeting({"memory_bytes": 10**11}, {}, Target("cuda", "a device"), None),
        DataFacts("synthetic", 1000, None, None, ()),
    )  # fmt: skip
    return Job(work, cast("Any", worker), TrainProgress(Console(quiet=True), 1, quiet=True))


def test_arms_that_are_compared_and_their_fixes_are_told_for_one_pace(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = Comparison(tuple(Planned(training.case) for training in run.of(Training)))
    first, deadly, last = comparison.cases
    worker = Slowing(deadly.recipe)
    job = job_with(worker, tmp_path / "run.json")
    monkeypatch.setattr(job, "_restart", lambda: None)
    told = job._foretold(comparison)
    assert told[deadly.key].reason == "planted"
    assert [told[case.key].slowdown for case in (first, last)] == [1.0, 1.0], (
        "of 1 and 3 the middle"
    )
    for case in (first, last):
        predicted = told[case.key].predicted
        assert predicted is not None
        assert predicted.interval_s is not None
        assert predicted.interval_s[1] > 3.0
    assert worker.asked == [case.key for case in comparison.cases], "each once"
    fix = job._ask(replace(last, batch=2 * last.batch))
    assert len(worker.asked) == 4
    assert (fix.speed_readings, fix.slowdown) == (((4.0, 4.0),), 1.0), (
        "as the arms, to be compared with them"
    )


def test_fixes_that_cannot_be_foretold_leave_a_run_as_it_was(run: Run, tmp_path: Path) -> None:
    job = job_with(Refusing(), tmp_path / "run.json")
    comparison = Comparison(tuple(Planned(training.case) for training in run.of(Training)))
    found = job._proposed(run, comparison)
    assert found.of(Training) == run.of(Training)
    assert any(training.causes for training in found.of(Training))
    assert read_run(tmp_path / "run.json").of(Training) == run.of(Training)


def test_a_prediction_takes_the_place_of_no_measurement(run: Run, tmp_path: Path) -> None:
    comparison = Comparison(tuple(Planned(training.case) for training in run.of(Training)))
    new = replace(comparison.cases[-1], recipe="bf16")
    wider = Comparison((*comparison.arms, Planned(new)))
    job = job_with(Slowing(deadly=""), tmp_path / "run.json", train=False)
    found = job.run(run, [wider], lambda _: 0)
    assert found.of(Training)[:-1] == run.of(Training)
    added = found.of(Training)[-1]
    assert (added.case, added.status) == (new, PREDICTED)
    assert read_run(tmp_path / "run.json").of(Training)[:-1] == run.of(Training)


@pytest.mark.parametrize("allowed", [True, False])
def test_what_was_skipped_is_tried_again_where_more_is_allowed(
    run: Run, tmp_path: Path, allowed: bool
) -> None:
    job = job_with(Refusing(), tmp_path / "run.json", train=False, allow_run=allowed)
    skipped = Training(run.of(Training)[0].case, "skipped", "cannot be traced: planted")
    assert job._is_done(run.with_other(skipped), Comparison((Planned(skipped.case),))) is (
        not allowed
    )


def test_an_arm_that_is_timed_again_keeps_what_it_does_not_get_anew(run: Run) -> None:
    before = run.of(Training)[-1]
    assert before.predicted is not None
    assert before.causes
    assert before.steps is not None
    steps = replace(before.steps, median_s=2 * before.steps.median_s)
    again = replace(before, steps=steps, predicted=None, causes=(), repeats=())
    found = _with_what_was(before, again)
    assert found.predicted is not None
    assert found.predicted.step_s == before.predicted.step_s
    assert found.predicted.error_pct == pytest.approx(
        (before.predicted.step_s / steps.median_s - 1) * 100
    )
    assert (found.causes, found.steps) == (before.causes, steps)
    newer = replace(before.predicted, step_s=1.0)
    told = _with_what_was(before, replace(again, predicted=newer)).predicted
    assert told is not None
    assert told.step_s == 1.0
    assert _with_what_was(None, again) == again
