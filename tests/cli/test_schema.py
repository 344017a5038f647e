"""One field is one option: put into a copy of the source, it is found everywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from samples.commands import ROOT

from e2e.__main__ import OPTIONS
from e2e.case import SCHEMAS
from microbench.command_line import Outputs, options_of
from microbench.conditions import Conditions

# file -> class, and the field that it gets
ADDED = {
    "e2e/case.py": {
        "class TrainCase:": '    momentum: float = setting(0.9, "Of SGD")\n',
        "class TrainSettings:": '    jitter: float = choice(0.0, "Of gradients", kept=True)\n',
    },
    "microbench/conditions.py": {
        "class Conditions:": '    rest: float = choice(0.0, "Before a case", kept=True)\n',
    },
}
FOUND = """
import json

from e2e.halfway import main

assert [main([command, "--help"]) for command in ("train", "layers")] == [0, 0]

from e2e.case import label_of
from e2e.commands.plan import plan
from e2e.commands.requests import request_of
from e2e.networks import find
from e2e.report.run_report import csv
from e2e.results.codec import from_json, to_json
from e2e.results.types import Training
from microbench.command_line import kept
from microbench.requests import GemmRequest, request_of as kernels_asked
from microbench.results.types import Run

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

settings = asked(jitter=1.0).settings
assert settings.jitter == 1.0, "what the training process is given"
assert kept(settings)["jitter"] == 1.0, "what --resume compares"
conditions = kernels_asked(GemmRequest, {"seed": 1, "rest": 1.0}).conditions
assert (kept(conditions)["rest"], kept(conditions)["l2"]) == (1.0, "cold")
"""


def test_a_field_is_an_option_and_in_cases_files_reports_and_what_resume_asks_for(
    tmp_path: Path,
) -> None:
    for package in ("kernels", "microbench", "e2e"):
        shutil.copytree(ROOT / package, tmp_path / package)
    for name, added in ADDED.items():
        text = (tmp_path / name).read_text()
        for of, line in added.items():
            before, start, rest = text.partition(of)
            body, end, after = rest.partition("\n\n    @property" if "Case" in of else "\n\n\n")
            text = before + start + body + "\n" + line + end + after
        (tmp_path / name).write_text(text)
    ran = subprocess.run(
        [sys.executable, "-c", FOUND], cwd=tmp_path, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    for words in ("--momentum FLOAT", "--jitter FLOAT", "--rest FLOAT"):
        assert words in ran.stdout


def test_every_option_has_a_command_and_is_declared_once() -> None:
    """None but those that no command lists are options of train and predict alone."""
    listed = {getattr(row, "name", row) for rows in OPTIONS.values() for row in rows}
    assert set(options_of(*SCHEMAS, Outputs)) <= listed
    for schemas in ((*SCHEMAS, Outputs), (Conditions, Outputs)):
        each = [name for schema in schemas for name in options_of(schema)]
        assert len(set(each)) == len(each)
