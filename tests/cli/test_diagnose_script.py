"""`diagnose SCRIPT.py` in processes of its own: arguments, exit codes, and what is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

STEPS = ("--after", "2", "--bare", "3", "--traced", "2")
SCRIPT = """
import sys
import time
import torch
from beside import FEATURES

model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("arguments", sys.argv[1:], flush=True)
for number in range(int(sys.argv[1]) if sys.argv[1:] else 30):
    loss = model(torch.randn(64, FEATURES)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if "--slow" in sys.argv:
        time.sleep(0.02)
print("the end", number)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("FEATURES = 16\n")
    (tmp_path / "tmp").mkdir()
    return tmp_path


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "e2e", "diagnose", *words], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder / "tmp"),
             "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "100"},
    )  # fmt: skip


def run(folder: Path, *words: str, code: int = 0) -> tuple[str, str]:
    process = started(folder, *words)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    assert "Traceback" not in errors or code == 3, errors
    assert not list((folder / "tmp").glob("halfway-*")), "a temporary folder is left"
    return out, errors


def test_a_script_is_run_recorded_and_explained(folder: Path) -> None:
    out, _ = run(folder, *STEPS, "train.py", "--json", "found.json", "--", "25", "--odd", "x y")
    plan, _, *_ = out.splitlines()
    assert "train.py" in plan
    assert "8 steps" in plan
    assert "arguments ['25', '--odd', 'x y']" in out
    assert "matrix multiplications" in out
    assert "the end" not in out, "it was ended once its steps were recorded"
    data: dict[str, Any] = json.loads((folder / "found.json").read_text())
    (traced,) = data["runs"]
    assert traced["name"] == "train.py"
    assert traced["steps"] == 2
    assert sum(term["ns"] for term in traced["terms"]) == traced["window_ns"]
    assert str(folder) not in json.dumps(data)


@pytest.mark.slow
def test_two_runs_of_it_are_compared_and_may_be_kept(folder: Path) -> None:
    out, _ = run(
        folder, *STEPS, "train.py", "--other", "20 --slow", "--keep", "kept", "--whole",
        "--fail-on", "busy>0", code=4,
    )  # fmt: skip
    assert "arguments ['20', '--slow']" in out
    assert out.count("the end") == 2
    assert "The terms add up to the difference" in out
    kept = sorted(path.name for path in (folder / "kept").iterdir())
    assert kept == ["train 20 --slow.json.gz", "train.json.gz"]
    out, _ = run(folder, "kept/train.json.gz", "--base", f"kept/{kept[0]}")
    assert "The terms add up to the difference" in out


@pytest.mark.slow
def test_what_goes_wrong_has_a_line_and_a_code_of_its_own(folder: Path) -> None:
    (folder / "exits.py").write_text("import sys, torch\nsys.exit(7)\n")
    _, errors = run(folder, "exits.py", code=3)
    assert "exits.py failed: exit code 7" in errors
    (folder / "refuses.py").write_text("import torch\nraise ValueError('a mistake of its own')\n")
    _, errors = run(folder, "refuses.py", code=3)
    assert "line 2" in errors
    assert "ValueError: a mistake of its own" in errors
    assert "steps were seen" not in errors, "a script that failed had no chance to take more steps"
    _, errors = run(folder, "train.py", "--", "4", code=1)
    assert "4 steps were seen" in errors
    for words, said in (
        (("none.py",), "no such script: none.py"),
        (("train.py", "--lr", "3"), "options of the script come after --"),
        (("train.py", "--base", "a.json"), "--other"),
        (("train.py", "--python", "no/python"), "--python no/python"),
        (("train.py", "--other", "'open"), "--other"),
        (("train.py", "--fail-on", "busy"), "busy<70"),
        (("train.py", "--fail-on", "bussy<7"), "choose from busy, "),
        (("train.py", "--traced", "0"), "--traced"),
    ):
        out, errors = run(folder, *words, code=2)
        assert said in errors
        assert len(errors.splitlines()) == 1
        assert "arguments" not in out, "the script did not run"


@pytest.mark.slow
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_stopping_it_stops_the_script(folder: Path, which: signal.Signals) -> None:
    process = started(folder, "train.py", "--", "100000", "--slow")
    assert process.stdout
    assert "arguments" in process.stdout.readline()
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(which)
    began_s = time.monotonic()
    assert process.wait(30) == 128 + which
    assert time.monotonic() - began_s < 5
    time.sleep(0.5)
    assert not Path(f"/proc/{child}").exists()
    process.communicate()
