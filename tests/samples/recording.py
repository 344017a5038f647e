"""The recorder, copied to a user's folder and run there, under any interpreter that has torch.

`RECORDER_PYTHON` names another interpreter than that of the tests (.ci/recorder.py sets it): the
scripts run under it, and what they leave is read with the halfway of the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

PYTHON = os.environ.get("RECORDER_PYTHON", sys.executable)
RECORDER = Path(str(files("e2e.profile").joinpath("halfway_watch.py")))
STEPS = ("--after", "2", "--bare", "3", "--traced", "2")
NEEDED = 2 + 3 + 1 + 2  # steps, with those


# Imports torch once, with what it loads late, and forks for each command of {name: words}.
_FORKS = """
import json, os, runpy, sys
import torch, torch.profiler, torch.utils.checkpoint
torch.optim.SGD([torch.zeros(1)], lr=0.1).step()
for name, words in json.loads(sys.argv[1]).items():
    child = os.fork()
    if not child:
        for number, kind in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{name}.{kind}", os.O_CREAT | os.O_WRONLY), number)
        sys.argv[:] = words
        sys.path[0] = os.getcwd()
        runpy.run_path(words[0], run_name="__main__")
        sys.exit()
    with open(f"{name}.code", "w") as file:
        file.write(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
"""


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit code."""

    stdout: str
    stderr: str
    code: int


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Variables with nothing of ours in the interpreter's way, and `more`."""
    return {"PATH": "/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1", **more}


def run(folder: Path, *words: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    """Run that interpreter in a folder; `more` are variables."""
    done = subprocess.run(
        [PYTHON, *words], cwd=folder, capture_output=True, text=True, timeout=240,
        env=environment(folder, **more),
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done


def run_all(folder: Path, commands: Mapping[str, Sequence[str]]) -> dict[str, Done]:
    """Run scripts in a folder, each in a process of its own, after one import of torch."""
    run(folder, "-c", _FORKS, json.dumps(dict(commands)))
    return {
        name: Done(
            (folder / f"{name}.out").read_text(), (folder / f"{name}.err").read_text(),
            int((folder / f"{name}.code").read_text()),
        )
        for name in commands
    }  # fmt: skip


def is_installed(*modules: str) -> bool:
    """Whether that interpreter finds all of these."""
    text = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    return not subprocess.run([PYTHON, "-c", text, *modules]).returncode
