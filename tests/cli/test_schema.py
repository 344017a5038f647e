"""One field is one option: put into a copy of the source, it is found everywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from samples.commands import run_here

from e2e.__main__ import OPTIONS
from e2e.__main__ import main as e2e
from e2e.case import SCHEMAS
from microbench.__main__ import main as microbench
from microbench.command_line import Outputs, options_of
from microbench.conditions import Conditions

ROOT = Path(__file__).resolve().parents[2]
# file -> classes, and the field that each gets
ADDED = {
    "e2e/case.py": (
        (
            "class TrainCase:",
            '    momentum: float = setting(0.9, "Of SGD")\n',
        ),
        (
            "class TrainSettings:",
            '    jitter: float = choice(0.0, "Of gradients", kept=True)\n',
        ),
    ),
    "microbench/conditions.py": (
        (
            "class Conditions:",
            '    rest: float = choice(0.0, "Before a case", kept=True)\n',
        ),
    ),
}
TRAINING = """
import json

from e2e.case import TrainCase, label_of
from e2e.commands.plan import plan
from e2e.commands.requests import request_of
from e2e.commands.train import _begin
from e2e.commands.child import DataFacts
from e2e.networks import find
from e2e.report.run_report import csv
from e2e.results.codec import from_json, to_json
from e2e.results.types import Training
from kernels.case import Target
from microbench.errors import UserError
from microbench.results.types import Run
from microbench.worker import Greeting

def asked(**words):
    return request_of("cnn-cifar", words)

def cases(**words):
    (comparison,) = plan(find("cnn-cifar"), asked(**words).arms, "cpu", None)
    return comparison.cases

usual, other = cases()[0], cases(momentum=0.5)[0]
assert (usual.momentum, other.momentum) == (0.9, 0.5)
assert "momentum=0.5" in other.group and other.key != usual.key
assert [label_of(case, "momentum") for case in (usual, other)] == ["", "momentum 0.5"]
written = json.loads(json.dumps(to_json(Training(other, "ok"))))
assert written["case"]["momentum"] == 0.5 and from_json(written, "x").case == other
del written["case"]["momentum"]
assert from_json(written, "an older file").case.momentum == 0.9
columns, (row,) = csv(Run(("e2e",), "now", {}, {}).with_other(Training(other, "ok")))
assert "momentum" in columns and str(row["momentum"]) == "0.5"

greeting = Greeting({}, {}, Target("cpu", "a CPU"), None)
facts = DataFacts("synthetic", 10, None, None, ())
run = _begin(asked(jitter=1.0), greeting, facts, None)
assert run.settings["training"]["jitter"] == 1.0
assert asked(jitter=1.0).settings.jitter == 1.0, "what the training process is given"
_begin(asked(jitter=1.0), greeting, facts, run)
try:
    _begin(asked(jitter=2.0), greeting, facts, run)
except UserError as error:
    assert "was measured with jitter 1.0, not 2.0" in str(error)
else:
    raise AssertionError("gone on with another jitter")
"""
KERNELS = """
from kernels.case import Target
from microbench.errors import UserError
from microbench.requests import GemmRequest, request_of
from microbench.run_command import _begin
from microbench.worker import Greeting

def asked(**words):
    return request_of(GemmRequest, {"seed": 1, **words}).conditions

greeting = Greeting({}, {}, Target("cpu", "a CPU"), None)
run = _begin(asked(rest=1.0), greeting, None)
assert run.settings["rest"] == 1.0 and run.settings["l2"] == "cold"
_begin(asked(rest=1.0), greeting, run)
try:
    _begin(asked(rest=2.0), greeting, run)
except UserError as error:
    assert "was measured with --rest 1.0" in str(error)
else:
    raise AssertionError("gone on with another rest")
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages with a field more in each schema."""
    place = tmp_path_factory.mktemp("copy")
    for package in ("kernels", "microbench", "e2e"):
        shutil.copytree(ROOT / package, place / package)
    for name, added in ADDED.items():
        text = (place / name).read_text()
        for of, line in added:
            _, start, rest = text.partition(of)
            body, end, after = rest.partition("\n\n    @property" if "Case" in of else "\n\n\n")
            text = text[: text.index(of)] + start + body + "\n" + line + end + after
        (place / name).write_text(text)
    return place


def python(copy: Path, *words: str) -> str:
    ran = subprocess.run(
        [sys.executable, *words], cwd=copy, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(copy)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    ("command", "written"),
    [
        ("e2e train", ("--momentum FLOAT", "--jitter FLOAT")),
        ("e2e predict", ("--momentum FLOAT", "--jitter FLOAT")),
        ("microbench gemm", ("--rest FLOAT",)),
        ("microbench layers", ("--rest FLOAT",)),
    ],
)
def test_a_field_is_an_option_of_its_commands(
    copy: Path, command: str, written: tuple[str, ...]
) -> None:
    said = python(copy, "-m", *command.split(), "--help")
    for words in written:
        assert words in said


def test_a_field_is_in_cases_files_reports_and_what_resume_asks_for(copy: Path) -> None:
    python(copy, "-c", TRAINING + KERNELS)


def test_every_option_has_a_command() -> None:
    """None but those that no command lists are options of train and predict alone."""
    listed = {getattr(row, "name", row) for rows in OPTIONS.values() for row in rows}
    assert set(options_of(*SCHEMAS, Outputs)) <= listed


def test_an_option_is_declared_once() -> None:
    for schemas in ((*SCHEMAS, Outputs), (Conditions, Outputs)):
        each = [name for schema in schemas for name in options_of(schema)]
        assert len(set(each)) == len(each)


def test_what_a_check_refuses_is_called_as_it_is_written() -> None:
    ran = run_here(e2e, "e2e", "cnn-cifar", "--label-smoothing", "2")
    assert ran.stderr == "error: --label-smoothing takes a number from 0 to below 1, not 2.0\n"
    ran = run_here(microbench, "microbench", "gemm", "--l2", "hot")
    assert ran.stderr == "error: --l2 must be one of cold, warm, not 'hot'\n"
