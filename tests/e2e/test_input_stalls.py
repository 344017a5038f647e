"""A recipe fed by a loader: the model of its step, the points to measure, and the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.kernel_runs import shown

from e2e.case import TrainCase
from e2e.input_stalls import Alone, busy_points, measured_points, pays_from, predict_together
from e2e.report.loading import Gain, loader_sweeps
from e2e.results.loader_types import LoadBlock, LoadCase, Loading, load_case
from e2e.results.types import PREDICTED, Predicted, StepTimes, Training
from microbench.errors import NothingMeasured
from microbench.results.types import Ratio, Run
from microbench.run_output import Done, Outputs

BATCH = 100
MANY = 10**6  # cores: processor time never decides
seconds = st.floats(1e-3, 10.0)


def training(
    step_s: float, recipe: str = "amp", half: float | None = 0.01,
    loaded_per_s: float | None = None, **case: object,
) -> Training:  # fmt: skip
    """Steps of this length, known to `half` of it; beside busy workers with `loaded_per_s`."""
    ends = None if half is None else (step_s * (1 - half), step_s * (1 + half))
    steps = StepTimes(
        (step_s,) * 3, (step_s,) * 3, (1, 1, 1), step_s, ends, 3 * step_s, 3,
        loaded_per_s=loaded_per_s,
    )  # fmt: skip
    settings = {"data": "folder", "loader": "pinned", **case}
    return Training(
        TrainCase("resnet50", recipe, BATCH, "3x224x224", **settings),  # type: ignore[arg-type]
        "ok", step_units=BATCH, steps=steps, limit="gpu",
    )  # fmt: skip


def loading(
    load_s: float, workers: int = 4, cpu_s: float | None = None, blocks: int = 1, **case: object
) -> Loading:
    """A loader that takes so long for a batch, 10 % more or less a block, and so much CPU time."""
    factors = (1.0, 0.9, 1.1)[:blocks]
    settings = {"loader": "torchvision", **case}
    made = LoadCase("folder", batch=BATCH, input="3x224x224", workers=workers, **settings)  # type: ignore[arg-type]
    return Loading(made, "ok", blocks=tuple(LoadBlock(BATCH, load_s * f, cpu_s) for f in factors))


def predict(alone: Alone, loader: Loading, cores: int = MANY) -> Predicted:
    return predict_together(alone, loader, cores)


# ---------------------------------------------------------------- the model


@settings(max_examples=50)
@given(seconds, st.floats(1, 3), seconds, st.floats(0, 10), st.floats(0, 1), st.integers(1, 64))
def test_a_step_is_never_faster_than_any_of_its_parts_nor_with_a_slower_loader(
    step_s: float, slower: float, load_s: float, cpu_s: float, host: float, cores: int
) -> None:
    alone = Alone(training(step_s), {4: training(step_s * slower)}, host * step_s)
    found = predict(alone, loading(load_s, cpu_s=cpu_s, blocks=3), cores)
    for part in (step_s, load_s, (cpu_s + host * step_s) / cores):
        assert found.step_s >= part * (1 - 1e-9)
    assert found.step_s <= max(step_s * slower, load_s, (cpu_s + host * step_s) / cores) * 1.000001
    low, high = found.interval_s or (0, 0)
    assert low <= found.step_s <= high
    times = [predict(alone, loading(factor * load_s)).step_s for factor in (0.5, 0.9, 1, 1.1, 2)]
    assert times == sorted(times)


def test_the_interval_is_that_of_the_term_that_decides() -> None:
    known = Alone(training(1.0, half=0.02))
    assert predict(known, loading(0.001)).interval_s == pytest.approx((0.98, 1.02))
    loader = loading(10.0, blocks=3)
    low, high = loader.ci95_per_s
    assert low < 10 < high
    assert predict(known, loader).interval_s == pytest.approx((BATCH / high, BATCH / low))
    for load_s in (0.001, 10.0):  # measured once
        found = predict(Alone(training(1.0, half=None)), loading(load_s))
        assert found.interval_s == pytest.approx((found.step_s, found.step_s))


@pytest.mark.parametrize(
    ("load_s", "known", "limit"),
    [(1.049, "gpu", "gpu"), (1.051, "gpu", "data"), (0.5, None, "gpu"), (0.1, "host", "host"),
     (2.0, "host", "data")],
)  # fmt: skip
def test_a_loader_is_waited_for_from_five_per_cent_on(
    load_s: float, known: str | None, limit: str
) -> None:
    assert predict(Alone(replace(training(1.0), limit=known)), loading(load_s)).limit == limit


@pytest.mark.parametrize(
    ("load_s", "workers", "step_s"),
    [
        (1.1, 8, 1.2),  # waited for all the time
        (0.5, 8, 1.1),  # at work half of it
        (1.1, 4, 1.1),  # half as many
        (1.0, 99, 1.2),  # no more is known
    ],
)
def test_busy_workers_slow_training_as_measured(load_s: float, workers: int, step_s: float) -> None:
    alone = Alone(training(1.0), {8: training(1.2)})
    assert predict(alone, loading(load_s, workers)).step_s == pytest.approx(step_s)
    assert predict(alone, loading(0.9, 8)).limit == "data", "without them it would be faster"


@pytest.mark.parametrize(
    ("workers", "slowed"), [(0, 1.0), (2, 1.25), (4, 1.5), (6, 1.75), (8, 2.0), (16, 2.0)]
)
def test_how_much_a_training_slows_a_loader_is_interpolated(workers: int, slowed: float) -> None:
    """Beside the training the loader of 8 workers gives half, that of 4 two thirds."""
    own = {4: loading(0.3, 4), 8: loading(0.2, 8)}
    busy = {
        4: training(0.1, loaded_per_s=BATCH / 0.3 / 1.5),
        8: training(0.1, loaded_per_s=BATCH / 0.2 / 2.0),
    }
    found = predict(Alone(training(0.1), busy, loadings=own), loading(5.0, workers))
    assert found.step_s == pytest.approx(5.0 + (slowed - 1) * 0.1)


def test_a_training_that_slows_its_loader_waits_longer_and_both_share_the_cores() -> None:
    """Beside the training, 8 workers give 800 img/s, not 1,000."""
    alone = loading(BATCH / 1000, 8)
    known = Alone(training(0.1), {8: training(0.1, loaded_per_s=800.0)}, loadings={8: alone})
    assert predict(known, alone).step_s == pytest.approx(BATCH / 800)
    half = predict(known, loading(BATCH / 500, 4))  # it trains half of the time
    assert half.step_s == pytest.approx(0.2 + 0.125 * 0.1)
    assert predict(known, loading(BATCH / 4000, 16)).step_s == pytest.approx(0.1)
    busy = {4: training(0.1, loaded_per_s=2 * BATCH / 0.3)}
    alone = Alone(training(0.1), busy, loadings={4: loading(0.3)})
    assert predict(alone, loading(0.3)).step_s == pytest.approx(0.3)
    # One that was not measured alone stands for itself; of 8 workers, 4 say nothing.
    for workers, step_s in ((4, 0.4), (8, 0.3)):
        busy = {4: training(0.1, loaded_per_s=BATCH / 0.6)}
        found = predict(Alone(training(0.1), busy), loading(0.3, workers))
        assert found.step_s == pytest.approx(step_s)
    # Workers that never rest take nearly all cores of a small machine; fed ones do rest.
    loader, busy = loading(0.05, 2, cpu_s=0.05), training(1.0, loaded_per_s=BATCH / 0.5)
    alone = Alone(training(0.1), {2: busy}, host_s=0.2, loadings={2: loader})
    assert predict(alone, loader, cores=2).step_s == pytest.approx(0.15)
    assert predict(alone, loader, cores=1).step_s == pytest.approx(0.25)
    for cores, step_s in ((1, 6.0), (2, 3.0), (4, 1.5), (100, 1.0)):
        found = predict(Alone(training(1.0), host_s=2.0), loading(0.5, cpu_s=4.0), cores)
        assert found.step_s == pytest.approx(step_s)
    assert predict(Alone(training(1.0), host_s=2.0), loading(0.5), 1).step_s == pytest.approx(2)
    failed = replace(training(1.0), status="failed", steps=None)
    assert predict_together(Alone(failed), loading(1.0), MANY) is None
    skipped = Loading(loading(1.0).case, "skipped", "no DALI here")
    assert predict_together(Alone(training(1.0)), skipped, MANY) is None


# ---------------------------------------------------------------- the points


@given(st.dictionaries(st.integers(1, 64), st.floats(0.5, 3), min_size=1))
def test_measured_are_both_ends_and_where_it_begins_to_pay(speedups: dict[int, float]) -> None:
    points = measured_points(speedups)
    start = pays_from(speedups)
    if start is None:
        assert points == sorted({min(speedups), max(speedups)})
        assert speedups[max(speedups)] < 1.02
    else:
        assert all(speedups[count] >= 1.02 for count in speedups if count >= start)
        below = sorted(count for count in speedups if count < start)[-1:]
        assert all(speedups[count] < 1.02 for count in below)
        assert points == sorted({max(speedups), start, *below})


@pytest.mark.parametrize(
    ("workers", "busy"),
    [([1, 3, 8], [3, 8]), ([0, 8], [8]), ([0], []), ([2, 6, 8], [2, 8]), ([2, 3, 8, 8], [3, 8]),
     ([1], [1]), ([-1], []), ([16, 1, 2], [2, 16]), ([1, 2, 3], [1, 3])],
)  # fmt: skip
def test_the_points_to_keep_busy(workers: list[int], busy: list[int]) -> None:
    assert busy_points(workers) == busy


def test_a_gain_that_may_be_chance_does_not_pay() -> None:
    assert Gain(Ratio(1.5, (1.4, 1.6)), measured=True).pays
    assert not Gain(Ratio(1.5, (0.9, 2.1)), measured=True).pays
    assert not Gain(Ratio(1.01, (1.005, 1.015)), measured=True).pays
    assert Gain(Ratio(1.5, None), measured=False).pays


# ---------------------------------------------------------------- the picture


RATES = {1: 500.0, 2: 1000.0, 4: 2000.0, 8: 4000.0, 16: 8000.0}
ALONE = {"fp32": 0.1, "amp": 0.02}  # seconds a step: 1,000 and 5,000 img/s


def picture(measured: Sequence[int] = (1, 4)) -> Run:
    """fp32 and amp fed by workers of 500 img/s each; measured is 2 % below predicted."""
    run = Run(("stalls",), "now", {"name": "a GPU", "kind": "cuda"}, {})
    for workers, per_s in RATES.items():
        run = run.with_other(loading(BATCH / per_s, workers))
    run = run.with_other(loading(0.05, 16, cold=True))
    run = run.with_other(loading(0.005, 16, loader="read"))
    for recipe, step_s in ALONE.items():
        run = run.with_other(training(0.99 * step_s, recipe, loader="synthetic"))
        run = run.with_other(training(step_s, recipe))
        run = run.with_other(
            training(1.1 * step_s, recipe, loader="torchvision", workers=16, cached=True)
        )
        for workers in RATES:
            case = training(1.0, recipe, loader="torchvision", workers=workers).case
            loader = run.find(Loading, load_case(case).key)
            found = predict(Alone(training(step_s)), loader)
            one = Training(case, PREDICTED, step_units=BATCH, predicted=found)
            if workers in measured:
                steps = training(found.step_s / 0.98, recipe).steps
                one = replace(one, status="ok", steps=steps, limit=found.limit)
            run = run.with_other(one)
    return run


def with_trainings(run: Run, found: Sequence[Training]) -> Run:
    rest = [entry for entry in run.others if not isinstance(entry, Training)]
    return replace(run, others=(*found, *rest))


def test_the_picture_says_where_amp_stops_paying() -> None:
    run = picture()
    (joint,) = loader_sweeps(run)
    fed = tuple(t for t in run.of(Training) if t.case.loads_data and not t.case.cached)
    assert loader_sweeps(with_trainings(run, fed)) == [], "trainings with a loader alone are none"
    assert joint.recipes == ["fp32", "amp"]
    assert joint.workers == [1, 2, 4, 8, 16]
    for workers, ratio, measured in ((1, 1.0, True), (4, 2.0, True), (16, 5.0, False)):
        gain = joint.speedup("amp", "fp32", workers)
        assert gain.ratio.ratio == pytest.approx(ratio)
        assert gain.measured == measured
    assert joint.pays_from("amp", "fp32") == 4
    assert joint.in_full_from("fp32") == 2
    assert joint.in_full_from("amp") == 16
    assert joint.errors_pct == pytest.approx([2.04] * 4, rel=0.01)
    text = shown(run)
    assert "2,000 / 1,960" in text, "predicted and measured"
    assert "faster with 4 workers: 2.00 times as fast as fp32, measured; with 2 it is not" in text
    (untested,) = loader_sweeps(picture(measured=()))
    assert untested.errors_pct == []
    assert "predictions were" in text
    assert "predictions were" not in shown(picture(measured=()))
    few = [t for t in picture(()).of(Training) if t.case.workers in (0, 1, 2) or t.case.cached]
    (slow,) = loader_sweeps(with_trainings(picture(()), few))
    assert (slow.pays_from("amp", "fp32"), slow.in_full_from("amp")) == (None, None)


def test_what_failed_says_so_and_why_in_full() -> None:
    run = picture(measured=())
    why = "loader worker 2 of 4 was killed by signal 9 (SIGKILL): out of memory, most likely"
    arms = [
        replace(t, status="failed", reason=why)
        if (t.case.recipe, t.case.workers) == ("amp", 4)
        else t
        for t in run.of(Training)
    ]
    loader = replace(loading(0.1, 2, loader="dali"), status="skipped", reason=f"{why} {why}")
    run = with_trainings(run, arms).with_other(replace(loader, blocks=()))
    text = " ".join(shown(run).split())
    assert f"amp with 4 workers FAILED: {why}" in text
    text = " ".join(shown(run, details=True).split())
    assert text.count(f"dali: {why} {why}") == 1


def test_a_loader_alone_is_no_result_of_a_training(tmp_path: Path) -> None:
    failed = replace(training(1.0, loader="torchvision"), status="failed", steps=None, reason="it")
    run = Run(("e2e",), "now", {"name": "a GPU", "kind": "cuda"}, {}).with_other(loading(0.1))
    Done(run, tmp_path, Outputs(quiet=True)).report()
    with pytest.raises(NothingMeasured):
        Done(run.with_other(failed), tmp_path, Outputs(quiet=True)).report()
