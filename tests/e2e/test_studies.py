"""Studies: their files, the published numbers, expansion, a report."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.studies.command import report
from e2e.studies.expand import expand, layers
from e2e.studies.schema import parse_study, read_study, shipped
from e2e.studies.tables import number_of
from e2e.studies.tasks import Machine, parse_recipe
from e2e.studies.types import Study
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
about = "an hour"
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
        assert study.published
        for profile in study.profiles:
            plan = expand(layers(study, profile, {}), H200, {}, None)
            assert any(not task.skipped for task in plan.tasks)
            assert len({task.id for task in plan.tasks}) == len(plan.tasks)
            assert all(task.arms("cuda") for task in plan.tasks)


def in_text(seed: str, published: Any, record: Any) -> bool:
    """Whether one row of the author's table has the record's words, in order."""
    rows = SEEDS[seed]
    if published.table == "main":  # a metric a row, a batch a column
        place = (128, 256, 512, 1024, 2048).index(record["batch"])
        named = f"{record['card']} - {record['method']} | "
        cells = [row.split(" | ")[2 + place] for row in rows if row.startswith(named)]
        return cells == [record[name] for name in ("accuracy_pct", "iterations_s", "memory_mb")]
    texts = [str(record[column]) for column in published.columns if record[column] != ""]
    keys = [str(record[key]) for key in published.key]
    if "stack" in published.key:  # the stacks are columns, but in the lines of the ranges
        keys = [f"{record['network']}-{record['recipe']}"]
    if published.table == "kaggle":
        keys = [record["recipe"]]  # its card is in the text alone
    pattern = ".*".join(re.escape(word) for word in (*keys, *texts))
    return any(re.search(pattern, row) for row in rows)


def test_published_numbers_are_those_of_the_texts() -> None:
    records = [(s.seed, one, r) for s in STUDIES for one in s.published for r in one.records()]
    assert [record for record in records if not in_text(*record)] == []
    found = {study.seed: sum(len(one.rows) for one in study.published) for study in STUDIES}
    rows = {seed: len(lines) for seed, lines in SEEDS.items()}
    assert found["002_57fa2bc8f75b279e.txt"] == rows["002_57fa2bc8f75b279e.txt"] == 42
    assert found["003_19fad38897715ce6.txt"] == rows["003_19fad38897715ce6.txt"] == 8
    assert found["001_2fa5950b8c0c6afe.txt"] * 3 == 5 * rows["001_2fa5950b8c0c6afe.txt"] == 135


def test_the_number_of_a_published_cell() -> None:
    for text, number in (
        ("57min 17s", 3437), ("1h 43min 7s", 6187), ("7657 MB", 7657), ("40.92 ± 2.08", 40.92),
        ("0.835+-0.006", 0.835), ("Not Converged.", None), ("", None), (192, 192),
    ):  # fmt: skip
        assert number_of(text) == number


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("repeats = 4", "repaets = 4", "mine.toml: part one: unknown 'repaets'; did you mean "
                                       "repeats"),
        ("schema = 1", "schema = 9", "schema is 9; this version reads 1"),
        ("batch = [8, 16]", 'batch = ["8"]', "batch cannot be '8': it takes samples of a batch"),
        ("repeats = 4", "repeats = -1", "repeats cannot be -1"),
        ("[[part]]", "[part]", "part is written [[part]]"),
        ('about = "an hour"', 'parts = ["two"]', "profile.quick: part: unknown 'two'"),
        ("schema = 1", "schema = ", "mine.toml is no TOML"),
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


# ---------------------------------------------------------------- expansion


def test_lists_are_crossed_and_recipes_and_batches_are_arms_of_one_task() -> None:
    plan = expand(layers(small(), "quick", {}), H200, {}, None)
    assert [task.words["lr"] for task in plan.tasks] == [0.1, 0.2]
    assert [(a.token, a.batch) for a in plan.tasks[0].arms("cuda")] == [
        ("fp32", 8), ("amp", 8), ("fp32", 16), ("amp", 16),
    ]  # fmt: skip
    plan = expand(layers(small(), "quick", {}), Machine("cpu", 2), {}, None)
    assert {arm.token for task in plan.tasks for arm in task.arms("cpu")} == {"fp32", "amp-bf16"}


def test_a_rate_by_the_batch_grows_with_it() -> None:
    study = small(**{"lr = [0.1, 0.2]": "lr = { value = 0.1, per = 8 }"})
    plan = expand(layers(study, "quick", {}), H200, {}, None)
    assert [(task.batches, task.words["lr"]) for task in plan.tasks] == [((8,), 0.1), ((16,), 0.2)]


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


def test_data_are_the_first_that_are_there(tmp_path: Path) -> None:
    study = small(**{'data = ["generated"]': 'data = ["cifar10", "folder:own"]'})
    parts = layers(study, "quick", {})
    none, *_ = expand(parts, H200, {}, None).tasks
    assert none.skipped == "no data: give --data cifar10=DIR, --data own=DIR"
    own, *_ = expand(parts, H200, {"own": tmp_path}, None).tasks
    assert own.words["data"] == f"folder:{tmp_path}"


def test_words_of_recipes() -> None:
    assert parse_recipe("O3+bn32+scale256") == ("O3", True, 256.0, False)
    assert parse_recipe("O2@dynamic") == ("O2", False, None, True)
    assert parse_recipe("amp-bf16") == ("amp-bf16", False, None, False)


# ---------------------------------------------------------------- older files


def test_what_older_files_have_is_named_and_not_read() -> None:
    text = SMALL.replace("about = ", "budget = ")
    text += '[[claim]]\nid = "c"\ntext = "it pays"\ntest = "speedup(recipe=amp) >= 2"\n'
    study = parse_study(text.encode(), "mine.toml")
    assert study.retired == ("claim", "budget")
    assert replace(study, retired=(), sha256="") == replace(
        small(**{'about = "an hour"': ""}), sha256=""
    )


def test_cells_of_a_folder_without_keys_say_so_and_guess_nothing(tmp_path: Path) -> None:
    """Versions before the keys guessed which training a cell is from a list of its fields."""
    (folder,) = ROOT.glob("results/*/studies/wrn-levels")
    out = tmp_path / "old"
    shutil.copytree(folder, out)
    state = json.loads((out / "study.json").read_text(encoding="utf-8"))
    assert "budget_s" in state
    del state["cells"]["two-cores/1"]
    (out / "study.json").write_text(json.dumps(state), encoding="utf-8")
    assert report(out, make_console(quiet=True)) == 4
    text = (out / "report.md").read_text(encoding="utf-8")
    assert "not run: measured by an older version" in text
    assert "two-cores-1, two-cores-2." in text
