"""Studies: their files, the published numbers, expansion, budgets, tests of claims."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.case import TrainCase
from e2e.results import baselines
from e2e.results.types import Repeat, StepTimes, Training
from e2e.studies.answers import NO, UNKNOWN, UNTESTABLE, YES, answer
from e2e.studies.budget import estimate_s, scaled
from e2e.studies.cells import Cell, cells_of
from e2e.studies.command import report
from e2e.studies.expand import expand, layers, listed
from e2e.studies.factors import FACTORS
from e2e.studies.report import Judged, judged
from e2e.studies.run import RUNS, State, begun
from e2e.studies.schema import parse_study, read_study, seconds, shipped
from e2e.studies.tables import number_of, published_ratio
from e2e.studies.tasks import Machine, Task, parse_recipe
from e2e.studies.types import Study, parse_test
from microbench.errors import UserError
from microbench.report.screen import make_console

ROOT = Path(__file__).parents[2]
SEEDS: dict[str, list[str]] = json.loads(
    (ROOT / "tests/samples/published.json").read_text(encoding="utf-8")
)
STUDIES = [read_study(name) for name in shipped()]
H200 = Machine("cuda", 16)
SMALL = """
schema = 1
name = "mine"
[defaults]
data = ["generated"]
recipes = ["fp32", "amp"]
networks = ["cnn-cifar"]
[[part]]
id = "one"
batch = [8, 16]
lr = [0.1, 0.2]
iterations = 40
repeats = 4
measure = ["train"]
[profile.quick]
budget = "1h"
"""


def small(**changes: str) -> Study:
    text = SMALL
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return parse_study(text.encode(), "mine.toml")


# ---------------------------------------------------------------- published numbers


def test_the_five_studies_are_there() -> None:
    assert shipped() == [
        "finetune-multigpu", "resnet-precisions", "resnet-static256", "vgg16-batch", "wrn-levels",
    ]  # fmt: skip
    for study in STUDIES:
        assert list(study.profiles) == ["full", "quick", "smoke"]
        assert study.claims
        assert study.published


def published_cells() -> list[Any]:
    return [
        pytest.param(study.seed, one, record, id=f"{study.name}-{one.table}-{number}")
        for study in STUDIES
        for one in study.published
        for number, record in enumerate(one.records())
    ]


@pytest.mark.parametrize(("seed", "published", "record"), published_cells())
def test_every_published_number_is_in_the_text(seed: str, published: Any, record: Any) -> None:
    """In one row of the author's table, or one for each metric, with the row's own words."""
    rows = SEEDS[seed]
    if published.table == "main":  # a metric a row, a batch a column
        for column, metric in (
            ("accuracy_pct", "Acc"), ("iterations_s", "Time (sec)"),
            ("memory_mb", "Memory (Mb)"),
        ):  # fmt: skip
            named = f"{record['card']} - {record['method']} | {metric}"
            (row,) = (row for row in rows if row.startswith(named))
            place = (128, 256, 512, 1024, 2048).index(record["batch"])
            assert row.split(" | ")[2 + place] == record[column]
        return
    texts = [str(record[column]) for column in published.columns if record[column] != ""]
    keys = [str(record[key]) for key in published.key]
    if "stack" in published.key:  # the stacks are columns, but in the lines of the ranges
        keys = [f"{record['network']}-{record['recipe']}"]
    if published.table == "kaggle":
        keys = [record["recipe"]]  # its card is in the text alone
    pattern = ".*".join(re.escape(word) for word in (*keys, *texts))
    assert any(re.search(pattern, row) for row in rows), (keys, texts)


def test_all_rows_of_the_texts_are_in_the_studies() -> None:
    found = {
        study.seed: sum(len(one.rows) for one in study.published) for study in STUDIES
    }  # fmt: skip
    rows = {seed: len(lines) for seed, lines in SEEDS.items()}
    assert found["002_57fa2bc8f75b279e.txt"] == rows["002_57fa2bc8f75b279e.txt"] == 42
    assert found["003_19fad38897715ce6.txt"] == rows["003_19fad38897715ce6.txt"] == 8
    assert found["001_2fa5950b8c0c6afe.txt"] * 3 == 5 * rows["001_2fa5950b8c0c6afe.txt"] == 135


@pytest.mark.parametrize(
    ("name", "table", "key", "column", "ratio"),
    [
        ("wrn-levels", "colab", ("O1", "T4"), "time_s", 1.834),
        ("wrn-levels", "colab", ("O1", "T4"), "memory_mb", 0.579),
        ("wrn-levels", "kaggle", ("O1", "P100"), "time_s", 0.988),
        ("vgg16-batch", "main", ("V100", "FP16", 2048), "iterations_s", 1.324),
        ("vgg16-batch", "main", ("V100", "AMP", 128), "iterations_s", 0.920),
        ("resnet-static256", "speed", ("Resnet50", "16", "Container"), "per_s", 2.018),
        ("resnet-static256", "speed", ("Resnet18", "16", "Slurm"), "per_s", 1.010),
    ],
)
def test_ratios_of_published_numbers_are_those_that_were_derived(
    name: str, table: str, key: tuple[Any, ...], column: str, ratio: float
) -> None:
    study = next(one for one in STUDIES if one.name == name)
    published = next(one for one in study.published if one.table == table)
    record = next(r for r in published.records() if tuple(r[k] for k in published.key) == key)
    assert published_ratio(published, record, column) == pytest.approx(ratio, abs=5e-4)


@pytest.mark.parametrize(
    ("text", "number"),
    [("57min 17s", 3437), ("1h 43min 7s", 6187), ("7657 MB", 7657), ("40.92 ± 2.08", 40.92),
     ("0.835+-0.006", 0.835), ("Not Converged.", None), ("", None), ("4.8026 (5.1898)", 4.8026),
     (192, 192)],
)  # fmt: skip
def test_the_number_of_a_published_cell(text: Any, number: float | None) -> None:
    assert number_of(text) == number


# ---------------------------------------------------------------- files

ELSEWHERE = """
[[published]]
table = "t"
key = ["recipe"]
columns = ["per_s"]
[[table]]
id = "t"
title = "T"
published = "t"
parts = ["one"]
rows = ["recipe"]
columns = { per_s = "Speed" }
elsewhere = { per_s = "oen" }
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("repeats = 4", "repaets = 4", "mine.toml: part one: unknown 'repaets'; did you mean "
                                       "repeats"),
        ('measure = ["train"]', 'measure = ["trian"]', "did you mean train"),
        ("schema = 1", "schema = 9", "schema is 9; this version reads 1"),
        ("batch = [8, 16]", 'batch = ["8"]', "batch cannot be '8': it takes samples of a batch"),
        ("repeats = 4", "repeats = true", "repeats cannot be True"),
        ("repeats = 4", "repeats = -1", "repeats cannot be -1"),
        ("[[part]]", "[part]", "part is written [[part]]"),
        ("[profile.quick]", "[profile.quik]", "unknown 'quik'; did you mean quick"),
        ('budget = "1h"', 'budget = "soon"', "'soon' is no time"),
        ('budget = "1h"', 'parts = ["two"]', "profile.quick: part: unknown 'two'"),
        ('budget = "1h"', f"budget = '1h'{ELSEWHERE}", "table t: part: unknown 'oen'; did you"),
        ("schema = 1", "schema = ", "mine.toml is no TOML"),
        ("lr = [0.1, 0.2]", "lr = { valeu = 1 }", "did you mean value"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_one_line(old: str, new: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        small(**{old: new})
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@given(st.binary(max_size=200))
def test_no_bytes_are_a_study_nor_a_traceback(content: bytes) -> None:
    with pytest.raises(UserError):
        parse_study(content, "x.toml")


@given(st.sampled_from(range(len(SMALL.splitlines()))), st.sampled_from(["1", "[]", "{}", "'x'"]))
def test_a_value_of_another_type_is_a_study_or_one_line(line: int, value: str) -> None:
    lines = SMALL.splitlines()
    if "=" in lines[line]:
        lines[line] = f"{lines[line].partition('=')[0]} = {value}"
    with contextlib.suppress(UserError):
        study = parse_study("\n".join(lines).encode(), "x.toml")
        expand(layers(study, "quick", {}), H200, {}, None)


@pytest.mark.parametrize(
    ("text", "number"), [("150 s", 150), ("20m", 1200), ("1h", 3600), ("9", 9)]
)
def test_times_of_a_budget(text: str, number: float) -> None:
    assert seconds(text) == number


def test_reading_and_expanding_a_study_loads_no_torch() -> None:
    code = (
        "import sys; from e2e.studies.command import machine_of; from e2e.studies.schema import *;"
        "from e2e.studies.budget import *; from e2e.studies.expand import *;"
        "s = read_study('wrn-levels');"
        "scaled(layers(s, 'full', {}), 60, machine_of('cpu'), {}, None);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# ---------------------------------------------------------------- expansion


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
@pytest.mark.parametrize("profile", ["full", "quick", "smoke"])
def test_every_profile_expands_to_tasks_that_run(study: Study, profile: str) -> None:
    plan = expand(layers(study, profile, {}), H200, {}, None)
    assert any(not task.skipped for task in plan.tasks)
    assert len({task.id for task in plan.tasks}) == len(plan.tasks)
    for task in plan.tasks:
        assert task.arms("cuda")
        assert task.skipped or task.file.startswith(task.part)


def test_lists_are_crossed_and_recipes_and_batches_are_arms_of_one_task() -> None:
    plan = expand(layers(small(), "quick", {}), H200, {}, None)
    assert [task.words["lr"] for task in plan.tasks] == [0.1, 0.2]
    assert [(a.token, a.batch) for a in plan.tasks[0].arms("cuda")] == [
        ("fp32", 8), ("amp", 8), ("fp32", 16), ("amp", 16),
    ]  # fmt: skip


def test_amp_on_a_cpu_is_called_what_it_is() -> None:
    plan = expand(layers(small(), "quick", {}), Machine("cpu", 2), {}, None)
    assert {arm.token for task in plan.tasks for arm in task.arms("cpu")} == {"fp32", "amp-bf16"}


def test_a_rate_by_the_batch_grows_with_it() -> None:
    study = small(**{"lr = [0.1, 0.2]": "lr = { value = 0.1, per = 8 }"})
    plan = expand(layers(study, "quick", {}), H200, {}, None)
    assert [(task.batches, task.words["lr"]) for task in plan.tasks] == [((8,), 0.1), ((16,), 0.2)]


@pytest.mark.parametrize(
    ("part", "rates", "kind"),
    [("weak", [0.00125, 0.0025, 0.005], "weak"), ("strong", [0.005, 0.005, 0.005], "strong")],
)
def test_a_rate_is_of_the_batch_of_all_gpus_which_scale_as_the_part_says(
    part: str, rates: list[float], kind: str
) -> None:
    study = next(one for one in STUDIES if one.name == "finetune-multigpu")
    sets = {"networks": ["resnet50"], "recipes": ["amp"], "compress": ["none"]}
    laid = layers(study, "full", sets | ({"batch": [16]} if part == "weak" else {}))
    parts = [one for one in laid if one.id == part]
    tasks = expand(parts, replace(H200, gpus=4), {}, None).tasks
    cells = [
        Cell(f"{part}-{i}", part, task.measure, task.named, "ok", training=trained(task))
        for i, task in enumerate(tasks)
    ]
    assert [cell.factors["gpus"] for cell in cells] == [1, 2, 4]
    assert [cell.training.case.lr for cell in cells if cell.training] == pytest.approx(rates)
    rows = baselines.scaled([cell.training for cell in cells if cell.training])
    assert [row.kind for row in rows] == [kind, kind]
    for gpus in (2, 4):
        found = answer(parse_test(f"efficiency(part={part}, gpus={gpus}) >= 0.5", ""), cells)
        assert (found.answer, found.value) == (YES, pytest.approx(0.8))


def trained(task: Task) -> Training:
    """A training as the task asks, of which several GPUs have an efficiency of 80 %."""
    gpus, (batch,) = task.named["gpus"], task.batches
    case = TrainCase(task.network, "amp", batch, "3x224x224", gpus=gpus, lr=task.words["lr"])
    step_s = batch / 1000 / (0.8 if gpus > 1 else 1.0)
    ends = (0.99 * step_s, 1.01 * step_s)
    times = StepTimes((step_s,), (step_s,), (1,), step_s, ends, step_s, 1)
    return Training(case, "ok", step_units=batch * gpus, steps=times)


def test_what_the_user_sets_is_over_profile_and_part() -> None:
    parts = layers(small(), "quick", {"lr": 0.5, "epochs": 2})
    (task,) = expand(parts, H200, {}, None).tasks
    assert (task.words["lr"], task.words["epochs"]) == (0.5, 2)
    assert "iterations" not in task.words


def test_more_gpus_than_there_are_are_skipped_with_the_reason() -> None:
    parts = layers(small(), "quick", {"gpus": [1, 2], "lr": 0.1})
    one, two = expand(parts, replace(H200, gpus=1), {}, None).tasks
    assert (one.skipped, two.skipped) == ("", "2 GPUs: this machine has 1")
    *_, two = expand(parts, replace(H200, gpus=2), {}, None).tasks
    assert (two.skipped, two.words["gpus"]) == ("", "2")
    compressed = layers(small(), "quick", {"gpus": [1, 2], "compress": ["none", "bf16"], "lr": 0.1})
    tasks = expand(compressed, replace(H200, gpus=2), {}, None).tasks
    assert [(t.words.get("gpus"), t.words.get("compress")) for t in tasks] == [
        (None, None), ("2", None), ("2", "bf16"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seeds", "words"),
    [([1, 1, 1], (3, 1, True)), ([4, 5], (2, 4, False)), ([7], (1, 7, False))],
)
def test_seeds_repeat_one_or_follow_one_another(
    seeds: list[int], words: tuple[int, int, bool]
) -> None:
    for task in expand(layers(small(), "quick", {"seeds": seeds}), H200, {}, None).tasks:
        assert tuple(task.words[name] for name in ("repeats", "seed", "same_seed")) == words
    for wrong in ([], [1, 3], [2, 2, 3]):
        with pytest.raises(UserError, match="seeds"):
            expand(layers(small(), "quick", {"seeds": wrong}), H200, {}, None)


@pytest.mark.parametrize(("on", "search"), [(True, None), (False, "off")])
def test_the_search_of_cudnn_is_as_usual_or_off(on: bool, search: str | None) -> None:
    for task in expand(layers(small(), "quick", {"cudnn_search": on}), H200, {}, None).tasks:
        assert task.words.get("search") == search


def test_data_are_the_first_that_are_there(tmp_path: Path) -> None:
    study = small(**{'data = ["generated"]': 'data = ["cifar10", "folder:own"]'})
    parts = layers(study, "quick", {})
    none, *_ = expand(parts, H200, {}, None).tasks
    assert none.skipped == "no data: give --data cifar10=DIR, --data own=DIR"
    own, *_ = expand(parts, H200, {"own": tmp_path}, None).tasks
    assert own.words["data"] == f"folder:{tmp_path}"


@pytest.mark.parametrize("name", [name for name, one in FACTORS.items() if one.lacking])
def test_a_factor_that_training_lacks_is_said(name: str) -> None:
    parts = [replace(p, factors={**p.factors, name: 3}) for p in layers(small(), "quick", {})]
    plan = expand(parts, H200, {}, None)
    assert plan.lacking[name] == FACTORS[name].lacking
    assert plan.tasks == expand(layers(small(), "quick", {}), H200, {}, None).tasks


@pytest.mark.parametrize(
    ("token", "found"),
    [("O3", ("O3", False, None, False)), ("O3+bn32+scale256", ("O3", True, 256.0, False)),
     ("O2@dynamic", ("O2", False, None, True)), ("amp-bf16", ("amp-bf16", False, None, False))],
)  # fmt: skip
def test_variants_of_recipes(token: str, found: tuple[Any, ...]) -> None:
    assert parse_recipe(token) == found


# ---------------------------------------------------------------- budgets


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
@given(budget_s=st.floats(1, 20_000), profile=st.sampled_from(["full", "quick"]))
def test_cuts_are_listed_and_spare_precision_and_ends(
    study: Study, budget_s: float, profile: str
) -> None:
    parts = layers(study, profile, {})
    whole = expand(parts, H200, {}, None)
    plan = scaled(parts, budget_s, H200, {}, None)
    assert estimate_s(plan, H200) <= estimate_s(whole, H200)
    assert bool(plan.cuts) or plan.tasks == whole.tasks
    if estimate_s(whole, H200) <= budget_s:
        assert not plan.cuts
    for part in parts:
        of = [task for task in plan.tasks if task.part == part.id]
        assert {t for task in of for t in task.recipes} == set(listed(part.factors["recipes"]))
        batches = [int(b) for b in listed(part.factors.get("batch"))]
        if batches:
            left = [b for task in of for b in task.batches]
            assert {batches[0], batches[-1]} <= set(left)
    assert {cut.factor for cut in plan.cuts} <= {
        "repeats", "iterations", "epochs", "measured_epochs", "workers", "batch", "networks",
    }  # fmt: skip


def test_epochs_that_are_projected_are_not_cut() -> None:
    (study,) = (study for study in STUDIES if study.name == "resnet-precisions")
    plan = scaled(layers(study, "quick", {}), 1e-9, H200, {}, None)
    assert "epochs" not in {cut.factor for cut in plan.cuts}
    assert {task.projected for task in plan.tasks if task.part == "table"} == {600.0}


def test_repeats_go_before_iterations() -> None:
    parts = layers(small(), "quick", {})
    whole_s = estimate_s(expand(parts, H200, {}, None), H200)
    cuts = scaled(parts, whole_s - 0.1, H200, {}, None).cuts
    assert [(cut.factor, cut.asked, cut.done) for cut in cuts] == [("repeats", "4", "2")]
    least = scaled(parts, 1e-9, H200, {}, None).cuts
    assert {cut.factor: cut.done for cut in least} == {"repeats": "1", "iterations": "20"}


# ---------------------------------------------------------------- claims


def cell(recipe: str, **values: Any) -> Cell:
    return Cell(f"p-{recipe}", "p", ("train",), {"recipe": recipe, "batch": 8}, "ok", "", values)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("speed(part=p) >= 1", "did you mean speedup"),
        ("speedup(part=p) > 1", "is not FUNC"),
        ("__import__('os').system('x') >= 1", "is not FUNC"),
        ("speedup(part) >= 1", "write NAME=VALUE"),
        ("speedup(recpie=O2) >= 1", "test has no 'recpie'; did you mean recipe?"),
        ("speedup(part=p) >= 1.2.3", "is no number"),
    ],
)
def test_a_test_that_cannot_be_read_is_one_line(text: str, says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        parse_test(text, "claim")


def test_answers_of_a_column_that_is_exact() -> None:
    cells = [cell("O0", allocated_mb=100.0), cell("O2", allocated_mb=60.0)]
    ask = "ratio(part=p, recipe=O2, to=O0, column=allocated_mb)"
    assert answer(parse_test(f"{ask} <= 0.9", ""), cells).answer == YES
    assert answer(parse_test(f"{ask} >= 0.9", ""), cells).answer == NO
    assert answer(parse_test(f"{ask} <= 0.9", ""), cells).cell == "p-O2"


def test_one_reading_cannot_tell() -> None:
    cells = [cell("O0", mean_loss=5.0), cell("O2", mean_loss=6.0)]
    found = answer(parse_test("difference(recipe=O2, to=O0, column=mean_loss) >= 0.1", ""), cells)
    assert (found.answer, found.value) == (UNKNOWN, 1.0)


@pytest.mark.parametrize(("learnt", "says"), [(False, UNKNOWN), (True, YES)])
def test_accuracies_of_trainings_that_learnt_nothing_settle_nothing(
    learnt: bool, says: str
) -> None:
    def trained(recipe: str) -> Cell:
        repeats = tuple(
            Repeat(seed=seed, steps=30, train_s=1.0, first_loss=2.3, train_loss=2.3, loss=2.3,
                   accuracy=0.1, skipped_steps=0) for seed in (1, 2)
        )  # fmt: skip
        training = Training(
            TrainCase("cnn-cifar", recipe, 8, "3x32x32", "nchw", "sgd"), "ok", repeats=repeats,
            converged=learnt, convergence=None if learnt else "accuracy as by guessing",
        )  # fmt: skip
        return replace(cell(recipe, accuracy_pct=10.0), training=training)

    test = parse_test("difference(recipe=O2, to=O0, column=accuracy_pct) <= 5", "")
    assert answer(test, [trained("O0"), trained("O2")]).answer == says


def test_a_cell_that_is_not_there_is_not_testable_with_the_reason() -> None:
    skipped = Cell(
        "p-1", "p", ("speed",), {"recipe": "amp"}, "not testable here", "no Tensor Cores"
    )
    found = answer(parse_test("speedup(recipe=amp) >= 1", ""), [skipped])
    assert (found.answer, found.reason) == (UNTESTABLE, "no Tensor Cores")
    assert answer(parse_test("speedup(recipe=O9) >= 1", ""), [skipped]).answer == UNTESTABLE


# ---------------------------------------------------------------- of runs on an H200


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Judged]]:
    """A folder of wrn-levels whose run files are published ones, and its verdicts."""
    out = tmp_path_factory.mktemp("recorded") / "out"
    text = (ROOT / "e2e/studies/files/wrn-levels.toml").read_text(encoding="utf-8")
    text = text.replace("wrn-16-4@dropout=0.3", "wrn-16-4")
    text = re.sub(r"(?m)^(lr|clip|schedule) = .*$", "", text)  # those runs have none of them
    study = parse_study(text.encode(), "wrn-levels")
    machine = {"kind": "cuda", "cores": 16, "gpus": 1}
    state = State(study.name, study.sha256, "quick", 1e9, {}, (), machine)
    begun(out, state, text.encode())
    for part, name in (("levels", "wrn-generated"), ("two-cores", "stalls-two-cpus")):
        shutil.copy(ROOT / f"results/nvidia-h200/{name}.json", out / RUNS / f"{part}.json")
    plan = expand(layers(study, "quick", {}), Machine(**machine), {}, None)
    return out, judged(study, cells_of(plan, out / RUNS, {}, "cuda"))


def test_verdicts_on_runs_of_an_h200_are_by_their_intervals(
    recorded: tuple[Path, list[Judged]],
) -> None:
    """wrn-16-4: O2 1.70 times as fast, with an interval of 1.51 to 1.95, at 0.40 of the memory."""
    _, found = recorded
    verdicts = {one.claim.id: one.verdict for one in found}
    assert verdicts == {
        "C1-speed": "cannot tell", "C1-memory": "confirmed", "O3": "not testable here",
        "two-cpus": "cannot tell",
    }  # fmt: skip
    speed = found[0].answer
    assert speed.value == pytest.approx(1.702, abs=1e-3)
    assert speed.interval
    assert speed.interval[0] < 1.8 < speed.interval[1]


def test_the_report_of_recorded_runs_has_the_authors_rows_and_ours(
    recorded: tuple[Path, list[Judged]],
) -> None:
    out, _ = recorded
    assert report(out, make_console(quiet=True)) == 6
    text = (out / "report.md").read_text(encoding="utf-8")
    assert "| O1 | T4 | 31min 14s | 4433 MB | 85.25% | 1.834 | published |" in text
    assert re.search(r"\| O1 \| here \| .* \| 1\.670 ±0\.284 \| levels-2 \|", text)
    assert "Bottleneck data loading: two-cores-1, O0; two-cores-2, O2." in text
