"""What a run that was timed before is given later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from e2e.case import TrainCase
from e2e.commands.child import DataFacts
from e2e.commands.plan import Comparison, Planned, Work
from e2e.commands.progress import TrainProgress
from e2e.commands.requests import request_of
from e2e.commands.scheduler import Job, with_what_was
from e2e.networks import find
from e2e.prediction.prediction import Prediction
from e2e.prediction.queue_model import OpCost
from e2e.results.loader_types import LoadCase, Loading
from e2e.results.types import PREDICTED, Predicted, Repeat, Training
from e2e.training.speed_readings import SlowdownRange
from kernels.case import Target
from microbench.results.runfile import read_run
from microbench.results.types import Run
from microbench.worker import Greeting, WorkerDied

LEDGER = Path(__file__).parents[2] / "results" / "nvidia-h200" / "ledger-resnet50.json"


class Refusing:
    """A training process that can predict nothing."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def predict(self, case: TrainCase, on_stage: object) -> Prediction:
        self.asked.append(case.key)
        return Prediction(case, reason="cannot be traced: planted")


class Slowing:
    """A training process whose host is slower whenever it is asked, or dies of one recipe."""

    def __init__(self, deadly: str) -> None:
        self.deadly, self.asked = deadly, list[str]()

    def predict(self, case: TrainCase, on_stage: object) -> Prediction:
        self.asked.append(case.key)
        if case.recipe == self.deadly:
            raise WorkerDied(case.key, "planted")
        slowdown = float(len(self.asked))
        predicted = Predicted(1.0, (1.0, 1.0), "gpu", {}, None)
        op = OpCost("product", "forward", "", 1.0, 1.0)
        readings = ((slowdown, slowdown),)
        return Prediction(case, predicted, ops=(op,), speed_readings=readings).predicted_for(
            SlowdownRange(slowdown, slowdown, slowdown)
        )

    def use(self, gpus: int) -> None:
        assert gpus == 1

    def restart(self) -> None:
        """As the real one's."""


@pytest.fixture
def run() -> Run:
    return read_run(LEDGER)


@pytest.fixture
def comparison(run: Run) -> Comparison:
    return Comparison(tuple(Planned(training.case) for training in run.of(Training)))


def job_with(worker: object, path: Path, **asked: Any) -> Job:
    work = Work(
        request_of("resnet50", {"verify": True}, **asked), path, find("resnet50"),
        Greeting({"memory_bytes": 10**11}, {}, Target("cuda", "a device"), None),
        DataFacts("synthetic", 1000, None, None, ()),
    )  # fmt: skip
    return Job(work, cast("Any", worker), TrainProgress(Console(quiet=True), 1, quiet=True))


def test_arms_that_are_compared_and_their_fixes_are_predicted_for_one_host_speed(
    comparison: Comparison, tmp_path: Path
) -> None:
    first, deadly, last = comparison.cases
    worker = Slowing(deadly.recipe)
    predictions = job_with(worker, tmp_path / "run.json").predictions
    found = predictions.of(comparison)
    assert found[deadly.key].reason == "planted"
    for case in (first, last):
        assert found[case.key].slowdown == 1.0, "of 1 and 3 the middle"
        predicted = found[case.key].predicted
        assert predicted is not None
        assert predicted.interval_s is not None
        assert predicted.interval_s[1] > 3.0
    assert worker.asked == [case.key for case in comparison.cases], "each once"
    fix = predictions.of_case(replace(last, batch=2 * last.batch))
    assert len(worker.asked) == 4
    assert fix.speed_readings == ((4.0, 4.0),)
    assert fix.slowdown == 1.0, "as the arms, to be compared with them"


def test_fixes_that_cannot_be_predicted_leave_a_run_as_it_was(
    run: Run, comparison: Comparison, tmp_path: Path
) -> None:
    worker = Refusing()
    found = job_with(worker, tmp_path / "run.json").run(run, [comparison], lambda _: 0)
    assert worker.asked
    assert found.of(Training) == run.of(Training)
    assert any(training.causes for training in found.of(Training))
    assert read_run(tmp_path / "run.json").of(Training) == run.of(Training)


def test_a_prediction_takes_the_place_of_no_measurement(
    run: Run, comparison: Comparison, tmp_path: Path
) -> None:
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
    worker = Refusing()
    job = job_with(worker, tmp_path / "run.json", train=False, allow_run=allowed)
    skipped = Training(run.of(Training)[0].case, "skipped", "cannot be traced: planted")
    job.run(run.with_other(skipped), [Comparison((Planned(skipped.case),))], lambda _: 0)
    assert bool(worker.asked) is allowed


def test_an_arm_that_is_timed_again_keeps_what_it_does_not_get_anew(run: Run) -> None:
    before = run.of(Training)[-1]
    assert before.predicted is not None
    assert before.causes
    assert before.steps is not None
    steps = replace(before.steps, median_s=2 * before.steps.median_s)
    again = replace(before, steps=steps, predicted=None, causes=(), repeats=())
    found = with_what_was(before, again)
    assert found.predicted is not None
    assert found.predicted.step_s == before.predicted.step_s
    assert found.predicted.error_pct == pytest.approx(
        (before.predicted.step_s / steps.median_s - 1) * 100
    )
    assert (found.causes, found.steps) == (before.causes, steps)
    newer = replace(before.predicted, step_s=1.0)
    latest = with_what_was(before, replace(again, predicted=newer)).predicted
    assert latest is not None
    assert latest.step_s == 1.0
    assert with_what_was(None, again) == again


class Answering:
    """A training process that trains, loads and times what it is asked; each has a result."""

    def use(self, gpus: int) -> None:
        """The same one."""

    def set_up(self, cases: list[TrainCase], on_stage: object) -> list[Training]:
        return [Training(case, "ok") for case in cases]

    def time(self, budget_s: float, on_stage: object) -> list[Training]:
        return []

    def load(self, case: LoadCase, budget_s: float) -> Loading:
        return Loading(case, "failed", "planted")

    def train(self, key: str, seed: int, steps: int, on_stage: object, *_: object) -> Repeat:
        return Repeat(seed, steps, 1.0, 2.0, 1.0, None, None)

    def predict(self, case: TrainCase, on_stage: object) -> Prediction:
        return Prediction(case, reason="planted")


class Watching(TrainProgress):
    """Keeps what the run file holds whenever a result is announced."""

    def __init__(self, path: Path) -> None:
        super().__init__(Console(quiet=True), 9)
        self.path, self.held = path, list[Run | None]()

    def say(self, line: str) -> None:
        self.held.append(read_run(self.path) if self.path.exists() else None)


@pytest.mark.parametrize("what", ["predicted", "timed", "trained", "loaded"])
def test_a_result_is_in_the_run_file_before_it_is_announced(
    run: Run, tmp_path: Path, what: str
) -> None:
    path = tmp_path / "run.json"
    timed = run.of(Training)[0]
    case = replace(timed.case, batch=7) if what in ("predicted", "timed") else timed.case
    job = job_with(Answering(), path, train=what != "predicted", verify=False, repeats=1)
    job.progress = watching = Watching(path)
    if what == "loaded":
        job.loaded(run, LoadCase("folder", "torchvision", 8, "3x224x224", 1), 1.0)
    else:
        steps = 3 if what == "trained" else 0
        job.run(run, [Comparison((Planned(case),))], lambda _: steps)
    held = watching.held[-1]
    assert held is not None
    if what == "loaded":
        assert held.of(Loading)
    elif what == "trained":
        found = held.find(Training, case.key)
        assert found is not None
        assert len(found.repeats) == len(timed.repeats) + 1
    else:
        assert held.find(Training, case.key) is not None
