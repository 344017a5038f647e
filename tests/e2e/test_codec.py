"""Trainings and loadings in the run file: written, read, older, of several processes."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.any_training import trainings
from samples.judge import with_value
from samples.training_runs import run_of, variant

from e2e.case import TrainCase
from e2e.results import loader_types
from e2e.results.codec import from_json, to_json
from e2e.results.loader_types import LoadBlock, LoadCase, Loading
from e2e.results.types import DeviceState, Repeat, StepTimes, Training
from e2e.training.speedups import merged, with_speedups
from microbench.results.codec import run_from_json, run_to_json
from microbench.results.comparison import compare
from microbench.results.runfile import read_run
from microbench.results.types import TIME_DECIMALS, ProcessTime

ROOT = Path(__file__).parents[2]
# A training with every field, as a reader of run files finds it.
WRITTEN = json.loads((ROOT / "tests" / "samples" / "training.json").read_text())
FULL = from_json(WRITTEN, "training.json")
FAILED = Training(replace(FULL.case, batch=4096), "failed", "out of memory", fits_batch=1024)

seconds = st.floats(1e-6, 1e6)
blocks = st.builds(
    LoadBlock, images=st.integers(1, 10**9), wall_s=seconds, cpu_s=st.none() | seconds,
    read_bytes=st.none() | st.integers(0, 10**15),
)  # fmt: skip
loadings = st.builds(
    Loading, case=st.builds(LoadCase, st.text(), st.text(), st.integers(1, 10**6), st.text(),
                            st.integers(0, 99), st.booleans(), st.integers(0, 99)),
    status=st.just("ok"), reason=st.none() | st.text(),
    blocks=st.lists(blocks, min_size=1, max_size=5).map(tuple), first_s=st.none() | seconds,
)  # fmt: skip


def as_file(document: Any) -> Any:
    return json.loads(json.dumps(document, allow_nan=False))


# ---------------------------------------------------------------- written and read back


@settings(max_examples=40)
@given(
    st.lists(trainings, max_size=2, unique_by=lambda t: t.case.key),
    st.lists(loadings, max_size=2, unique_by=lambda loading: loading.case.key),
)
def test_what_is_written_is_read_back(found: list[Training], loaded: list[Loading]) -> None:
    run = run_of(*found, *loaded)
    assert run_from_json(as_file(run_to_json(run))) == run
    assert [run.find(Loading, loading.case.key) for loading in loaded] == loaded


def test_every_field_is_written_under_its_name_with_what_follows_from_it() -> None:
    """A new field is added to samples/training.json."""
    assert as_file(to_json(FULL)) == WRITTEN
    for kind in (FULL, FULL.steps, FULL.state, FULL.repeats[1], FULL.phases[1], FULL.predicted,
                 FULL.causes[0], FULL.traced, FULL.exchange):  # fmt: skip
        assert kind is not None
        unset = {field.name for field in fields(kind) if getattr(kind, field.name) is None}
        assert unset <= {"reason", "fits_batch"}
    assert WRITTEN["images_per_s"] == pytest.approx(256 / 0.05)
    assert WRITTEN["images_per_j"] == pytest.approx(256 / 0.05 / 640)
    sizes = [to_json(replace(FULL, case=replace(FULL.case, input=shape)))["case"]["image_size"]
             for shape in ("3x32x32", "3x224x192", "1024", "3xaxa")]  # fmt: skip
    assert sizes == [32, None, None, None], "of square images"
    expected = {"mean": 0.92, "std": 0.02 / math.sqrt(2), "population_std": 0.01}
    assert WRITTEN["accuracy"] == pytest.approx(expected)
    assert FULL.predicted_per_s is None, "of the GPU's time alone"
    of_step = replace(FULL, predicted=replace(FULL.predicted, launches=None))
    assert of_step.predicted_per_s == pytest.approx(256 / 0.0495)
    assert {value for name, value in to_json(FAILED).items() if name.endswith("_s")} == {None}


def test_numbers_are_rounded_to_what_a_timer_can_tell_and_null_where_they_are_none() -> None:
    broken = Repeat(3, 50, 1.0, math.inf, math.nan, math.nan, 0.1)
    steps = replace(FULL.steps, times_s=(0.1 + 0.2, 1 / 3, 0.05), wait_s=math.nan)
    odd = replace(
        FULL, steps=steps, bound=math.inf,
        predicted=replace(FULL.predicted, error_pct=math.nan), repeats=(FULL.repeats[0], broken),
        causes=(replace(FULL.causes[0], predicted_gain_pct=math.inf),),
    )  # fmt: skip
    written = as_file(to_json(odd))
    known = replace(steps, times_s=(0.3, 0.3333333333, 0.05), wait_s=None)
    assert from_json(written, "x").steps == known
    nulls = (written["bound"], written["data_wait_s"], written["predicted"]["error_pct"],
             written["causes"][0]["predicted_gain_pct"], written["repeats"][1]["loss"])  # fmt: skip
    assert set(nulls) == {None}
    assert written["loss"] == {"mean": FULL.repeats[0].loss, "std": 0.0, "population_std": 0.0}
    assert to_json(replace(FULL, repeats=(broken,)))["loss"] is None


# ---------------------------------------------------------------- of other versions and kinds


def test_newer_fields_are_passed_over_and_older_files_lack_some() -> None:
    data = copy.deepcopy(WRITTEN) | {"forecast": {"step_s": 1}, "steps": 5, "state": None}
    data["predicted"]["model"] = data["case"]["optimiser_state"] = "cold"
    assert from_json(data, "x") == FULL
    for name in ("predicted", "ledger", "ledger_base", "bound", "causes", "traced", "exchange"):
        empty = getattr(FAILED, name)
        assert from_json(WRITTEN | {name: None}, "x") == replace(FULL, **{name: empty})
        old = {key: value for key, value in WRITTEN.items() if key != name}
        assert from_json(old, "x") == replace(FULL, **{name: empty})
    case = {"network": "n", "recipe": "fp32", "batch": 1, "input": "3"}
    read = from_json({"op": "train", "case": case, "status": "skipped"}, "x")
    assert read == Training(TrainCase("n", "fp32", 1, "3"), "skipped")
    for name in case:
        with pytest.raises(ValueError, match=name):
            from_json({"case": case | {name: None}, "status": "ok"}, "x")
    files = [path for path in (ROOT / "results").glob("*/*-resnet50.json") if "train" in path.name]
    known = [one for path in files for one in read_run(path).of(Training)]
    assert known
    assert all((one.predicted, one.ledger, one.causes) == (None, (), ()) for one in known)


# ---------------------------------------------------------------- damaged


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        (("status",), "fine", "status: expected str matching regex"),
        (("case", "batch"), 0, "case.batch is 0"),
        (("step_s",), 0.0, "median_s: expected float > 0.0"),
        (("times_s",), [], "times_s: expected array of length >= 1"),
        (("times_s", 1), 10**400, "times_s[1]: number out of range"),
        (("blocks",), [2, 2], "blocks is no division of 3 times"),
        (("ci95_s",), [0.2, 0.1], "ci95_s is no interval"),
        (("busy_s",), "1", "busy_s: expected float | null, got str"),
        (("step_units",), 0, "has steps of 0 img"),
        (("speedup", "fp32", "ratio"), 0, "speedup.fp32 is no ratio"),
        (("speedup", "fp32", "ci95"), [2, 1], "speedup.fp32 is no ratio"),
        (("repeats", 0, "curve"), [1.0] * 101, "repeats[0].curve has 101 points, of 100 steps"),
        (("status",), "predicted", "status is 'predicted', with steps or without a prediction"),
        (("predicted",), {}, "predicted.step_s is missing"),
        (("predicted", "interval_s"), [2, 1], "predicted.interval_s is no interval of times"),
        (("predicted", "speedup", "fp32"), 0, "predicted.speedup[...]: expected float > 0.0"),
        (("ledger",), [{"term": "a", "ms": 1, "source": "b"}], "does not begin and end with"),
        (("ledger", 0, "ms"), 0, "ledger does not begin and end with a step's time"),
        (("ledger", 3, "ms"), -50, "ledger does not begin and end with a step's time"),
        (("ledger", 1, "ms"), -230, "ledger adds up to 59.5 ms, not 50"),
        (("ledger", 1, "ms"), -1e300, "ledger[1].ms: expected float >= -1000000000000000.0"),
        (("causes", 0, "measured_gain_pct"), -101, "causes[0].measured_gain_pct: expected float"),
        (("causes", 0, "case_change", "graph"), [1], "causes[0].case_change[...]: expected "),
    ],
)
def test_wrong_values_are_named(place: tuple[str | int, ...], value: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)) as caught:
        from_json(with_value(WRITTEN, place, value), "results[7]")
    assert str(caught.value).startswith("results[7]")


# ---------------------------------------------------------------- what a loading says


def test_a_rate_has_an_interval_and_a_cost_and_what_cannot_be_is_refused() -> None:
    found = tuple(LoadBlock(400, wall_s, 2 * wall_s, 10**8) for wall_s in (0.9, 1.0, 1.1))
    loading = Loading(LoadCase("made", "torchvision", 8, "3x8x8"), "ok", blocks=found)
    assert loading.per_s == pytest.approx(400)
    low, high = loading.ci95_per_s or (0, 0)
    assert 250 < low < 400 < high < 700
    assert loading.per_s_per_core == pytest.approx(200)
    assert loading.bytes_per_s == pytest.approx(1e8)
    assert replace(loading, blocks=found[:1]).ci95_per_s is None
    assert replace(loading, status="skipped", blocks=()).per_s is None
    for change, said in (
        ({"blocks": []}, "is ok and has no blocks"),
        ({"blocks": [{"images": 0, "wall_s": 1.0}]}, "images: expected int >= 1"),
        ({"case": {"data": "made"}}, "case.loader is missing"),
    ):
        with pytest.raises(ValueError, match=said):
            loader_types.from_json({**as_file(loader_types.to_json(loading)), **change}, "x")


# ---------------------------------------------------------------- several processes


ROUNDS = 3
BASE_S = {"fp32": 0.2, "amp": 0.1}
# What one process differs by from the next: of each recipe, in per cent.
OFF_PCT = ({"fp32": 0.0, "amp": 0.0}, {"fp32": 3.0, "amp": 1.0}, {"fp32": -2.0, "amp": 2.0})


def timed(recipe: str, step_s: float, pace: float | None = None, **more: Any) -> Training:
    """A training in which every step of every round takes so long."""
    times = (round(step_s, TIME_DECIMALS),) * (2 * ROUNDS)
    steps = StepTimes(
        times, times, (2,) * ROUNDS, step_s, (step_s, step_s), sum(times), len(times),
        busy_s=0.95 * BASE_S[recipe], host_pace=pace,
    )  # fmt: skip
    made = variant(recipe, 256 / step_s, state=DeviceState(sm_clock_mhz=1_700.0, power_w=600.0))
    return replace(made, steps=steps, limit=None, skipped_steps=1, **more)


def in_process(number: int) -> list[Training]:
    off = OFF_PCT[number % len(OFF_PCT)]
    return [timed(name, s * (1 + off[name] / 100)) for name, s in BASE_S.items()]


def in_processes(count: int) -> list[Training]:
    found = in_process(0)
    for number in range(1, count):
        found = merged(found, in_process(number), number)
    return with_speedups(found, {})


def test_steps_are_geometric_means_of_processes_and_a_failed_variant_s_over_the_others() -> None:
    """2, 2 * 1.03 / 1.01 and 2 * 0.98 / 1.02; pooled medians would give another."""
    fp32, amp = in_processes(3)
    assert [one.number for one in fp32.steps.processes] == [0, 1, 2]
    assert [one.rounds for one in fp32.steps.processes] == [ROUNDS] * 3
    assert fp32.step_s == pytest.approx(0.2 * (1.03 * 0.98) ** (1 / 3))
    assert len(fp32.steps.times_s) == sum(fp32.steps.blocks) == 6 * ROUNDS
    assert fp32.steps.wall_s == pytest.approx(sum(fp32.steps.times_s))
    low, high = fp32.steps.ci95_s
    assert low < 0.2 * 0.98 < 0.2 * 1.03 < high, "three processes know little"
    assert fp32.skipped_steps == 3
    assert amp.limit == "gpu"
    each = [2.0, 2 * 1.03 / 1.01, 2 * 0.98 / 1.02]
    ratio = amp.speedup["fp32"]
    assert ratio.ratio == pytest.approx(math.prod(each) ** (1 / 3))
    assert ratio.ci95[0] < min(each) < max(each) < ratio.ci95[1]
    found = in_process(0)
    lost = [replace(one, status="failed", steps=None) if i else one
            for i, one in enumerate(in_process(1))]  # fmt: skip
    found = merged(found, lost, 1)
    found = with_speedups(merged(found, in_process(2), 2), {})
    fp32, amp = found
    assert [len(one.steps.processes) for one in found if one.steps] == [3, 2]
    each = [2.0, 2 * 0.98 / 1.02]
    assert amp.speedup["fp32"].ratio == pytest.approx(math.prod(each) ** 0.5)


def test_a_file_keeps_the_processes_and_an_older_one_has_none() -> None:
    for training in in_processes(3):
        assert from_json(as_file(to_json(training)), "x") == training
    (plain, _) = in_process(0)
    assert "processes" not in as_file(to_json(plain))
    assert from_json(as_file(to_json(plain)), "x") == plain


@pytest.mark.parametrize(
    "part",
    [{"rounds": ROUNDS + 1}, {"rounds": 0}, {"median_s": 0.0}, {"number": 1}, {"host_pace": -1.0}],
)
def test_processes_that_cannot_be_are_refused(part: dict[str, Any]) -> None:
    (training, _) = in_processes(2)
    first, second = training.steps.processes
    steps = replace(training.steps, processes=(replace(first, **part), second))
    with pytest.raises(ValueError, match="processes"):
        from_json(as_file(to_json(replace(training, steps=steps))), "x")


# ---------------------------------------------------------------- comparing


def verdicts(a: Sequence[Training], b: Sequence[Training]) -> list[str]:
    return [row.verdict for row in compare(run_of(*a), run_of(*b)).rows]


def cpu_bound(paces: Sequence[float], step_s: float = 0.1) -> list[Training]:
    """A step that takes as long as the CPU is slow, process by process."""
    amp = timed("amp", step_s * paces[0], paces[0])
    for number, pace in enumerate(paces[1:], 1):
        (amp,) = merged([amp], [timed("amp", step_s * pace, pace)], number)
    return [replace(amp, limit="host")]


def test_cpu_bound_steps_are_compared_at_the_speed_of_each_process() -> None:
    calm, rough = cpu_bound([1.0, 1.02, 0.99]), cpu_bound([1.0, 2.2, 1.5])
    assert verdicts(calm, rough) == ["same"], "the CPU was slower, not the step"
    assert verdicts(calm, cpu_bound([1.0, 2.2, 1.5], 0.2)) == ["slower"]
    unknown = [replace(one, steps=replace(one.steps, host_pace=None)) for one in calm if one.steps]
    blind = [
        replace(one, steps=replace(one.steps, processes=tuple(
            replace(p, host_pace=None) for p in one.steps.processes)))
        for one in unknown if one.steps
    ]  # fmt: skip
    assert verdicts(blind, rough) == ["cannot tell"]
    (amp,) = cpu_bound([1.0, 2.0])
    assert amp.steps.processes == (
        ProcessTime(0, ROUNDS, 0.1, 1_700.0, 1.0), ProcessTime(1, ROUNDS, 0.2, 1_700.0, 2.0),
    )  # fmt: skip
    assert amp.steps.host_pace == pytest.approx(1.5)
