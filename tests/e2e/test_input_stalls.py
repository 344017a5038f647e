"""A recipe fed by a loader: the model of its step, the points to measure, and the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.kernel_runs import shown

from e2e.case import TrainCase
from e2e.commands import stalls
from e2e.commands.stalls import measure_stalls
from e2e.input_stalls import Fed, predict_together
from e2e.report.loading import loader_sweeps, sweep_answer
from e2e.results.loader_types import LoadBlock, LoadCase, Loading, load_case
from e2e.results.types import PREDICTED, Predicted, StepTimes, Training
from microbench.errors import NothingMeasured
from microbench.results.types import Ratio, Run
from microbench.run_output import Done, Outputs

BATCH = 100
MANY = 10**6  # cores: processor time never decides
seconds = st.floats(1e-3, 10.0)


def training(
    step_s: float, recipe: str = "amp", half: float | None = 0.01, **case: object
) -> Training:
    """Steps of this length, known to `half` of it."""
    ends = None if half is None else (step_s * (1 - half), step_s * (1 + half))
    steps = StepTimes((step_s,) * 3, (step_s,) * 3, (1, 1, 1), step_s, ends, 3 * step_s, 3)
    settings = {"data": "folder", "loader": "pinned", **case}
    return Training(
        TrainCase("resnet50", recipe, BATCH, "3x224x224", **settings),  # type: ignore[arg-type]
        "ok", step_units=BATCH, steps=steps, limit="gpu",
    )  # fmt: skip


def loading(
    load_s: float, workers: int = 4, cpu_s: float | None = None, blocks: int = 1, **case: object
) -> Loading:
    """A loader that takes so long for a batch, and CPU time, 10 % more or less in each block."""
    factors = (1.0, 0.9, 1.1)[:blocks]
    settings = {"loader": "torchvision", **case}
    made = LoadCase("folder", batch=BATCH, input="3x224x224", workers=workers, **settings)  # type: ignore[arg-type]
    each = (LoadBlock(BATCH, load_s * f, cpu_s and cpu_s * f) for f in factors)
    return Loading(made, "ok", blocks=tuple(each))


def fed(step_s: float, load_s: float, workers: int, half: float | None = None) -> Fed:
    """A training with this many workers, and these alone."""
    return Fed(training(step_s, half=half), loading(load_s, workers))


def predict(
    pinned: Training, loader: Loading, host_s: float = 0.0, cores: int = MANY,
    known: Fed | None = None,
) -> Predicted:  # fmt: skip
    found = predict_together(pinned, loader, host_s, cores, known)
    assert found
    return found


# ---------------------------------------------------------------- the model


@settings(max_examples=100)
@given(
    seconds, seconds, st.floats(0, 1), st.floats(0, 1), st.integers(1, 64),
    st.tuples(seconds, seconds), st.integers(1, 16),
)  # fmt: skip
def test_a_step_is_never_faster_than_its_parts_nor_slower_than_one_after_the_other(
    step_s: float, load_s: float, cpu: float, host: float, cores: int,
    there: tuple[float, float], workers: int,
) -> None:  # fmt: skip
    loader = loading(load_s, workers, cpu_s=cpu * load_s, blocks=3)
    for known in (None, fed(*there, 16), fed(*there, 16, half=0.3)):
        found = predict(training(step_s), loader, host * step_s, cores, known)
        assert max(step_s, load_s) * (1 - 1e-9) <= found.step_s <= (step_s + load_s) * (1 + 1e-9)
        assert found.interval_s
        assert found.interval_s[0] <= found.step_s <= found.interval_s[1]
    alone = predict(training(step_s), loader)
    assert alone.step_s == pytest.approx(max(step_s, load_s))
    assert found.step_s >= alone.step_s * (1 - 1e-9)


def test_the_interval_is_that_of_the_term_that_decides() -> None:
    pinned = training(1.0, half=0.02)
    assert predict(pinned, loading(0.001)).interval_s == pytest.approx((0.98, 1.02))
    loader = loading(10.0, blocks=3)
    low, high = loader.ci95_per_s or (0, 0)
    assert low < 10 < high
    assert predict(pinned, loader).interval_s == pytest.approx((BATCH / high, BATCH / low))
    for load_s in (0.001, 10.0):  # measured once
        found = predict(training(1.0, half=None), loading(load_s))
        assert found.interval_s == pytest.approx((found.step_s, found.step_s))
    known = fed(1.2, 0.5, 8, half=0.05)  # 0.14 to 0.26 s more than alone
    found = predict(training(1.0, half=None), loading(0.5, 8), known=known)
    assert (found.step_s, found.interval_s) == (pytest.approx(1.14), pytest.approx((1.14, 1.26)))
    found = predict(training(1.0, half=0.02), loading(0.5, 8), known=known)
    assert (found.step_s, found.interval_s) == (
        pytest.approx(1.14), pytest.approx((0.98 + 0.12, 1.02 + 0.28))
    )  # fmt: skip
    there = loading(0.5, 8, blocks=3)  # to a known share, and the loader alone decides
    found = predict(training(0.1, half=None), there, known=Fed(training(0.58, half=None), there))
    assert found.step_s == pytest.approx(0.58)
    ends = (BATCH / high / 20, BATCH / low / 20)
    assert found.interval_s == pytest.approx((ends[0] + max(0.0, 0.58 - ends[1]), 0.1 + ends[1]))
    found = predict(training(1.0, half=None), loading(0.5, cpu_s=2.0, blocks=3), 0.4, 2)
    assert found.step_s == pytest.approx(1.2)
    assert found.interval_s == pytest.approx((1.0, BATCH / low / 10 + 0.2))


def test_what_may_be_chance_is_no_cost() -> None:
    found = predict(training(1.0), loading(0.5, 8), known=fed(1.2, 0.5, 8, half=0.3))
    assert found.step_s == pytest.approx(1.0)
    assert found.interval_s
    assert found.interval_s[1] > 1.5


@pytest.mark.parametrize(
    ("load_s", "known", "limit"),
    [(1.049, "gpu", "gpu"), (1.051, "gpu", "data"), (0.5, None, None), (0.1, "host", "host"),
     (2.0, "host", "data")],
)  # fmt: skip
def test_a_loader_is_waited_for_from_five_per_cent_on(
    load_s: float, known: str | None, limit: str | None
) -> None:
    assert predict(replace(training(1.0), limit=known), loading(load_s)).limit == limit


@pytest.mark.parametrize(
    ("load_s", "workers", "step_s"),
    [
        (0.5, 8, 1.1),  # as measured
        (1.0, 4, 1.1),  # half as many work twice as long: as much work beside each step
        (2.0, 2, 2.05),  # a quarter of them, all the time that it trains
        (0.25, 8, 1.05),  # as many work half as long
    ],
)
def test_workers_slow_a_training_that_does_not_wait_by_their_work(
    load_s: float, workers: int, step_s: float
) -> None:
    found = predict(training(1.0), loading(load_s, workers), known=fed(1.1, 0.5, 8))
    assert found.step_s == pytest.approx(step_s)


def test_a_training_slows_the_loader_that_it_waits_for_as_measured() -> None:
    """Alone 8 workers take 0.5 s for a batch, beside the training of 0.1 s 0.58 s."""
    known = fed(0.58, 0.5, 8)
    for load_s, workers, step_s in ((0.5, 8, 0.58), (1.0, 4, 1.04), (4.0, 1, 4.01)):
        found = predict(training(0.1), loading(load_s, workers), known=known)
        assert found.step_s == pytest.approx(step_s)
    quicker = fed(0.4, 0.5, 8)  # together faster than alone: a cost of nothing
    assert predict(training(0.1), loading(1.0, 4), known=quicker).step_s == pytest.approx(1.0)
    slow = fed(9.0, 0.5, 8)  # no more than one after the other
    assert predict(training(0.1), loading(0.5, 8), known=slow).step_s == pytest.approx(0.6)


def test_training_and_loading_share_the_cores_and_what_is_unknown_is_not_predicted() -> None:
    for cores, step_s in ((1, 1.5), (3, 4 / 3), (4, 1.0), (100, 1.0)):
        found = predict(training(1.0), loading(0.5, cpu_s=2.0), 2.0, cores)
        assert found.step_s == pytest.approx(step_s)
    failed = replace(training(1.0), status="failed", steps=None)
    assert predict_together(failed, loading(1.0), 0.0, MANY) is None
    skipped = Loading(loading(1.0).case, "skipped", "no DALI here")
    assert predict_together(training(1.0), skipped, 0.0, MANY) is None
    for known in (Fed(failed, loading(0.5)), Fed(training(9.0), skipped)):
        assert predict(training(1.0), loading(0.5), known=known).step_s == pytest.approx(1.0)


# ---------------------------------------------------------------- what is measured


STEPS = {"fp32": 0.26, "tf32": 0.08, "amp": 0.04}
COST_S = 0.01  # of a step, for training and loading beside each other
PER_S, START_S, SET_UP_S = 200, 5.0, 1.0  # images of a worker; seconds until it loads, of a network
IMAGES = 2 * BATCH  # a step, of 64 tokens each


class Machine:
    """In the place of a session: each worker takes a core, and what is done is noted, with the
    seconds that were announced and taken (and whether anyone can know those before).
    """

    network = SimpleNamespace(units_per_sample=64, unit="tok")

    def __init__(
        self, recipe: str | None = None, *, tf32: bool = True, kind: str = "cuda",
        cpus: int = MANY, host_s: float | None = None,
    ) -> None:  # fmt: skip
        names = recipe.split(",") if recipe else STEPS
        self.kind, self.host_s = kind, host_s
        self.options = SimpleNamespace(recipe=recipe, loader="torchvision", cpus=cpus, budget=5.0)
        self.comparisons = [[training(1.0, name, accumulate=2).case for name in names]]
        self.done, self.left, self.announced_s = list[str](), list[int](), list[float]()
        self.took = list[tuple[float, bool]]()
        self.can_run = lambda case: tf32 or case.recipe != "tf32"
        self.saved = lambda run, *results, whole: reduce(Run.with_other, results, run)
        self.expect = lambda kind, more: None

    def ahead(self, *seconds: float) -> None:
        self.left.append(len(seconds))
        self.announced_s.append(seconds[0])

    def loaded(self, run: Run, load: LoadCase, budget_s: float) -> Run:
        alike = any(name.startswith(load.loader) for name in self.done)
        self.took.append((2 * START_S + budget_s, alike))
        self.done.append(f"{load.loader} {load.workers}{' cold' * load.cold}")
        per_s, cpu_s = PER_S * load.workers, load.workers * budget_s
        block = LoadBlock(round(per_s * budget_s), budget_s, cpu_s)
        return run.with_other(Loading(load, "ok", blocks=(block,), first_s=START_S))

    def compare(self, run: Run, comparisons: list[list[TrainCase]]) -> Run:
        turns_s = others_s = 0.0
        for case in (case for cases in comparisons for case in cases):
            self.done.append(f"{case.recipe} {case.loader} {case.workers}")
            step_s, waits = STEPS[case.recipe], False
            if case.workers:
                load_s = IMAGES / (PER_S * case.workers)
                step_s, waits = max(step_s, load_s) + COST_S, load_s > step_s
            turns_s += 5 * (2 + waits) * case.workers * step_s
            others_s += SET_UP_S + START_S * bool(case.workers) + 2.0
            before = run.find(Training, case.key)
            timed = training(step_s, half=None)
            assert timed.steps
            run = run.with_other(replace(
                timed, case=case, step_units=64 * IMAGES, setup_s=SET_UP_S,
                steps=replace(timed.steps, host_s=self.host_s),
                predicted=before and before.predicted,
            ))  # fmt: skip
        self.took.append((max(5.0, turns_s) + others_s, turns_s > 0))
        return run


@pytest.mark.parametrize(
    ("measure", "recipe", "tf32", "recipes", "together"),
    [("some", None, True, ["tf32", "amp"], [16]), ("none", None, False, ["fp32", "amp"], []),
     ("all", "fp32,tf32", True, ["fp32", "tf32"], [16, 4, 1])],
)  # fmt: skip
def test_the_most_workers_are_measured_and_say_what_others_cost(
    measure: str, recipe: str | None, tf32: bool, recipes: list[str], together: list[int]
) -> None:
    machine: Any = Machine(recipe, tf32=tf32)
    run = Run(("stalls",), "now", {}, {})
    run = measure_stalls(machine, run, workers=[16, 4, 1], measure=measure, load_budget_s=1.0)
    loaders = [*(f"torchvision {count}" for count in (16, 4, 1)),
               "torchvision 16 cold", "read 16", "read 16 cold"]  # fmt: skip
    timed = ["pinned 0", *(f"torchvision {count}" for count in together)]
    assert machine.done == [*loaders, *(f"{name} {one}" for one in timed for name in recipes)]
    count = len(loaders) + len(timed)
    assert machine.left == list(range(count, 0, -1)), "it says how long each takes"
    for (took_s, known), announced_s in zip(machine.took, machine.announced_s, strict=True):
        assert not known or took_s / 1.25 < announced_s < 1.25 * took_s
        assert announced_s > 1
    for one in (t for t in run.of(Training) if t.case.loads_data):
        step_s, load_s = STEPS[one.case.recipe], IMAGES / (PER_S * one.case.workers)
        assert one.predicted
        assert (one.step_units, one.unit) == (64 * IMAGES, "img" if one.steps else "tok")
        bases = {"fp32", "tf32"} & {*recipes} - {one.case.recipe}
        assert one.predicted.speedup.keys() == bases
        if one.case.workers == 16 or not together:  # not from what it is held against
            assert one.predicted.step_s == pytest.approx(max(step_s, load_s))
            continue
        work = one.case.workers * min(load_s, step_s) / (16 * min(IMAGES / 3200, step_s))
        assert one.predicted.step_s == pytest.approx(max(step_s, load_s) + work * COST_S)


@pytest.mark.parametrize(
    ("kind", "host_s", "step_s"),
    [("cuda", None, 0.54), ("cuda", 0.03, 0.515), ("cpu", None, 0.58)],
)
def test_launching_takes_one_core_from_the_loader_and_a_cpus_training_all(
    kind: str, host_s: float | None, step_s: float
) -> None:
    """Two workers on two cores load a step's images in 0.5 s, of one second of CPU time."""
    machine: Any = Machine("tf32", kind=kind, cpus=2, host_s=host_s)
    run = Run(("stalls",), "now", {}, {})
    run = measure_stalls(machine, run, workers=[2], measure="none", load_budget_s=1.0)
    (found,) = (t.predicted for t in run.of(Training) if t.predicted)
    assert found.step_s == pytest.approx(step_s)


def test_the_defaults_are_a_worker_a_core_and_a_quarter_and_take_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(stalls, "run_training", lambda *words: asked.append(words))
    monkeypatch.setattr(stalls, "cores", lambda: 16)
    stalls.run_stalls("resnet50", None, "some", {"data": "made", "loader": None, "budget": None})
    ((options, procedure, _),) = asked
    machine: Any = Machine()
    machine.options.budget = options.budget
    procedure(machine, Run(("stalls",), "now", {}, {}))
    assert machine.done[:2] == ["torchvision 16", "torchvision 4"]
    assert machine.done[2] == "torchvision 16 cold"
    assert 60 < sum(seconds for seconds, _ in machine.took) < 150


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
            assert loader
            found = predict(training(step_s), loader)
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
    assert "4 workers: 2.00 times as fast as fp32, measured; with 2 it is not (predicted)" in text
    (untested,) = loader_sweeps(picture(measured=()))
    assert untested.errors_pct == []
    assert "predictions were" in text
    assert "predictions were" not in shown(picture(measured=()))
    few = [t for t in picture(()).of(Training) if t.case.workers in (0, 1, 2) or t.case.cached]
    (slow,) = loader_sweeps(with_trainings(picture(()), few))
    assert (slow.pays_from("amp", "fp32"), slow.in_full_from("amp")) == (None, None)


@pytest.mark.parametrize(
    ("ratio", "ends", "said"),
    [
        (1.09, (0.94, 1.25), "No difference measured between amp and fp32 with 16 workers: 1.09 ±"),
        (1.5, (1.4, 1.6), "amp is clearly faster with 16 workers: 1.50 ±0.10 times as fast"),
        (1.01, (1.005, 1.015), "amp is hardly faster with 16 workers: 1.01 ±0.01 times as fast"),
        (0.8, (0.75, 0.85), "amp is not faster with 16 workers: 0.80 ±0.05 times as fast"),
        (1.0, None, "amp is not faster with 16 workers: 1.00 times as fast as fp32, predicted"),
        (1.5, None, "amp is faster with 16 workers: 1.50 times as fast as fp32, predicted"),
        (0.0, None, "No verdict on amp against fp32: not known with 16 workers"),
    ],
)
def test_a_gain_that_may_be_chance_is_none(
    ratio: float, ends: tuple[float, float] | None, said: str
) -> None:
    def fed(recipe: str, ratio: float, **more: Any) -> Training:
        made = training(1 / (ratio or 1.0), recipe, loader="torchvision", workers=16)
        predicted = predict(training(1 / ratio), loading(0.1)) if ratio else None
        blank: dict[str, Any] = {} if ends else {"status": PREDICTED, "steps": None}
        return replace(made, predicted=predicted, **blank, **more)

    amp = fed("amp", ratio, speedup={"fp32": Ratio(ratio, ends)} if ends else {})
    others = (training(1.0, "fp32"), training(0.5), fed("fp32", 1.0), amp, loading(0.1, 16))
    (sweep,) = loader_sweeps(Run(("stalls",), "now", {}, {}, others=others))
    assert sweep_answer(sweep, "a GPU")[0].text.startswith(said)


def test_tokens_are_not_samples_and_a_wide_interval_gives_a_range() -> None:
    def wide(one: Training) -> Training:
        steps = training(0.04, half=0.5).steps
        unsure = (one.case.recipe, one.case.workers) == ("amp", 4)
        case = replace(one.case, cpus=cpus)
        return replace(
            one, case=case, unit="tok", step_units=64 * BATCH, steps=steps if unsure else one.steps
        )

    for cpus, do in ((0, "a faster loader, or more workers where cores are free (halfway"),
                     (4, "a faster loader (halfway")):  # fmt: skip
        run = picture(measured=(4,))
        few = [wide(t) for t in run.of(Training) if t.case.workers <= 4 and not t.case.cached]
        loads = [replace(row, case=replace(row.case, cpus=cpus)) for row in run.of(Loading)]
        run = with_trainings(replace(run, others=tuple(loads)), few)
        text = " ".join(shown(run, details=True).split())
        # A step of 0.02 to 0.06 s, on a preloaded batch 0.02 s.
        reached = "amp trains 320,000 tok/s without a loader, with 4 workers 33 to 100 % of that"
        assert reached in text
        assert "tok/s: predicted / measured" in text
        assert f"Do {do}" in text
        assert "img/s: " not in text
        assert "sample/s" in text, "what the loader's column counts"


def test_a_loader_alone_is_no_result_of_a_training(tmp_path: Path) -> None:
    failed = replace(training(1.0, loader="torchvision"), status="failed", steps=None, reason="it")
    run = Run(("e2e",), "now", {"name": "a GPU", "kind": "cuda"}, {}).with_other(loading(0.1))
    Done(run, tmp_path, Outputs(quiet=True)).report()
    with pytest.raises(NothingMeasured):
        Done(run.with_other(failed), tmp_path, Outputs(quiet=True)).report()
