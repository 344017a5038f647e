"""`python -m e2e study`, one study from end to end on a CPU: its run, files, reports, resuming."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from samples.commands import Ran, run_here

from e2e.__main__ import main
from e2e.studies.schema import shipped

MINE = """
schema = 1
name = "mine"
title = "A study of my own"
[defaults]
data = ["generated"]
networks = ["cnn-cifar"]
device = "cpu"
timing_s = 0.1
[[part]]
id = "train"
recipes = ["fp32", "amp-bf16"]
batch = [8]
iterations = 3
held_out = 64
repeats = 2
warmup = [0, 100]
measure = ["speed", "train"]
[[part]]
id = "broken"
networks = ["no-such-network"]
recipes = ["fp32"]
batch = [8]
measure = ["speed"]
[[part]]
id = "load"
loader = "torchvision"
workers = [1]
batch = [8]
measure = ["loader-alone"]
[profile.quick]
about = "a minute"
[[table]]
id = "t"
title = "Mine"
published = "p"
parts = ["train"]
rows = ["recipe", "card"]
columns = { accuracy_pct = "Accuracy", per_s = "img/s" }
ratio = "per_s"
[[published]]
table = "p"
key = ["recipe", "card"]
machine = "card"
columns = ["accuracy_pct", "per_s"]
comparable = { accuracy_pct = "with cifar10", per_s = "ratios" }
rows = [["fp32", "<b>theirs</b>", "50.1%", 100], ["amp-bf16", "<b>theirs</b>", "50.2%", 200]]
"""


def study(*words: object, cwd: Path) -> Ran:
    return run_here(main, "e2e", "study", *words, cwd=cwd, COLUMNS="100", OMP_NUM_THREADS="1")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    folder = tmp_path_factory.mktemp("studies")
    (folder / "mine.toml").write_text(MINE)
    return study("mine.toml", "--out", "out", cwd=folder), folder / "out"


def cells(out: Path) -> list[dict[str, str]]:
    with (out / "cells.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_study_of_ones_own_runs_and_one_broken_part_is_a_row(ran: tuple[Ran, Path]) -> None:
    done, out = ran
    assert (done.returncode, done.stderr) == (0, "")
    found = cells(out)
    assert [(row["cell"], row["status"]) for row in found] == [
        *((f"train-{number}", "ok") for number in range(1, 5)), ("broken-1", "not run"),
        ("load-1", "ok"),
    ]  # fmt: skip
    assert "no-such-network" in found[4]["reason"]
    assert all(
        float(row.get("img/s") or row["per_s"]) > 0 for row in found if row["status"] == "ok"
    )
    assert "runs/load.json" in {str(path.relative_to(out)) for path in (out / "runs").iterdir()}


def test_each_cell_has_its_own_training(ran: tuple[Ran, Path]) -> None:
    results: dict[tuple[str, int], dict[str, Any]] = {}
    for path in (ran[1] / "runs").glob("train*.json"):
        run = json.loads(path.read_text())
        assert "--out" not in run["command"]
        for one in run["results"]:
            case = one["case"]
            results[case["recipe"], case.get("warmup", 0)] = one
    assert len(results) == 4
    shown = [row for row in cells(ran[1]) if row["cell"].startswith("train")]
    keys = [(row["recipe"], int(row["warmup"])) for row in shown]
    losses = [fmean(one["last_loss"] for one in results[key]["repeats"]) for key in keys]
    assert [float(row["last_loss"]) for row in shown] == pytest.approx(losses)
    assert len(set(keys)) == 4
    assert losses[0] != losses[2]


def test_the_page_is_escaped_and_loads_nothing(ran: tuple[Ran, Path]) -> None:
    text = (ran[1] / "report.html").read_text()
    assert "&lt;b&gt;theirs" in text
    assert "<b>" not in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_the_report_is_made_again_from_the_run_files_and_nothing_is_measured_again(
    ran: tuple[Ran, Path],
) -> None:
    _, out = ran
    names = ("report.html", "report.md", "cells.csv")
    before = {name: (out / name).read_text() for name in names}
    runs = {path.name: path.read_bytes() for path in (out / "runs").iterdir()}
    for name in names:
        (out / name).unlink()
    done = study("report", out.name, cwd=out.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert {name: (out / name).read_text() for name in names} == before
    assert study("mine.toml", "--out", "out", cwd=out.parent).returncode == 0
    assert {path.name: path.read_bytes() for path in (out / "runs").iterdir()} == runs


def test_a_folder_of_another_study_is_left_alone(ran: tuple[Ran, Path]) -> None:
    done = study("mine.toml", "--out", "out", "--set", "repeats=1", cwd=ran[1].parent)
    assert done.returncode == 2
    assert "with sets {}, not {'repeats': 1}" in done.stderr


def test_those_shipped_are_listed_and_said_without_writing_anything(tmp_path: Path) -> None:
    listed = study("list", cwd=tmp_path).stdout
    for name in shipped():
        assert name in listed
        for profile in ("full", "quick", "smoke"):
            done = study(name, "--profile", profile, "--dry-run", cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, "")
            assert "Nothing was run." in done.stdout
        assert study("show", name, cwd=tmp_path).returncode == 0
    assert not list(tmp_path.iterdir())
