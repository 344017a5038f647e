"""Ctrl-C, SIGTERM, SIGHUP and a killed parent, at any moment of any command that takes time."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from samples.commands import ROOT, environment
from samples.ending import MARK, STOPPED, Ending, ended, marked
from samples.processes import wait_for

CPU = ("--device", "cpu")
E2E, MICROBENCH = ("-m", "e2e"), ("-m", "microbench")
HALFWAY = ("-c", "import sys; from e2e.start import main; sys.exit(main())")
COMMANDS: dict[str, tuple[object, ...]] = {
    "gemm": (*MICROBENCH, "gemm", "--sizes", "64,128,256,512", *CPU, "--budget", "20",
             "--processes", "2"),
    "conv": (*MICROBENCH, "conv", "--channels", "8..64", "--image", "14", "--batch", "4", *CPU),
    "payoff": (*MICROBENCH, "payoff", "--channels", "8..64", "--image", "7..14", *CPU),
    "layers": (*MICROBENCH, "layers", "resnet18", "--batch", "1", *CPU),
    "selftest": (*MICROBENCH, "selftest", *CPU),
    "validate aa": (*MICROBENCH, "validate", "aa", "--budget", "0.5", *CPU),
    "train": (*E2E, "cnn-cifar", "--batch", "8", "--iterations", "100", *CPU),
    "compile": (*E2E, "cnn-cifar", "--batch", "8", "--compile", *CPU),
    "predict": (*E2E, "predict", "cnn-cifar", "--batch", "8", *CPU),
    "stalls": (*E2E, "stalls", "resnet18", "--batch", "2", "--workers", "1,2", *CPU),
    "loader": (*E2E, "loader", "--workers", "2", "--batch", "8", "--backend", "torchvision", *CPU),
    "validate": (*E2E, "validate", "--networks", "cnn-cifar", "--batch", "4", *CPU),
    "make-data": (*E2E, "make-data", "dataset", "--images", "3000", "--classes", "10"),
    "halfway": (*HALFWAY, "conv", "--channels", "8..64", "--image", "14", "--batch", "4", *CPU),
}  # fmt: skip
OURS_S = 0.5  # from the start: before that Python itself is starting
ENDS = 16  # tries at random
SEED = 29


def stopped(folder: Path, name: str, number: signal.Signals, after_s: float, **how: bool) -> Ending:
    """A command that a signal ended; what holds of every one of them is asserted."""
    words = COMMANDS[name]
    file = folder / "run.json"
    outputs = () if name == "make-data" else ("--json", file)
    end = ended((*words, *outputs), number, after_s, cwd=folder, **how)
    said = f"{name}, {number.name} after {after_s:.2f} s: {end}"
    assert not end.left, said
    if number != signal.SIGKILL:
        assert end.seconds < 2 or end.code == 0, said
        assert end.code in (0, STOPPED[number]), said
        assert "Traceback" not in end.errors, said
        assert "Exception ignored" not in end.errors, said
        assert not [path for path in folder.rglob(".*") if path.name != ".cache"], said
    if file.exists():
        run = json.loads(file.read_text())
        unfinished = run.get("results") and not run.get("finished_at")
        assert end.code == 0 or number == signal.SIGKILL or not unfinished or (
            f"--resume {file}" in end.errors
        ), said  # fmt: skip
    return end


@pytest.mark.parametrize(
    ("name", "number", "after_s", "to_all"),
    [
        ("gemm", signal.SIGINT, OURS_S, True),
        ("halfway", signal.SIGTERM, OURS_S, False),
        ("train", signal.SIGHUP, 1.5, True),
        ("train", signal.SIGINT, 3.0, True),
    ],
)
def test_while_it_loads(
    tmp_path: Path, name: str, number: signal.Signals, after_s: float, to_all: bool
) -> None:
    assert stopped(tmp_path, name, number, after_s, to_all=to_all).code == STOPPED[number]


def started(folder: Path, mark: str) -> subprocess.Popen[str]:
    """A run of GEMMs as a process of its own that has saved a result."""
    file = folder / "run.json"
    process = subprocess.Popen(
        [sys.executable, *map(str, COMMANDS["gemm"]), "--json", str(file)], cwd=ROOT, text=True,
        env=environment(**{MARK: mark}), start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=(folder / "err").open("w"),
    )  # fmt: skip
    wait_for(lambda: file.exists() and json.loads(file.read_text())["results"])
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_was_measured_is_on_disk_and_can_be_gone_on_with(
    tmp_path: Path, number: signal.Signals
) -> None:
    mark = f"{os.getpid()}-{number}"
    process = started(tmp_path, mark)
    process.send_signal(number)  # as timeout does to the process alone
    assert process.wait(10) == STOPPED[number]
    wait_for(lambda: not marked(mark))
    assert json.loads((tmp_path / "run.json").read_text())["results"]
    said = (tmp_path / "err").read_text()
    assert f"--resume {tmp_path / 'run.json'}" in said
    assert "Traceback" not in said


def test_children_end_where_the_parent_is_killed(tmp_path: Path) -> None:
    mark = f"{os.getpid()}-killed"
    process = started(tmp_path, mark)
    assert len(marked(mark)) > 1
    process.kill()
    process.wait(10)
    until_s = time.monotonic() + 5
    while marked(mark) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert not marked(mark)


def test_a_signal_that_was_ignored_stays_so(tmp_path: Path) -> None:
    """As nohup does it."""
    done = subprocess.run(
        ["nohup", sys.executable, "-c",
         "import os, signal\nfrom microbench.stopping import listen\nlisten()\n"
         "os.kill(os.getpid(), signal.SIGHUP)\nprint('still here')"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "still here" in done.stdout


def test_a_command_that_computes_in_c_ends_too(tmp_path: Path) -> None:
    """Python does not raise before a call of C returns; it is not waited for."""
    script = (
        "from microbench.stopping import last_words, listen\nlisten()\nimport torch\n"
        "torch.set_num_threads(1)\nx = torch.ones(1 << 26)\nprint('ready', flush=True)\n"
        "with last_words(lambda: print('last words', flush=True)):\n"
        "    torch.special.zeta(x + 1, x, out=x)\n    import time; time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    began_s = time.monotonic()
    process.terminate()
    assert process.wait(30) == STOPPED[signal.SIGTERM]
    assert time.monotonic() - began_s < 2.5
    assert process.stdout.read() == "last words\n"


@pytest.mark.slow
@pytest.mark.parametrize("number", range(ENDS))
def test_at_a_random_moment(tmp_path: Path, number: int) -> None:
    chance = random.Random(SEED * ENDS + number)
    names = itertools.cycle(COMMANDS)
    name = next(itertools.islice(names, number, None))
    which = chance.choice([*STOPPED, signal.SIGKILL])
    after_s = chance.uniform(OURS_S, chance.choice([1, 8, 25]))
    stopped(tmp_path, name, which, after_s, to_all=chance.random() < 0.5)


SERVING = """
import multiprocessing, sys, time
from multiprocessing.connection import Listener
from microbench.stopping import listen, share_sockets_folder

def serve():
    listener = Listener(family="AF_UNIX")
    print("serving", flush=True)
    time.sleep(60)

listen()
if "shared" in sys.argv:
    share_sockets_folder()
child = multiprocessing.get_context("fork").Process(target=serve, daemon=True)
child.start()
child.join()
"""


@pytest.mark.parametrize("how", ["shared", "each its own"])
def test_sockets_of_children_that_a_signal_ends_do_not_stay(tmp_path: Path, how: str) -> None:
    # A socket's path has at most 107 bytes, and a folder of pytest's may take them.
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        found = ended(["-c", SERVING, how], signal.SIGTERM, 2.5, cwd=tmp_path, TMPDIR=folder)
        assert found.code == 143, found.errors
        assert "serving" in found.out
        assert bool(os.listdir(folder)) is (how != "shared")


COMPUTING = """
import os, sys
from pathlib import Path
from microbench.results.runfile import claimed
from microbench.stopping import listen, scratch_folder
listen()
with claimed(Path("run.json"), "--json"), scratch_folder() as folder:
    (folder / "part").touch()
    import torch
    torch.set_num_threads(1)
    x = torch.ones(1 << 26)
    print(len(os.listdir()), flush=True)
    torch.special.zeta(x + 1, x, out=x)
"""


def test_a_command_that_is_ended_in_c_leaves_no_lock_and_no_folder(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", COMPUTING], cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        env=environment(TMPDIR=str(tmp_path)),
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.readline() == "2\n"
    time.sleep(0.3)
    process.terminate()
    assert process.wait(30) == STOPPED[signal.SIGTERM]
    assert not list(tmp_path.iterdir())


def test_the_folder_of_sockets_goes_when_the_command_ends_by_itself(tmp_path: Path) -> None:
    program = "from microbench.stopping import *; listen(); share_sockets_folder(); print('done')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment(TMPDIR=str(tmp_path)),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("done\n", "")
    assert not list(tmp_path.iterdir())
