"""Trainings in the run file: what is written is read back, what is wrong is refused in a line."""

from __future__ import annotations

import copy
import io
import json
import math
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from samples.any_training import trainings
from samples.kernel_runs import h200_run

from e2e.case import TrainCase
from e2e.report.arms import view_of
from e2e.report.ledger import has_ledger, waterfall
from e2e.report.plot_training import bar_rows
from e2e.report.plot_waterfall import waterfall_rows
from e2e.results.codec import LATER, from_json, to_json
from e2e.results.exchange import AllReduce, Copies, Exchange
from e2e.results.terms import TracedCost, TracedPart, TracedStep
from e2e.results.types import (
    PREDICTED,
    Cause,
    Evaluation,
    LedgerLine,
    Phase,
    Predicted,
    Repeat,
    Spread,
    State,
    StepTimes,
    Training,
)
from microbench.errors import UserError
from microbench.report.console import print_run
from microbench.report.export import to_csv, to_markdown
from microbench.results.codec import run_from_json, run_to_json
from microbench.results.comparison import compare
from microbench.results.runfile import as_run, read_run, write_run
from microbench.results.types import Ratio, Run, Warning

# The names that DESIGN.md and the issue promise to readers and other tools.
CASE_NAMES = {
    "network", "recipe", "batch", "input", "image_size", "layout", "optimizer", "fused", "compile",
    "graph", "accumulate", "loss_scale", "keep_batchnorm_fp32", "label_smoothing", "data",
    "loader", "workers", "cached", "cold", "prefetch", "cpus", "gpus", "search",
    "lr", "warmup", "schedule", "clip", "held_out",
    "memory_limit", "deterministic", "weights", "freeze", "compress",
}  # fmt: skip
NAMES = {
    "op", "case", "status", "reason", "unit", "step_units", "images_per_s", "step_s", "ci95_s",
    "times_s", "wall_times_s", "blocks", "wall_s", "wall_steps", "busy_s", "host_s", "launches",
    "wait_s", "unfed_s", "loaded_per_s", "host_pace",
    "data_wait_s", "phases", "memory_peak_bytes", "gpu_util_pct", "power_w", "images_per_j",
    "sm_clock_mhz", "temperature_c", "throttle", "setup_s", "compile_s", "fits_batch",
    "skipped_steps", "speedup", "repeats", "loss", "accuracy", "chance", "converged",
    "convergence", "limit", "why", "rung", "warnings", "predicted", "ledger", "ledger_base",
    "bound", "causes",
}  # fmt: skip
CASE = TrainCase("resnet50", "amp", 256, "3x224x224", "nhwc", loss_scale=256.0)
FULL = Training(
    case=CASE,
    status="ok",
    step_units=256,
    steps=StepTimes(
        times_s=(0.05, 0.051, 0.0500000001),
        wall_times_s=(0.049, 0.052, 0.05),
        blocks=(2, 1),
        median_s=0.05,
        ci95_s=(0.0499, 0.0502),
        wall_s=0.151,
        wall_steps=3,
        busy_s=0.048,
        host_s=0.02,
        launches=1_204,
        wait_s=0.003,
        unfed_s=0.0301,
        loaded_per_s=812.5,
        host_pace=1.25,
    ),
    phases=(Phase("data", 0.0, 0.003), Phase("forward", 0.015, 0.007)),
    state=State(Spread(98.0, 91.0, 100.0), 1_755.0, 640.0, 58.0, ("power cap",)),
    setup_s=12.5,
    measured_at="2026-11-24T03:00:00+00:00",
    compile_s=1.25,
    memory_peak_bytes=21_700_000_000,
    memory_reserved_bytes=23_000_000_000,
    memory_process_bytes=24_000_000_000,
    model_bytes=102_000_000,
    checkpoint_bytes=307_000_000,
    first_step_s=3.5,
    float8_layers=48,
    linear_layers=49,
    exchange=Exchange(
        2,
        10**8,
        0.048,
        0.004,
        0.001,
        (0.0005, 0.0015),
        (0.047, 0.048),
        (10**7, 9 * 10**7),
        (AllReduce(2**16, 2e-5), AllReduce(9 * 10**7, 0.0035)),
        Copies(161, 10**8, 7e-4, 4e-4),
    ),
    skipped_steps=2,
    speedup={"fp32": Ratio(5.8, (5.7, 5.9)), "tf32": Ratio(1.9, None)},
    repeats=(
        Repeat(1, 100, 5.0, 2.3, 0.2, 0.3, 0.91),
        Repeat(
            2,
            100,
            5.2,
            2.3,
            0.2,
            0.4,
            0.93,
            1,
            (2.3, None, 0.2),
            0.1,
            0.7,
            (Evaluation(50, 2.6, None, 0.5), Evaluation(100, 5.2, 0.4, 0.93)),
            0.25,
            0.0,
        ),
    ),
    chance=0.1,
    converged=True,
    convergence="loss fell from 2.3 to 0.2",
    limit="gpu",
    why="kernels take 96 % of the step",
    rung="+ amp",
    warnings=(Warning("symptom", "cause", "remedy"),),
    predicted=Predicted(
        0.0495,
        (0.048, 0.051),
        "gpu",
        {"fp32": 5.9},
        21_300_000_000,
        ("aten.nonzero",),
        -1.0,
        {"tracing": 1.1, "operations": 8.4},
        0.0501,
        gpu_s=0.049,
        host_s=0.0303,
        terms_ms={"convolutions": 10.25},
        exchange_s=0.002,
    ),
    ledger=(
        LedgerLine("fp32 step", 290.0, "measured"),
        LedgerLine("convolutions", -239.5, "replayed", "250.00 to 10.50 ms"),
        LedgerLine("residual", -0.5, "measured"),
        LedgerLine("amp step", 50.0, "measured"),
    ),
    ledger_base="fp32",
    bound=7.25,
    causes=(
        Cause("CUDA graph", "waits", "--graph", 12.5, {"graph": True, "loss_scale": 8.0}, 11.0),
        Cause("TF32 is already on in the baseline", "products take 9 ms"),
    ),
    traced=TracedStep(
        2,
        2_408,
        (
            TracedPart("convolutions", 21_000_000, "layer1.0", "float16", "60x64x56x56"),
            TracedPart("layout changes", 100, "layer1.0", "float16", within="convolutions"),
            TracedPart("synchronisation", 3_000_001),
        ),
        (TracedCost("synchronisation", 3_000_001, "train.py:8", "read losses seldom"),),
    ),
)
FORETOLD = Training(CASE, PREDICTED, step_units=256, predicted=FULL.predicted)
FAILED = Training(replace(CASE, batch=4096), "failed", "out of memory", fits_batch=1024)


def run_of(*found: Training, **changes: Any) -> Run:
    run = Run(
        ("python", "-m", "e2e"), "2026-01-01T00:00:00+00:00", {"name": "a GPU", "kind": "cuda"},
        {"torch": "2.11"}, others=tuple(found),
    )  # fmt: skip
    return replace(run, **changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


# ---------------------------------------------------------------- round trip


@settings(max_examples=60)
@given(st.lists(trainings, max_size=2, unique_by=lambda t: t.case.key))
def test_what_is_written_is_read_back(found: list[Training]) -> None:
    run = run_of(*found)
    text = json.dumps(run_to_json(run), allow_nan=False)
    assert run_from_json(json.loads(text)) == run


def test_every_field_is_kept(path: Path) -> None:
    """FULL sets every field, so that one that is forgotten shows."""
    kinds = (FULL, FULL.steps, FULL.state, FULL.repeats[1], FULL.phases[1], FULL.predicted)
    kinds = (*kinds, FULL.causes[0], FULL.traced, FULL.exchange)
    for kind in kinds:
        assert kind is not None
        unset = {field.name for field in fields(kind) if getattr(kind, field.name) is None}
        assert unset <= {"reason", "fits_batch"}
    write_run(run_of(FULL, FAILED), path)
    assert read_run(path).of(Training) == (FULL, FAILED)
    assert read_run(path).find(Training, CASE.key) == FULL, "to go on with"
    write_run(run_of(FORETOLD), path)
    assert read_run(path).of(Training) == (FORETOLD,)


def test_kernels_and_trainings_keep_their_order(path: Path) -> None:
    kernels = h200_run()
    write_run(replace(kernels, others=(FULL, FAILED)), path)
    ops = [item["op"] for item in json.loads(path.read_text())["results"]]
    assert ops == ["gemm"] * len(kernels.results) + ["train"] * 2
    both = read_run(path)
    assert (both.results, both.of(Training)) == (kernels.results, (FULL, FAILED))
    document = json.loads(path.read_text())
    document["results"].reverse()
    mixed = run_from_json(document)
    assert mixed.results == kernels.results[::-1]
    assert mixed.of(Training) == (FAILED, FULL)


def test_old_files_read_as_before(path: Path) -> None:
    write_run(h200_run(), path)
    assert read_run(path) == h200_run()
    assert "trainings" not in json.loads(path.read_text())
    for old in (Path(__file__).parents[2] / "results").glob("*/gemm-fp16.json"):
        assert read_run(old).of(Training) == ()
    files = list((Path(__file__).parents[2] / "results").glob("*/*-resnet50.json"))
    known = [one for file in files for one in read_run(file).of(Training) if "train" in file.name]
    assert known
    for one in known:
        assert (one.predicted, one.ledger, one.ledger_base, one.bound) == (None, (), None, None)
        assert one.causes == ()


def test_a_list_of_another_name_is_no_way_in(path: Path) -> None:
    document = run_to_json(run_of(FULL)) | {"trainings": [{"status": "ok"}]}
    assert run_from_json(json.loads(json.dumps(document))).of(Training) == (FULL,)


# ---------------------------------------------------------------- what stands in the file


def test_the_names_of_the_design() -> None:
    written = to_json(FULL)
    assert written.keys() == NAMES | {"measured_at", "traced", "exchange", *LATER}, (
        "where it is known"
    )
    assert written["case"].keys() == CASE_NAMES
    assert to_json(FAILED).keys() == NAMES


def test_derived_values() -> None:
    written = to_json(FULL)
    assert written["images_per_s"] == pytest.approx(256 / 0.05)
    assert written["images_per_j"] == pytest.approx(256 / 0.05 / 640)
    assert written["data_wait_s"] == 0.003
    assert written["case"]["image_size"] == 224
    assert written["gpu_util_pct"] == {"mean": 98.0, "min": 91.0, "max": 100.0}
    expected = {"mean": 0.92, "std": 0.02 / math.sqrt(2), "population_std": 0.01}
    assert written["accuracy"] == pytest.approx(expected)
    assert written["loss"]["mean"] == pytest.approx(0.35)
    for name in ("images_per_s", "step_s", "times_s", "images_per_j", "data_wait_s", "accuracy"):
        assert to_json(FAILED)[name] is None


def test_a_prediction_as_the_contract_writes_it() -> None:
    written = to_json(FULL)
    assert written["predicted"] == {
        "step_s": 0.0495, "interval_s": (0.048, 0.051), "limit": "gpu", "speedup": {"fp32": 5.9},
        "memory_bytes": 21_300_000_000, "uncovered": ("aten.nonzero",), "error_pct": -1.0,
        "took_s": {"tracing": 1.1, "operations": 8.4}, "paced_s": 0.0501,
        "from_step": (), "gpu_s": 0.049, "host_s": 0.0303,
        "terms_ms": {"convolutions": 10.25}, "exchange_s": 0.002,
    }  # fmt: skip
    assert written["ledger"][1] == {
        "term": "convolutions", "ms": -239.5, "source": "replayed", "detail": "250.00 to 10.50 ms",
    }  # fmt: skip
    assert (written["ledger_base"], written["bound"]) == ("fp32", 7.25)
    for name in ("predicted", "ledger", "ledger_base", "bound"):
        assert to_json(FAILED)[name] is None
        assert from_json(document() | {name: None}, "x")
    assert FULL.predicted
    free = replace(FULL, bound=math.inf, predicted=replace(FULL.predicted, error_pct=math.nan))
    assert to_json(free)["bound"] is None
    assert to_json(free)["predicted"]["error_pct"] is None
    assert FORETOLD.predicted_per_s == pytest.approx(256 / 0.0495)
    assert (FORETOLD.per_s, FAILED.predicted_per_s) == (None, None)


def test_causes_as_the_contract_writes_them() -> None:
    written = to_json(FULL)["causes"]
    assert written == [
        {"title": "CUDA graph", "why": "waits", "fix": "--graph", "predicted_gain_pct": 12.5,
         "measured_gain_pct": 11.0, "case_change": {"graph": True, "loss_scale": 8.0}},
        {"title": "TF32 is already on in the baseline", "why": "products take 9 ms", "fix": "",
         "predicted_gain_pct": None, "measured_gain_pct": None, "case_change": None},
    ]  # fmt: skip
    assert to_json(FAILED)["causes"] is None
    for nothing in (None, []):
        assert from_json(document() | {"causes": nothing}, "x").causes == ()
    old = document()
    del old["causes"]
    assert from_json(old, "x") == replace(FULL, causes=())
    endless = replace(FULL.causes[0], predicted_gain_pct=math.inf, measured_gain_pct=math.nan)
    (read,) = to_json(replace(FULL, causes=(endless,)))["causes"]
    assert (read["predicted_gain_pct"], read["measured_gain_pct"]) == (None, None)


@pytest.mark.parametrize(
    ("shape", "size"), [("3x32x32", 32), ("3x224x192", None), ("1024", None), ("3xaxa", None)]
)
def test_image_size(shape: str, size: int | None) -> None:
    written = to_json(replace(FULL, case=replace(CASE, input=shape)))
    assert written["case"]["image_size"] == size


def test_times_are_rounded_to_what_a_timer_can_tell() -> None:
    assert FULL.steps
    steps = replace(FULL.steps, times_s=(0.1 + 0.2, 1 / 3, 0.05))
    written = to_json(replace(FULL, steps=steps))
    assert written["times_s"] == [0.3, 0.3333333333, 0.05]


def test_losses_that_are_no_numbers_are_null(path: Path) -> None:
    broken = Repeat(3, 50, 1.0, math.inf, math.nan, math.nan, 0.1)
    sound = FULL.repeats[0]
    for some, loss in (
        ((broken,), None),
        ((sound, broken), {"mean": sound.loss, "std": 0.0, "population_std": 0.0}),
    ):
        written = to_json(replace(FULL, repeats=some))
        assert written["repeats"][-1] == {
            "seed": 3, "steps": 50, "train_s": 1.0, "first_loss": None, "train_loss": None,
            "loss": None, "accuracy": 0.1, "skipped_steps": 0,
        }  # fmt: skip
        assert written["loss"] == loss
        json.dumps(written, allow_nan=False)


# ---------------------------------------------------------------- what is refused


def document() -> Any:
    return json.loads(json.dumps(to_json(FULL)))


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        (("status",), "fine", "status is 'fine'"),
        (("status",), None, "status is NoneType"),
        (("limit",), "loader", "limit is 'loader'"),
        (("case", "batch"), 0, "case.batch is 0"),
        (("case", "batch"), 2.5, "case.batch is float"),
        (("case", "network"), None, "case.network is NoneType"),
        (("step_s",), 0.0, "not above zero"),
        (("step_s",), None, "median_s is NoneType"),
        (("times_s",), [], "no steps"),
        (("times_s", 1), -0.05, "not above zero"),
        (("times_s", 1), 10**400, "int too large"),
        (("wall_times_s", 0), 0, "not above zero"),
        (("blocks",), [2, 2], "blocks is no division of 3 times"),
        (("blocks",), [4, -1], "blocks is no division of 3 times"),
        (("ci95_s",), [0.2, 0.1], "ci95_s is no interval"),
        (("ci95_s",), [0.0, 0.1], "ci95_s is no interval"),
        (("wall_s",), -1, "wall_s"),
        (("busy_s",), -1, "busy_s is under zero"),
        (("step_units",), 0, "has steps of 0 img"),
        (("memory_peak_bytes",), -5, "memory_peak_bytes is -5"),
        (("power_w",), "high", "power_w is str"),
        (("power_w",), -3, "power_w is -3"),
        (("power_w",), math.inf, "power_w is inf"),
        (("gpu_util_pct",), 98.0, "gpu_util_pct is no object"),
        (("gpu_util_pct", "mean"), None, "gpu_util_pct.mean is NoneType"),
        (("phases", 0, "host_s"), -1, "phases has a time under zero"),
        (("speedup", "fp32", "ratio"), 0, "speedup.fp32 is no ratio"),
        (("speedup", "fp32", "ci95"), [2, 1], "speedup.fp32 is no ratio"),
        (("repeats", 0, "curve"), [1.0] * 101, "repeats[0].curve has 101 points, of 100 steps"),
        (("repeats", 0, "accuracy"), 91, "accuracy is 91.0, not from 0 to 1"),
        (("repeats", 1, "train_s"), -1, "repeats[1] has steps or seconds under zero"),
        (("repeats", 1, "evaluations", 0, "steps"), 101, "repeats[1].evaluations has steps"),
        (("repeats", 1, "evaluations", 1, "accuracy"), 2.0, "has an accuracy of 2.0"),
        (("checkpoint_bytes",), -1, "checkpoint_bytes is -1"),
        (("repeats", 1, "zero_gradients"), 1.5, "repeats[1].zero_gradients is 1.5"),
        (("converged",), "yes", "converged is str"),
        (("status",), "predicted", "status is 'predicted', with steps or without a prediction"),
        (("predicted",), {}, "predicted.step_s is missing"),
        (("predicted", "step_s"), 0, "predicted.step_s is 0.0"),
        (("predicted", "interval_s"), [2, 1], "predicted.interval_s is no interval of times"),
        (("predicted", "interval_s"), 3, "predicted.interval_s is no list"),
        (("predicted", "limit"), "loader", "predicted.limit is 'loader'"),
        (("predicted", "memory_bytes"), -1, "predicted.memory_bytes is -1"),
        (("predicted", "speedup", "fp32"), -1, "predicted.speedup.fp32 is no ratio above zero"),
        (("predicted", "uncovered", 0), None, "predicted.uncovered[0] is NoneType"),
        (("predicted", "error_pct"), "small", "predicted.error_pct is str"),
        (("ledger",), [{}], "ledger[0].term is missing"),
        (("ledger",), {}, "ledger is no list"),
        (("ledger",), [{"term": "a", "ms": 1, "source": "b"}], "does not begin and end with"),
        (("ledger", 0, "ms"), 0, "ledger does not begin and end with a step's time"),
        (("ledger", 3, "ms"), -50, "ledger does not begin and end with a step's time"),
        (("ledger", 1, "ms"), -230, "ledger adds up to 59.5 ms, not 50"),
        (("ledger", 1, "ms"), None, "ledger[1].ms is NoneType"),
        (("ledger", 2, "detail"), 7, "ledger[2].detail is int"),
        (("ledger", 1, "ms"), -1e300, "ledger has a time of more than 1e+15 ms"),
        (("ledger_base",), 3, "ledger_base is int"),
        (("bound",), 0, "bound is 0"),
        (("causes",), {}, "causes is no list"),
        (("causes", 0), "graph", "causes[0] is no object"),
        (("causes", 0), {"why": "x"}, "causes[0].title is missing"),
        (("causes", 1, "why"), None, "causes[1].why is NoneType"),
        (("causes", 0, "fix"), ["--graph"], "causes[0].fix is list"),
        (("causes", 0, "predicted_gain_pct"), "much", "causes[0].predicted_gain_pct is str"),
        (("causes", 0, "predicted_gain_pct"), math.inf, "causes[0].predicted_gain_pct is inf"),
        (("causes", 0, "measured_gain_pct"), -101, "measured_gain_pct is -101.0, less than -100"),
        (("causes", 0, "case_change"), "graph", "causes[0].case_change is no object"),
        (("causes", 0, "case_change", "graph"), [1], "causes[0].case_change.graph is list"),
        (("causes", 0, "case_change", "graph"), {}, "causes[0].case_change.graph is dict"),
    ],
)
def test_wrong_values_are_refused_by_name(
    place: tuple[str | int, ...], value: Any, complaint: str
) -> None:
    data = document()
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises((ValueError, OverflowError)) as caught:
        from_json(data, "results[7]")
    assert complaint in str(caught.value)
    if isinstance(caught.value, ValueError):
        assert str(caught.value).startswith("results[7]")


def test_unknown_fields_are_passed_over() -> None:
    data = document() | {"forecast": {"step_s": 1}, "steps": 5, "state": None}
    data["predicted"]["model"] = "queue"
    data["case"]["optimiser_state"] = "cold"
    assert from_json(data, "x") == FULL


def test_only_the_case_and_the_status_are_needed() -> None:
    case = {"network": "n", "recipe": "fp32", "batch": 1, "input": "3"}
    read = from_json({"op": "train", "case": case, "status": "skipped"}, "x")
    assert read == Training(TrainCase("n", "fp32", 1, "3"), "skipped")
    for name in case:
        with pytest.raises(ValueError, match=name):
            from_json({"case": case | {name: None}, "status": "ok"}, "x")


def places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value of its own stands; of a list the first two items."""
    items = value.items() if isinstance(value, dict) else enumerate(value[:2])
    for key, inner in items:
        yield (*before, key)
        if isinstance(inner, dict | list):
            yield from places(inner, (*before, key))


def use(data: Any, sound: Run) -> str | None:
    """What a user can do with a run file; None unless it ends in anything but a line."""
    try:
        run = as_run(data, Path("run.json"))
        if run == sound:
            return None
        print_run(run, Console(file=io.StringIO(), width=100), details=True)
        to_csv(run)
        to_markdown(run)
        bar_rows(view_of(run))
        [waterfall_rows(waterfall(arm)) for arm in view_of(run).arms if has_ledger(arm)]
        compare(run, run)
    except UserError as error:
        return None if "\n" not in str(error) else "two lines"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:90]
    return None


def test_any_value_of_another_type_is_refused_in_a_line_or_harmless() -> None:
    """A file from anywhere never ends in a traceback, whichever one value in it is wrong."""
    other = replace(FORETOLD, case=replace(CASE, recipe="fp32"))
    sound = run_of(FULL, other)
    whole = json.loads(json.dumps(run_to_json(sound)))
    measured, unmeasured = whole["results"]
    crashes: dict[str, str] = {}
    for place in [*places(measured, (0,)), *((1, name) for name in unmeasured)]:
        for junk in (None, "text", -1, 0, 10**400, [], {"a": 1}):
            changed = copy.deepcopy(whole)
            inner = changed["results"]
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = junk
            said = use(changed, sound)
            if said:
                crashes[".".join(map(str, place))] = f"{str(junk)[:8]!r} -> {said}"
    assert not crashes
