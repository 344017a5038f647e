"""What a run saves and when, what a run that was timed before is given later, and its stages."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from samples.training_runs import arm, run_of

from e2e.case import TrainCase
from e2e.commands.child import DataFacts
from e2e.commands.plan import Comparison, Planned, Work
from e2e.commands.progress import START_UP, StageTimes, TrainProgress
from e2e.commands.requests import request_of
from e2e.commands.scheduler import Job, with_what_was
from e2e.commands.train import compare_recipes
from e2e.networks.table import facts_of
from e2e.prediction import Prediction
from e2e.report.costs import STAGES, stages_part
from e2e.report.table import part_lines
from e2e.results.loader_types import LoadCase, Loading
from e2e.results.terms import TracedCost, TracedPart, TracedStep
from e2e.results.types import PREDICTED, Cause, Predicted, Repeat, Training
from kernels.case import Target
from microbench.results.runfile import read_run
from microbench.results.types import Run
from microbench.worker import Greeting

LEDGER = Path(__file__).parents[2] / "results" / "nvidia-h200" / "ledger-resnet50.json"


class Child:
    """A training process that has a result for what it is asked, and may predict nothing."""

    def __init__(self, *, predicts: bool = False) -> None:
        self.predicts, self.asked = predicts, list[str]()

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
        self.asked.append(case.key)
        if not self.predicts:
            return Prediction(reason="cannot be traced: planted")
        return Prediction(Predicted(1.0, (1.0, 1.0), None, {}, launches=3))


@pytest.fixture
def run() -> Run:
    return read_run(LEDGER)


@pytest.fixture
def comparison(run: Run) -> Comparison:
    return Comparison(tuple(Planned(training.case) for training in run.of(Training)))


def job_with(worker: object, path: Path, **asked: Any) -> Job:
    work = Work(
        request_of("resnet50", {}, **asked), path,
        Greeting({"memory_bytes": 10**11}, {}, Target("cuda", "a device"), None),
        DataFacts(facts_of("resnet50"), "synthetic", 1000, None, None, ()), (),
    )  # fmt: skip
    return Job(work, cast("Any", worker), TrainProgress(Console(quiet=True), 1, quiet=True))


# ---------------------------------------------------------------- results


def test_a_prediction_takes_the_place_of_no_measurement(
    run: Run, comparison: Comparison, tmp_path: Path
) -> None:
    new = replace(comparison.cases[-1], recipe="bf16")
    wider = Comparison((*comparison.arms, Planned(new)))
    worker = Child(predicts=True)
    job = job_with(worker, tmp_path / "run.json", train=False)
    found = compare_recipes(job, run, [wider])
    assert found.of(Training)[:-1] == run.of(Training)
    added = found.of(Training)[-1]
    assert (added.case, added.status) == (new, PREDICTED)
    assert read_run(tmp_path / "run.json").of(Training)[:-1] == run.of(Training)


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


class Quick(Child):
    """A training process in which the changed cases are a quarter faster."""

    def time(self, budget_s: float, on_stage: object) -> list[Training]:
        return [
            arm(case.recipe, 1000.0 if case == self.first else 1250.0, case=asdict(case))
            for case in self.held
        ]

    def set_up(self, cases: list[TrainCase], on_stage: object) -> list[Training]:
        self.held = cases
        return super().set_up(cases, on_stage)


def test_what_causes_propose_is_measured_beside_the_training_once(tmp_path: Path) -> None:
    names = ("optimizer", "", "launch", "casts", "layout")
    costs = tuple(TracedCost(f"of {name}", 50 - i, "", "", name) for i, name in enumerate(names))
    plain = arm(
        "amp", 1000.0, case={"fused": False, "layout": "nhwc", "loader": "synthetic"},
        traced=TracedStep(1, 9, (TracedPart("elementwise", 100),), costs),
    )  # fmt: skip
    plain = replace(plain, causes=tuple(Cause(one.title, "") for one in costs))
    worker = Quick()
    worker.first = plain.case
    job = job_with(worker, tmp_path / "run.json", verify=True)
    comparison = Comparison((Planned(plain.case),))
    run = job.run(run_of(plain), [comparison], lambda _: 0)
    found = run.find(Training, plain.case.key)
    assert found is not None
    gains = {cause.title: (cause.fix, cause.measured_gain_pct) for cause in found.causes}
    assert gains == {
        "of optimizer": ("--fused", pytest.approx(25)),
        "of ": ("", None),
        "of launch": ("--compile", pytest.approx(25)),  # a graph needs the fused optimizer
        "of casts": ("--compile", pytest.approx(25)),
        "of layout": ("", None),  # it has that already
    }
    assert {t.case.compile for t in run.of(Training)} == {False, True}
    worker.held = []
    assert job.run(run, [comparison], lambda _: 0).of(Training) == run.of(Training)
    assert worker.held == [], "not again"


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
    job = job_with(Child(), path, train=what != "predicted", repeats=1)
    job.progress = watching = Watching(path)
    if what == "loaded":
        job.loaded(run, LoadCase("folder", "torchvision", 8, "3x224x224", 1), 1.0)
    else:
        steps = 3 if what == "trained" else 0
        comparison = Comparison((Planned(case),))
        if what == "predicted":
            compare_recipes(job, run, [comparison])
        else:
            job.run(run, [comparison], lambda _: steps)
    held = watching.held[-1]
    assert held is not None
    found = held.find(Training, case.key)
    if what == "loaded":
        assert held.of(Loading)
    else:
        assert found is not None
    if what == "trained":
        assert found is not None
        assert len(found.repeats) == len(timed.repeats) + 1


# ---------------------------------------------------------------- stages

NAMES = ["setting up", "timing, round 3: 812 img/s", "timing, round 4", "recording steps"]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 1000))))
def test_the_seconds_of_all_stages_are_those_of_the_run(entered: list[tuple[str, int]]) -> None:
    now_s = 100.0
    stages = StageTimes(lambda: now_s)
    for stage, quarters in entered:
        stages.enter(stage)
        now_s += quarters / 4
    took_s = stages.so_far({})
    assert sum(took_s.values()) == pytest.approx(now_s - 100)
    assert set(took_s) <= {START_UP, "setting up", "timing", "recording steps"}
    timing_s = sum(quarters for stage, quarters in entered if stage.startswith("timing")) / 4
    assert took_s.get("timing", 0.0) == pytest.approx(timing_s)
    again = stages.so_far(took_s)
    assert sum(again.values()) == pytest.approx(2 * sum(took_s.values())), "a resumed run adds"


def test_a_report_adds_up_the_stages_that_a_file_holds() -> None:
    run = run_of(arm("amp", 800.0), settings={STAGES: {"start-up": 8.25, "timing": 15.0}})
    text = "\n".join(line.plain for line in part_lines(stages_part(run), 80))
    assert "23.2" in text
    odd = stages_part(run_of(arm("amp", 800.0), settings={STAGES: ["timing"]}))
    assert part_lines(odd, 80) == []
