"""`python -m e2e study`, one study from end to end on a CPU: its run, files, reports, resuming."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from samples.commands import Ran, run_here

from e2e.__main__ import main
from e2e.studies.schema import shipped

MINE = """
schema = 2
name = "mine"
title = "A study of my own"
[options]
data = "generated"
device = "cpu"
budget = 0.1
batch = 8
[[run]]
id = "train"
network = "cnn-cifar"
recipe = "fp32,amp-bf16"
iterations = 3
held_out = 64
repeats = 2
[[run]]
id = "warm"
network = "cnn-cifar"
recipe = "fp32,amp-bf16"
iterations = 3
held_out = 64
repeats = 2
loader = "torchvision"
workers = 1
warmup = 100
[[run]]
id = "broken"
network = "no-such-network"
recipe = "fp32"
[[run]]
id = "load"
command = "loader"
backend = "torchvision"
workers = 1
[[published]]
title = "Mine"
runs = ["train"]
keys = { recipe = "recipe", card = "here" }
columns = [
  { title = "Accuracy", value = "accuracy_pct", reason = "other data" },
  { title = "img/s", value = "per_s" },
]
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


def test_a_study_of_ones_own_runs_and_one_broken_run_is_said(ran: tuple[Ran, Path]) -> None:
    done, out = ran
    assert (done.returncode, done.stderr) == (0, "")
    found = cells(out)
    assert [row["cell"] for row in found if row["recipe"]] == [
        "train-1", "train-2", "warm-1", "warm-2",
    ]  # fmt: skip
    assert [(row["cell"], row["status"]) for row in found if not row["key"]] == [
        ("broken", "not run"),
    ]  # fmt: skip
    assert all(float(row["per_s"]) > 0 for row in found if row["key"])
    assert any(row["key"].startswith("load/") for row in found if row["cell"].startswith("load"))
    for path in (out / "runs").iterdir():
        assert not {"--out", "--json"} & set(json.loads(path.read_text())["command"])
    assert "no-such-network" in (out / "report.md").read_text().partition("## Not measured")[2]
    # The page is escaped and loads nothing.
    text = (out / "report.html").read_text()
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
    done = study("mine.toml", "--out", "out", "--set", "repeats=1", cwd=out.parent)
    assert done.returncode == 2
    assert "out holds mine, profile full, with other options" in done.stderr


def test_a_study_that_was_killed_measures_what_is_missing_alone(ran: tuple[Ran, Path]) -> None:
    _, out = ran
    path, kept = out / "runs/warm.json", json.loads((out / "study.json").read_text())
    run = json.loads(path.read_text())
    whole = run["results"]
    lost = [one for one in whole if one["case"].get("recipe") != "fp32"]
    path.write_text(json.dumps({**run, "results": lost, "finished_at": None}))
    (warm,) = (one for one in kept["run"] if one["id"] == "warm")
    warm["done"] = False
    (out / "study.json").write_text(json.dumps(kept))
    assert study("mine.toml", "--out", "out", cwd=out.parent).returncode == 0
    after = json.loads(path.read_text())["results"]
    assert {json.dumps(one["case"]) for one in after} == {json.dumps(one["case"]) for one in whole}
    loads = [one for one in lost if "recipe" not in one["case"]]
    assert [one for one in after if one in loads] == loads
    assert {row["cell"] for row in cells(out)} >= {"warm-1", "warm-2", "train-1"}


def test_those_shipped_are_listed_and_said_without_writing_anything(tmp_path: Path) -> None:
    listed = study("list", cwd=tmp_path).stdout
    for name in shipped():
        assert name in listed
        for profile in ("full", "short", "smoke"):
            done = study("show", name, "--profile", profile, cwd=tmp_path)
            assert (done.returncode, done.stderr) == (0, "")
            assert "Nothing was run." in done.stdout
    assert not list(tmp_path.iterdir())
