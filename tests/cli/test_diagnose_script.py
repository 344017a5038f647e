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
from samples.commands import run_here
from samples.ending import MARK, marked
from samples.processes import wait_for

from e2e.__main__ import main
from e2e.commands.record import keep
from microbench.results.runfile import claimed

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


def started(folder: Path, *words: str, mark: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "e2e", "diagnose", *words], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder / "tmp"),
             "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "100", MARK: mark},
    )  # fmt: skip


def wait_until_it_runs(process: subprocess.Popen[str]) -> None:
    """Read past the plan, to the first line of the script's own."""
    assert process.stdout
    while not (line := process.stdout.readline()).startswith("arguments"):
        assert line, "it ended"


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
    (folder / "crashes.py").write_text("import os\nos.kill(os.getpid(), 50)\n")
    _, errors = run(folder, "crashes.py", code=3)
    assert "crashes.py was ended by signal 50" in errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none.py",), "no such script: none.py"),
        (("train.py", "--lr", "3"), "options of the script come after --"),
        (("train.py", "--base", "a.json"), "--other"),
        (("train.py", "--python", "no/python"), "--python no/python"),
        (("train.py", "--other", "'open"), "--other"),
        (("train.py", "--fail-on", "busy"), "busy<70"),
        (("train.py", "--fail-on", "bussy<7"), "choose from busy, "),
        (("train.py", "--traced", "0"), "--traced"),
        (("train.py", "--json", "x", "--html", "./x"), "--json and --html name the same file"),
        (("train.py", "--json", "beside.py"), "--json beside.py already exists"),
        (("train.py", "--html", "none/x"), "--html none/x"),
        (("train.py", "--keep", "beside.py"), "--keep beside.py"),
        (("train.py", "--keep", "/proc/none"), "--keep /proc/none"),
    ],
)
def test_a_mistake_is_one_line_and_the_script_does_not_run(
    folder: Path, words: tuple[str, ...], said: str
) -> None:
    before = sorted(folder.iterdir())
    ran = run_here(main, "e2e", "diagnose", *words, cwd=folder, TMPDIR=str(folder / "tmp"))
    assert ran.returncode == 2, ran.stderr
    assert said in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert ran.stdout == ""
    assert sorted(folder.iterdir()) == before


def test_two_diagnoses_cannot_write_one_file(folder: Path) -> None:
    with claimed(folder / "found.json", "--json"):
        ran = run_here(main, "e2e", "diagnose", "train.py", "--json", "found.json", cwd=folder)
    assert ran.returncode == 2
    assert "another command is writing this file" in ran.stderr


def test_a_kept_trace_replaces_none(tmp_path: Path) -> None:
    trace, folder = tmp_path / "train.json.gz", tmp_path / "kept"
    folder.mkdir()
    (folder / "train-2.json.gz").symlink_to(tmp_path / "victim")
    for content in (b"first", b"second"):
        trace.write_bytes(content)
        keep(trace, folder)
    assert (folder / "train.json.gz").read_bytes() == b"first"
    assert (folder / "train-3.json.gz").read_bytes() == b"second"
    assert not (tmp_path / "victim").exists()


@pytest.mark.slow
def test_the_same_arguments_twice_are_two_runs(folder: Path) -> None:
    """Both traces have one name, and neither is held against itself."""
    out, _ = run(
        folder, *STEPS, "train.py", "--other", "", "--keep", "kept", "--json", "found.json"
    )
    assert out.count("arguments []") == 2
    first, second = json.loads((folder / "found.json").read_text())["runs"]
    assert first["window_ns"] != second["window_ns"]
    kept = sorted(path.name for path in (folder / "kept").iterdir())
    assert kept == ["train-2.json.gz", "train.json.gz"]


DAEMON = """
import subprocess, sys
code = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; "
subprocess.Popen([sys.executable, "-c", code + "print('up', flush=True); time.sleep(600)"],
                 start_new_session=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGHUP])
def test_what_the_script_started_ends_too(folder: Path, which: signal.Signals) -> None:
    """Also what ignores signals, or has left its group."""
    (folder / "daemon.py").write_text(DAEMON + SCRIPT)
    process = started(folder, "daemon.py", "--", "100000", "--slow", mark=str(folder))
    assert process.stdout
    awaited = {"up", "arguments"}
    while awaited:
        line = process.stdout.readline()
        assert line, "it ended"
        awaited -= set(line.split()[:1])
    process.send_signal(which)
    assert process.wait(30) == 128 + which
    wait_for(lambda: not marked(str(folder)))
    process.communicate()


@pytest.mark.slow
def test_the_script_ends_where_the_command_is_killed(folder: Path) -> None:
    process = started(folder, "train.py", "--", "100000", "--slow", mark=str(folder))
    wait_until_it_runs(process)
    process.kill()
    process.wait(30)
    wait_for(lambda: not marked(str(folder)))
    process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_stopping_it_stops_the_script(folder: Path, which: signal.Signals) -> None:
    process = started(folder, "train.py", "--", "100000", "--slow")
    wait_until_it_runs(process)
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(which)
    began_s = time.monotonic()
    assert process.wait(30) == 128 + which
    assert time.monotonic() - began_s < 5
    time.sleep(0.5)
    assert not Path(f"/proc/{child}").exists()
    process.communicate()
