"""Runs a user's training script with the recorder, under the interpreter that the user names.

The recorder is copied to a folder of its own: the user's interpreter, which may have another torch
and other packages of our names, imports nothing of ours.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from microbench.errors import UserError
from microbench.own_packages import ROOT

RECORDER = "halfway_watch.py"


@dataclass(frozen=True)
class Script:
    """A script, its arguments, and how its steps are recorded.

    `after`, `bare` and `traced` are numbers of steps: of warm-up, timed without the profiler, and
    recorded. `whole`: it goes on to its end after that.
    """

    path: Path
    arguments: tuple[str, ...]
    python: Path | None
    after: int
    bare: int
    traced: int
    stack: bool
    whole: bool


def recorder() -> str:
    """The text of the recorder, one file that needs torch alone."""
    return files("e2e.profile").joinpath(RECORDER).read_text(encoding="utf-8")


def record(script: Script, more: Sequence[str], out: Path, folder: Path) -> int:
    """Run the script with `more` arguments at the end, and return its exit code.

    The trace is in `out` then, unless the recorder said why there is none. `folder` is for the
    recorder. UserError where the script is missing or the interpreter does not start.
    """
    if not script.path.is_file():
        raise UserError(f"no such script: {script.path}")
    ours = folder / RECORDER
    ours.write_text(recorder(), encoding="utf-8")
    numbers = {"--after": script.after, "--bare": script.bare, "--traced": script.traced}
    words = [word for name, number in numbers.items() for word in (name, str(number))]
    switches = {"--stack": script.stack, "--then-exit": not script.whole}
    words += ["--quiet", *(name for name, is_on in switches.items() if is_on)]
    arguments = [str(script.path), *script.arguments, *more]
    python = str(script.python or sys.executable)
    sys.stdout.flush()
    try:
        done = subprocess.run(
            [python, str(ours), "--out", str(out), *words, *arguments],
            env=_without_ours() if script.python else None,
        )
    except OSError as error:
        raise UserError(f"--python {python}: {error.strerror}") from None
    return done.returncode


def _without_ours() -> dict[str, str]:
    """The environment without our folder in PYTHONPATH: another interpreter has its own packages.

    Where nothing else is in PYTHONPATH it is not set: an empty one would name the working folder.
    """
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = os.pathsep.join(place for place in places if Path(place).resolve() != ROOT)
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return others | ({"PYTHONPATH": kept} if kept else {})


def other_arguments(text: str) -> list[str]:
    """The words of --other, as a shell splits them. UserError for an open quotation."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"--other {text!r}: {error}") from None


def keep(trace: Path, folder: Path | None) -> None:
    """Copy a trace to the folder that --keep names, if it does. UserError where it cannot."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(trace, folder / trace.name)
    except OSError as error:
        raise UserError(f"--keep {folder}: {error.strerror}") from None
