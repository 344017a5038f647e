"""`python -m e2e study`, end to end on a CPU: smoke profiles, resumed runs, reports, mistakes."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from samples.commands import Ran, environment, run_here

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
timing_s = 0.3
[[part]]
id = "train"
recipes = ["fp32", "amp-bf16"]
batch = [8]
iterations = 3
repeats = 2
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
budget = "10m"
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
[[claim]]
id = "never"
text = "a thousand times faster"
test = "speedup(part=train, recipe=amp-bf16) >= 1000"
[[claim]]
id = "elsewhere"
text = "twice as fast on two GPUs"
test = "efficiency(part=train, gpus=2) >= 0.9"
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
        ("train-1", "ok"), ("train-2", "ok"), ("broken-1", "not run"), ("load-1", "ok"),
    ]  # fmt: skip
    assert "no-such-network" in found[2]["reason"]
    assert all(float(row["img/s"] if "img/s" in row else row["per_s"]) > 0
               for row in found if row["status"] == "ok")  # fmt: skip


def test_each_part_has_its_run_file_and_show_reads_it(ran: tuple[Ran, Path]) -> None:
    _, out = ran
    files = sorted(path.name for path in (out / "runs").iterdir())
    assert files == ["load.json", "train.json"]
    run = json.loads((out / "runs/train.json").read_text())
    assert run["finished_at"]
    assert [len(one["repeats"]) for one in run["results"]] == [2, 2]
    assert "--out" not in run["command"]


def test_the_verdicts_follow_from_the_cells(ran: tuple[Ran, Path]) -> None:
    done, _ = ran
    said = done.stdout.splitlines()
    never = said[said.index('"a thousand times faster"') + 1]
    elsewhere = said[said.index('"twice as fast on two GPUs"') + 1]
    assert never.strip().startswith("contradicted")
    assert elsewhere.strip().startswith("not testable here")


class Page(HTMLParser):
    """Which elements stay open, the cells that are grey, and the text."""

    VOID = ("meta", "img", "br", "hr", "link", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faint: list[str] = []
        self.bold = 0
        self._grey = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr" and self.open[-1] == "tr":
            self.open.pop()
        if tag not in self.VOID:
            self.open.append(tag)
        self.bold += tag == "b"
        self._grey = "faint" in (dict(attrs).get("class") or "")

    def handle_endtag(self, tag: str) -> None:
        while tag != "tr" and self.open[-1] == "tr":  # whose end may be left out
            self.open.pop()
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._grey:
            self.faint.append(data)
        self._grey = False


def test_the_page_is_whole_escaped_and_greys_what_cannot_be_compared(
    ran: tuple[Ran, Path],
) -> None:
    _, out = ran
    text = (out / "report.html").read_text()
    page = Page(text)
    assert (page.open, page.bold) == ([], 0)
    assert any(word.endswith("%") for word in page.faint)  # accuracy on generated data
    assert "50.1%" not in page.faint
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_the_report_is_made_again_from_the_run_files(ran: tuple[Ran, Path]) -> None:
    _, out = ran
    names = ("report.html", "report.md", "cells.csv")
    before = {name: (out / name).read_text() for name in names}
    for name in names:
        (out / name).unlink()
    done = study("report", out.name, cwd=out.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert {name: (out / name).read_text() for name in names} == before


def test_the_same_command_measures_nothing_again(ran: tuple[Ran, Path]) -> None:
    _, out = ran
    runs = {path.name: path.read_bytes() for path in (out / "runs").iterdir()}
    done = study("mine.toml", "--out", "out", cwd=out.parent)
    assert done.returncode == 0
    assert {path.name: path.read_bytes() for path in (out / "runs").iterdir()} == runs


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--profile", "quick", "--set", "repeats=1"], "out holds mine with sets {}, not "
                                                       "{'repeats': 1}"),
        (["--budget", "9m"], "budget_s 600.0, not 540.0"),
    ],
)  # fmt: skip
def test_a_folder_of_another_study_is_left_alone(
    ran: tuple[Ran, Path], more: list[str], says: str
) -> None:
    _, out = ran
    done = study("mine.toml", "--out", "out", *more, cwd=out.parent)
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["wrn-level"], "no study 'wrn-level'; did you mean wrn-levels?"),
        (["wrn-levels", "--profile", "fast"], "has no profile 'fast'; it has full, quick, smoke"),
        (["wrn-levels", "--set", "bach=3"], "unknown factor 'bach'; did you mean batch?"),
        (["wrn-levels", "--set", "batch"], "write FACTOR=VALUE"),
        (["wrn-levels", "--set", "batch=many"], "batch cannot be 'many'"),
        (["wrn-levels", "--data", "cifar10=/nowhere"], "no such folder"),
        (["wrn-levels", "--budget", "soon"], "'soon' is no time"),
        (["show"], "study takes list, show NAME"),
        (["report", "."], "holds no study"),
        (["none.toml"], "cannot read none.toml"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], says: str, tmp_path: Path) -> None:
    done = study(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", shipped())
def test_dry_run_says_what_would_run_and_writes_nothing(name: str, tmp_path: Path) -> None:
    for profile in ("full", "quick", "smoke"):
        done = study(name, "--profile", profile, "--dry-run", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "Nothing was run." in done.stdout
    assert study("show", name, cwd=tmp_path).returncode == 0
    assert not list(tmp_path.iterdir())


def test_list_names_the_five(tmp_path: Path) -> None:
    said = study("list", cwd=tmp_path).stdout
    assert all(name in said for name in shipped())


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped())
def test_smoke_profiles_run_and_have_a_report(name: str, tmp_path: Path) -> None:
    done = study(name, "--profile", "smoke", "--device", "cpu", "--out", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = cells(tmp_path / "out")
    assert any(row["status"] == "ok" for row in found)
    assert {row["status"] for row in found} <= {"ok", "not testable here", "skipped"}
    assert Page((tmp_path / "out/report.html").read_text()).open == []


def test_a_study_that_is_killed_goes_on(tmp_path: Path) -> None:
    """It is killed when the first training is on disk; the second run keeps what was measured."""
    text = MINE.replace("iterations = 3", "iterations = 3\nheld_out = 64\nlr = [0.1, 0.2]")
    (tmp_path / "mine.toml").write_text(text)
    command = [sys.executable, "-m", "e2e", "study", "mine.toml", "--out", "out"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(OMP_NUM_THREADS="1"),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    first = tmp_path / "out/runs/train.json"
    until_s = time.monotonic() + 200
    while not first.exists() and time.monotonic() < until_s:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    before: Any = json.loads(first.read_text())
    subprocess.run(command, cwd=tmp_path, env=environment(OMP_NUM_THREADS="1"), check=True)
    after: Any = json.loads(first.read_text())
    assert after["started_at"] == before["started_at"]
    assert [row["status"] for row in cells(tmp_path / "out")] == [
        "ok", "ok", "ok", "ok", "not run", "ok",
    ]  # fmt: skip
