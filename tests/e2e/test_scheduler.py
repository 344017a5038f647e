"""What a run saves and when, what bad networks and dead processes cost, how long a run takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import bad_networks
from samples.commands import Ran, run_here, warm_children
from samples.training_runs import variant

from e2e.__main__ import main
from e2e.commands import worker
from e2e.commands.job import Begun, Stage, with_what_was
from e2e.commands.progress import RECORDING_S, TimeLeft, TrainProgress
from e2e.commands.session import Session
from e2e.commands.train import compare_recipes, run_training
from e2e.options import TrainOptions
from e2e.results.loader_types import LoadCase, Loading
from e2e.results.types import PREDICTED, Training
from e2e.training.trainer import Trainer
from e2e.training.variants import Variants
from microbench.results.runfile import read_run
from microbench.results.types import Run

LEDGER = Path(__file__).parents[2] / "results" / "nvidia-h200" / "ledger-resnet50.json"


@pytest.fixture(autouse=True)
def _warm() -> Iterator[None]:
    with warm_children():
        yield


@pytest.fixture
def run() -> Run:
    return read_run(LEDGER)


def options(path: Path, **words: Any) -> TrainOptions:
    """Of a short run on the CPU."""
    asked = {"device": "cpu", "batch": "2", "recipe": "fp32", "budget": 0.2, "quiet": True}
    file = {"resume" if path.exists() else "json": path}
    return TrainOptions.of("cnn-cifar", asked | file | words)


# ---------------------------------------------------------------- results


def test_a_variant_that_is_timed_again_keeps_what_it_does_not_get_anew(run: Run) -> None:
    before = run.of(Training)[-1]
    assert before.causes
    steps = replace(before.steps, median_s=2 * before.steps.median_s)
    again = replace(before, steps=steps, predicted=None, causes=(), repeats=())
    found = with_what_was(before, again)
    assert found.predicted.step_s == before.predicted.step_s
    assert found.predicted.error_pct == pytest.approx(
        (before.predicted.step_s / steps.median_s - 1) * 100
    )
    assert (found.causes, found.steps) == (before.causes, steps)
    newer = replace(before.predicted, step_s=1.0)
    latest = with_what_was(before, replace(again, predicted=newer)).predicted
    assert latest.step_s == 1.0
    assert with_what_was(None, again) == again


def load_one(session: Session, run: Run) -> Run:
    session.expect(Stage.LOADING, 1)
    return session.loaded(run, LoadCase("folder", "dali", 8, "3x32x32", 1), 0.1)


def predict_then_time(session: Session, run: Run) -> Run:
    run = session.predict(run, session.comparisons)
    return session.compare(run, session.comparisons)


@pytest.mark.parametrize("procedure", [compare_recipes, predict_then_time, load_one])
def test_a_result_is_in_the_run_file_before_it_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, procedure: Any
) -> None:
    path, held = tmp_path / "run.json", list[tuple[str, Run | None]]()

    def say(self: TrainProgress, line: str) -> None:
        held.append((line, read_run(path) if path.exists() else None))

    monkeypatch.setattr(TrainProgress, "say", say)
    words = {} if procedure is load_one else {"recipe": "fp32,tf32", "iterations": 2}
    done = run_training(options(path, **words), procedure, "test", here=True)
    results = [(line, then) for line, then in held if line.startswith("[")]
    for i, (line, then) in enumerate(results, 1):
        assert then is not None, line
        assert line.startswith(f"[{i}/"), line
    assert results[-1][0].startswith(f"[{len(results)}/{len(results)}]"), (
        "what is skipped is not counted"
    )
    saved = [len(then.of(Training)) + len(then.of(Loading)) for _, then in results if then]
    assert saved == sorted(saved)
    assert saved[0] >= 1
    assert read_run(path) == done.run
    if procedure is predict_then_time:
        (predicted, timed, trained), times = [then for _, then in results], []
        for then in (predicted, timed, trained):
            (fp32, tf32) = then.of(Training)
            assert tf32.status == "skipped"
            times.append((fp32.status, fp32.steps is not None, len(fp32.repeats)))
            assert fp32.predicted
        assert times == [(PREDICTED, False, 0), ("ok", True, 0), ("ok", True, 1)]


# ---------------------------------------------------------------- processes that die


def dies_at_the_end(session: Session, run: Run) -> Run:
    run = session.compare(run, session.comparisons)
    session.begin(Stage.ENDING, ())
    os._exit(3)


def dies_in_recording(session: Session, run: Run) -> Run:
    def die(_trainings: object) -> list[Training]:
        session.begin(Stage.RECORDING, session.comparisons[0])
        os._exit(3)

    vars(session)["_recorded"] = die
    return session.compare(run, session.comparisons)


@pytest.mark.parametrize("procedure", [dies_at_the_end, dies_in_recording])
def test_a_process_that_dies_when_all_is_timed_costs_no_times(
    tmp_path: Path, procedure: Callable[[Session, Run], Run]
) -> None:
    run = run_training(options(tmp_path / "run.json"), procedure, "test").run
    (training,) = run.of(Training)
    assert training.status == "ok"
    assert training.steps is not None
    assert run.finished_at
    reasons = [warning.cause for warning in training.warnings]
    assert any("exit code 3" in why for why in reasons) == (procedure is dies_in_recording)


def breaks_the_gpu(recipes: Sequence[str], step: int, session: Session, run: Run) -> Run:
    """As a GPU with a fault: from that step of one of the recipes on, no step of any succeeds."""
    real, broken = Trainer.step, list[str]()

    def faulty(trainer: Trainer, *args: Any, **words: Any) -> None:
        if trainer.case.recipe in recipes and trainer.steps_done >= step:
            broken.append(trainer.case.recipe)
        if broken:
            raise RuntimeError("an illegal memory access")
        real(trainer, *args, **words)

    def raise_if_dead(_variants: Variants, error: Exception) -> None:
        if broken:
            raise RuntimeError(f"dead: {error}") from error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "step", faulty)
        patch.setattr(Variants, "raise_if_dead", raise_if_dead)
        return session.compare(run, session.comparisons)


@pytest.mark.parametrize("step", [1, 2], ids=["warming up", "timing"])
@pytest.mark.parametrize(
    "recipes",
    [["fp32"], ["amp-bf16"], ["bf16"], ["amp-bf16", "bf16"], ["fp32", "amp-bf16", "bf16"]],
)
def test_a_fault_of_the_gpu_costs_the_recipe_alone_in_whose_step_it_is(
    tmp_path: Path, recipes: list[str], step: int
) -> None:
    asked = options(tmp_path / "run.json", recipe="fp32,amp-bf16,bf16")
    run = run_training(asked, partial(breaks_the_gpu, recipes, step), "test").run
    assert [t.case.recipe for t in run.of(Training)] == ["fp32", "amp-bf16", "bf16"], "as asked"
    stage = "warming up" if step == 1 else "timing"
    for training in run.of(Training):
        assert (training.status == "failed") == (training.case.recipe in recipes)
        assert (training.steps is None) == (training.case.recipe in recipes)
        if training.case.recipe in recipes:
            assert f"an illegal memory access while {stage}" in (training.reason or "")
    assert run.finished_at
    assert read_run(tmp_path / "run.json") == run


# ---------------------------------------------------------------- how long it takes


@given(
    st.floats(0.1, 90), st.floats(0.1, 30), st.floats(1, 60), st.floats(0.1, 8),
    st.integers(2, 5), st.integers(1, 4), st.integers(0, 3),
)  # fmt: skip
def test_what_is_announced_is_right_from_a_third_on(
    start_s: float, set_up_s: float, budget_s: float, record_s: float,
    variants: int, comparisons: int, trainings: int,
) -> None:  # fmt: skip
    """Of a run whose parts take as long as those of the same kind before."""
    now_s, said = 0.0, list[tuple[float, float]]()
    left = TimeLeft(lambda: now_s)

    def wait(seconds: float) -> None:
        nonlocal now_s
        for _ in range(10):
            now_s += seconds / 10
            rest_s = left.seconds()
            if rest_s is not None:
                said.append((now_s, rest_s))

    cases = [variant("fp32", 1.0, case={"batch": i + 1}).case for i in range(variants)]
    wait(start_s)
    assert not said, "before it is known what is to come"
    left.expect(Stage.TIMING, comparisons)
    left.expect(Stage.TRAINING, trainings)
    for _ in range(comparisons):
        left.begin(Begun(Stage.SETTING_UP, cases, budget_s))
        for case in cases:
            left.variant(case.key)
            wait(set_up_s)
        left.begin(Begun(Stage.TIMING, cases, budget_s))
        wait(budget_s / 3)
        left.ends_in(2 * budget_s / 3)
        wait(2 * budget_s / 3)
        left.begin(Begun(Stage.RECORDING, cases))
        for case in cases:
            left.variant(case.key)
            wait(record_s)
        left.done()
    for _ in range(trainings):
        left.begin(Begun(Stage.TRAINING, cases[:1]))
        wait(1.0)
        left.ends_in(2.0)
        wait(2.0)
        left.done()
    for at_s, rest_s in said:
        assert at_s >= 0.95 * (at_s + rest_s) / 3, "nothing is said before a third"
        unknown_s = variants * comparisons * abs(RECORDING_S - record_s)  # until one was recorded
        assert abs(at_s + rest_s - now_s) <= 0.3 * now_s + unknown_s + 3.0 * trainings
    assert said


def test_a_prediction_of_many_is_announced_after_the_first() -> None:
    now_s = 0.0
    left = TimeLeft(lambda: now_s)
    left.expect(Stage.PREDICTING, 3)
    for expected in (None, 6.0, 3.0):
        left.begin(Begun(Stage.PREDICTING))
        found = left.seconds()
        assert found == (None if expected is None or found is None else pytest.approx(expected))
        now_s += 3.0
        left.done()


def test_a_command_that_knows_how_long_its_results_take_says_so_from_a_third_on() -> None:
    now_s = 0.0
    left = TimeLeft(lambda: now_s)
    for began_s, rest_s, after_s in ((0.0, 30.0, 70.0), (32.0, 50.0, 22.0), (80.0, 20.0, 0.0)):
        now_s = began_s
        left.ends_in(rest_s, after_s)
        for stage in (Stage.SETTING_UP, Stage.TIMING):
            left.begin(Begun(stage, [variant("fp32", 1.0).case], budget_s=5.0))
            for now_s in (began_s + 2.0, began_s + 10.0):
                expected = began_s + rest_s + after_s - now_s if now_s > 34.0 else None
                assert left.seconds() == (None if expected is None else pytest.approx(expected))
        left.done()
    now_s = 88.0
    left.ends_in(3.0)
    assert left.seconds() == pytest.approx(3.0), "what is under way knows better"
    left.ends_in(3.0, 50.0)
    left.restart()
    left.begin(Begun(Stage.PREDICTING))
    assert left.seconds() is None, "what a process said that died"


# ---------------------------------------------------------------- networks that crash or hang


FATAL = {
    "raises": "ValueError: the third layer takes 7 channels",
    "crashes": "SIGSEGV",
    "leaves": "exit code 7",
    "sleeps": "hung",
    "has_no_memory": "MemoryError",
}
AT_ONCE = {
    "raises_at_once": "its forward raised ValueError: the third layer takes 7 channels",
    "crashes_at_once": "ended (SIGSEGV) while running samples.bad_networks:crashes_at_once once",
    "sleeps_at_once": "while running samples.bad_networks:sleeps_at_once once",
}


def train(file: Path, name: str, *words: object) -> Ran:
    with pytest.MonkeyPatch.context() as patch:
        if "sleeps" in name:  # others may be slow, on a busy machine
            patch.setattr(worker, "SET_UP_S", 15.0)
            patch.setattr(worker, "HANG_S", 5.0)
        ran = run_here(
            main, "e2e", "train", f"samples.bad_networks:{name}", "--device", "cpu", "--batch", "4",
            "--recipe", "fp32", "--budget", "0.1", "--json", file, *words,
        )  # fmt: skip
    assert "Traceback" not in ran.stderr
    assert "device" not in ran.stderr
    return ran


@pytest.mark.parametrize("name", FATAL)
def test_what_a_network_does_when_timed_is_its_variants_reason(tmp_path: Path, name: str) -> None:
    file = tmp_path / "run.json"
    ran = train(file, name)
    assert ran.returncode == 1
    (training,) = read_run(file).of(Training)
    assert training.status == "failed"
    assert FATAL[name] in (training.reason or "")
    assert read_run(file).finished_at


@pytest.mark.parametrize("name", AT_ONCE)
def test_what_it_does_when_it_is_tried_is_one_line(tmp_path: Path, name: str) -> None:
    ran = train(tmp_path / "run.json", name)
    assert ran.returncode == 2
    assert AT_ONCE[name] in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["crashes_in_training", "raises_in_training"])
def test_a_training_that_breaks_off_keeps_the_times(tmp_path: Path, name: str) -> None:
    """It fails long after it was timed; what was measured before stays."""
    file = tmp_path / "run.json"
    train(file, name, "--iterations", "8000")
    (training,) = read_run(file).of(Training)
    assert training.status == "failed"
    assert "training from seed" in (training.reason or "")
    assert training.steps is not None


def test_a_dead_process_costs_its_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(bad_networks.STARTS, str(tmp_path / "starts"))
    file = tmp_path / "run.json"
    assert train(file, "crashes_in_another", "--processes", "2").returncode == 0
    (training,) = read_run(file).of(Training)
    assert training.status == "ok"
    assert len(training.steps.processes) < 2
    assert len(set((tmp_path / "starts").read_text().split())) > 1
