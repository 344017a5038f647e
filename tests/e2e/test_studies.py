"""Studies: their files, the published numbers, what a run asks, cells, intervals, a report."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from samples.training_runs import repeats, run_of, variant

from e2e.__main__ import app
from e2e.studies.cells import COLUMNS, half_interval
from e2e.studies.report import cells_of, report
from e2e.studies.run import planned, read_folder
from e2e.studies.schema import Study, parse_study, read_study, shipped
from microbench.errors import UserError
from microbench.report.screen import make_console
from microbench.results.runfile import write_run

STUDIES = [read_study(name) for name in shipped()]
SMALL = """
schema = 2
name = "mine"
[options]
data = "generated"
recipe = "fp32,amp"
[[run]]
id = "one"
network = "cnn-cifar"
workers = 1
iterations = 40
repeats = 4
[[run]]
id = "two"
network = "cnn-cifar"
workers = 4
warmup = 100
gpus = "1,2"
compress = "none,bf16"
[[published]]
title = "theirs"
runs = ["one"]
keys = { precision = "recipe" }
columns = [{ title = "img/s", value = "per_s" }]
rows = [["fp32", 100], ["amp", 250]]
"""


def small(**changes: str) -> Study:
    text = SMALL
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return parse_study(text.encode(), "mine.toml")


def plan(study: Study, profile: str = "full", gpus: int = 1, **sets: str) -> Study:
    return planned(study, profile, sets, gpus, app.commands)


def options(study: Study, **sets: str) -> list[dict[str, Any]]:
    return [run.options for run in plan(study, "full", 1, **sets).run]


# ---------------------------------------------------------------- published numbers


def test_the_five_studies_are_there_and_their_runs_are_commands() -> None:
    assert shipped() == [
        "finetune-multigpu", "resnet-precisions", "resnet-static256", "vgg16-batch", "wrn-levels",
    ]  # fmt: skip
    for study in STUDIES:
        assert study.profile_names == list(study.profiles) == ["full", "short", "smoke"]
        assert study.published
        for profile in study.profiles:
            assert any(not run.why for run in plan(study, profile).run)


def records_of(published: Any) -> list[dict[str, Any]]:
    names = [*published.keys, *(column.value for column in published.columns)]
    return [dict(zip(names, row, strict=True)) for row in published.rows]


def seconds_of(text: str) -> float:
    """Of "57min 17s", "1h 43min 7s" or "5.16 ± 0.73"."""
    parts = re.findall(r"([\d.]+)(h|min|s)", text)
    if not parts:
        return float(text.split()[0])
    return sum(float(number) * {"h": 3600, "min": 60, "s": 1}[unit] for number, unit in parts)


def test_a_published_speedup_is_the_quotient_of_published_numbers() -> None:
    """Of each machine, to its float32; no row that has both numbers lacks its quotient."""
    quotients = 0
    for study in STUDIES:
        for one in study.published:
            column = next((c.value for c in one.columns if c.value in
                           ("iterations_s", "hundred_s", "per_s")), "")  # fmt: skip
            (recipe,) = [key for key, field in one.keys.items() if field == "recipe"] or [""]
            for record in records_of(one):
                if "speedup" not in record:
                    continue
                alike = [other for other in records_of(one) if all(
                    other[key] == record[key] for key in one.keys if key != recipe
                )]  # fmt: skip
                (base,) = [o for o in alike if o[recipe] in ("FP32", "O0", "32")]
                if record is not base and base != record and record[column] != "N/A":
                    own, of = (seconds_of(str(row[column])) for row in (record, base))
                    quotient = own / of if column == "per_s" else of / own
                    assert record["speedup"] == f"{quotient:.3f}"
                    quotients += 1
                else:
                    assert record["speedup"] == ""
    assert quotients == 4 + 30 + 4


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("repeats = 4", "repaets = 4", "run one: no option 'repaets'; did you mean repeats"),
        ("schema = 2", "schema = 1", "mine.toml: schema is 1; this version reads 2"),
        ("workers = 1", 'workers = "few"', "run one: Invalid value for '--workers'"),
        ("[[run]]", "[run]", "mine.toml"),
        ("warmup = 100", "done = true", "run two: no option 'done'"),
        ('network = "cnn-cifar"', "", "run one has no network"),
        ('id = "two"', 'id = "one"', "profile full has several runs one"),
        ('runs = ["one"]', 'runs = ["on"]', "published theirs: unknown run 'on'; did you mean one"),
        ('title = "theirs"', 'tilte = "theirs"', "unknown field `tilte` - at `$.published[0]`"),
        ('["amp", 250]', '["amp"]', "a row has 1 values"),
        ("100], [\"amp\", 250", '"-"], ["amp", "-"', "a template, and only that, has no numbers"),
        ("schema = 2", "schema = ", "mine.toml is no TOML"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_file_is_one_line(old: str, new: str, says: str) -> None:
    with pytest.raises(UserError) as error:
        options(small(**{old: new}))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@given(st.binary(max_size=200))
def test_no_bytes_are_a_study_nor_a_traceback(content: bytes) -> None:
    with pytest.raises(UserError):
        parse_study(content, "x.toml")


# ---------------------------------------------------------------- what a run asks


def test_what_the_user_sets_is_for_the_commands_that_take_it(tmp_path: Path) -> None:
    one, two = options(small(), iterations="2", recipe="bf16", data=f"folder:{tmp_path}")
    assert (one["iterations"], one["recipe"], one["data"]) == ("2", "bf16", f"folder:{tmp_path}")
    assert "iterations" not in two
    own, _ = options(small(**{"workers = 1": 'data = "synthetic"'}), data=f"folder:{tmp_path}")
    assert own["data"] == "synthetic"  # a run that names its own data is about them
    assert plan(small(), network="vgg16-cifar,cnn-cifar").run[0].networks == (
        "vgg16-cifar", "cnn-cifar",
    )  # fmt: skip
    study = small(
        **{
            '[[run]]\nid = "one"\nnetwork = "cnn-cifar"\nworkers = 1\niterations = 40\n'
            "repeats = 4": '[[run]]\nid = "one"\ncommand = "loader"\nworkers = "1,2"'
        }
    )
    loader, train = plan(study, network="vgg16-cifar").run
    assert loader.options == {"data": "generated", "workers": "1,2"}
    assert (loader.networks, train.networks) == ((None,), ("vgg16-cifar",))


def test_gpus_are_those_that_there_are() -> None:
    one, two = (plan(small(), gpus=count) for count in (1, 2))
    assert one.run[1].options["gpus"] == "1"
    assert one.differences == ("Run two: not over 2 GPUs: this machine has 1.",)
    assert "compress" not in one.run[1].options  # one GPU exchanges nothing
    assert two.run[1].options["gpus"] == "1,2"
    assert (two.run[1].options["compress"], two.differences) == ("none,bf16", ())
    study = small(**{'gpus = "1,2"': "gpus = 2"})
    assert plan(study).run[1].why.endswith("this machine has 1")


# ---------------------------------------------------------------- cells


def folder(out: Path, text: str, **runs: Sequence[Any]) -> list[dict[str, str]]:
    """The cells of a folder in which these runs have been measured."""
    (out / "runs").mkdir()
    study = plan(parse_study(text.encode(), "mine.toml"))
    done = [replace(run, done=run.id in runs) for run in study.run]
    (out / "study.json").write_bytes(msgspec.json.encode(replace(study, run=tuple(done))))
    for name, trainings in runs.items():
        write_run(run_of(*trainings), out / f"runs/{name}.json")
    report(out, make_console(quiet=True))
    with (out / "cells.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_cells_that_differ_in_workers_alone_have_each_its_figures(tmp_path: Path) -> None:
    """In one run and across runs: a cell is the result under its case's key, nothing is guessed."""
    cases = [{"workers": count, "warmup": steps} for count in (1, 4) for steps in (0, 100)]
    one = [variant("fp32", 100.0 * i, case=case) for i, case in enumerate(cases[:3], 1)]
    found = folder(tmp_path, SMALL, one=one, two=[variant("fp32", 400.0, case=cases[3])])
    assert [(row["cell"], row["workers"], row["warmup"]) for row in found] == [
        ("one-1", "1", "0"), ("one-2", "1", "100"), ("one-3", "4", "0"), ("two-1", "4", "100"),
    ]  # fmt: skip
    assert [float(row["per_s"]) for row in found] == pytest.approx([100, 200, 300, 400])
    assert [row["key"] for row in found[:3]] == [training.case.key for training in one]
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert re.findall(r"\| fp32 \| (\d+) \| one-\d, ([^|]+) \|", text) == [
        ("100", "1 worker"), ("200", "1 worker, warmup 100"), ("300", "4 workers"),
    ]  # fmt: skip


def test_a_cell_without_values_says_why_in_place_of_them(tmp_path: Path) -> None:
    lost = variant("amp", 250.0, status="skipped", reason="out of memory", steps=None)
    folder(tmp_path, SMALL.replace('value = "per_s"', 'value = "per_s", unit = " img/s"'),
           one=[variant("fp32", 100.0), lost])  # fmt: skip
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "| fp32 | 100 img/s | one-1 |" in text
    assert "| amp | skipped | one-2 |" in text
    assert "one-2: out of memory." in text


def test_what_is_projected_is_by_the_epochs_that_were_run(tmp_path: Path) -> None:
    """Not by those of the file, which the user may have replaced."""
    text = SMALL.replace("repeats = 4", "of_epochs = 600").replace("iterations = 40", "epochs = 3")
    done = variant("fp32", 100.0, repeats=repeats(0.6, 1.0, 9.0, count=1))
    run = run_of(done, settings={"training": {"epochs": 2}})
    folder(tmp_path, text, one=[])
    write_run(run, tmp_path / "runs/one.json")
    (cell,) = cells_of(read_folder(tmp_path), tmp_path)[:1]
    assert (cell.value("epochs"), cell.value("projected_s")) == (2, pytest.approx(9.0 * 300))


def test_a_template_is_called_that_and_is_no_cells(tmp_path: Path) -> None:
    blank = SMALL.replace("100], [", '"-"], [').replace("250", '"-"')
    text = blank.replace('title = "theirs"', 'title = "theirs"\ntemplate = true')
    folder(tmp_path, text, one=[variant("fp32", 100.0)])
    report = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "The published table is a template without numbers." in report
    assert "| published |" not in report
    assert "| fp32 | 100 | one-1 |" in report
    assert "two: not run: not run yet." in report


# ---------------------------------------------------------------- intervals of repeats


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_interval_of_a_few_repeats_holds_the_truth_in_95_of_100_studies(count: int) -> None:
    draws = np.random.default_rng(count).normal(3.0, 0.7, (4000, count))
    holds = [abs(np.mean(values) - 3.0) <= (half_interval(values) or 0) for values in draws]
    assert np.mean(holds) == pytest.approx(0.95, abs=0.015)  # twice its own deviation, and half
    assert half_interval([3.0]) is None


def test_of_repeats_that_diverged_there_is_no_mean() -> None:
    training = variant("amp", 100.0, repeats=repeats(0.6, 1.0, 9.0, count=2))
    lost = variant("amp", 100.0, repeats=(*training.repeats, *repeats(0.1, float("nan"), 9.0, 1)))
    values = {name: [COLUMNS[name](one) for one in (training, lost)]
              for name in ("accuracy_pct", "accuracy_pct_ci95", "losses")}  # fmt: skip
    assert values["accuracy_pct"] == pytest.approx([59.9, 43.3], abs=0.1)
    # Student's t of one and of two degrees of freedom, times deviations over roots of 2 and 3.
    halves = [12.706 * 0.1, 4.303 * 16.63]
    assert values["accuracy_pct_ci95"] == pytest.approx(halves, rel=0.02)
    assert values["losses"] == [None, None]
