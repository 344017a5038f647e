"""Runs a user's training script with the recorder, under the interpreter that the user names.

The recorder is copied to a folder of its own: the user's interpreter, which may have another torch
and other packages of our names, imports nothing of ours.
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import IO

from e2e.profile.halfway_watch import LEAD_IN
from microbench.errors import UserError
from microbench.own_packages import ROOT
from microbench.results.runfile import probe
from microbench.stopping import programs_end_with_us

RECORDER, PROOFS = "halfway_watch.py", "halfway_prove.py"
TRACE_ENDING = ".json.gz"


@dataclass(frozen=True)
class Script:
    """A script, its arguments, and how its steps are recorded.

    `after`, `bare` and `traced` are numbers of steps: of warm-up, timed without the profiler, and
    recorded. `whole`: it goes on to its end after that. `prove`: changes are tried in more steps.
    """

    path: Path
    arguments: tuple[str, ...]
    python: Path | None
    after: int = 20
    bare: int = 20
    traced: int = 3
    stack: bool = False
    whole: bool = False
    prove: bool = False

    def options(self) -> list[str]:
        """The options of `halfway diagnose` that are not as by default: ["--prove"]."""
        numbers = ("after", "bare", "traced")
        given = [name for name in numbers if getattr(self, name) != getattr(Script, name)]
        words = [word for name in given for word in (f"--{name}", str(getattr(self, name)))]
        return words + [f"--{n}" for n in ("stack", "whole", "prove") if getattr(self, n)]


def recorder(name: str = RECORDER) -> str:
    """The text of the recorder, or of what it needs to prove: one file that needs torch alone."""
    return files("e2e.profile").joinpath(name).read_text(encoding="utf-8")


def plan_of(script: Script) -> str:
    """ "train.py runs for 44 steps (20 of warm-up, 20 timed, 4 recorded), and is then ended".

    UserError where the script or its interpreter is missing.
    """
    if not script.path.is_file():
        raise UserError(f"no such script: {script.path}")
    if script.python and not shutil.which(script.python):
        raise UserError(f"--python {script.python}: no such program")
    recorded = LEAD_IN + script.traced
    end = "then goes on to its end" if script.whole else "is then ended (--whole lets it go on)"
    return (
        f"{script.path} runs for {script.after + script.bare + recorded} steps ({script.after} of "
        f"warm-up, {script.bare} timed, {recorded} recorded), and {end}."
    )


def record(script: Script, more: Sequence[str], out: Path, folder: Path) -> int:
    """Run the script with `more` arguments at the end, and return its exit code.

    The trace is in `out` then, unless the recorder said why there is none. `folder` is for the
    recorder. UserError where the interpreter does not start.
    """
    ours = folder / RECORDER
    ours.write_text(recorder(), encoding="utf-8")
    if script.prove:
        (folder / PROOFS).write_text(recorder(PROOFS), encoding="utf-8")
    numbers = {"--after": script.after, "--bare": script.bare, "--traced": script.traced}
    words = [word for name, number in numbers.items() for word in (name, str(number))]
    switches = {
        "--stack": script.stack, "--then-exit": not script.whole, "--prove": script.prove,
    }  # fmt: skip
    words += ["--quiet", *(name for name, is_on in switches.items() if is_on)]
    arguments = [str(script.path), *script.arguments, *more]
    python = str(script.python or sys.executable)
    sys.stdout.flush()
    try:
        with programs_end_with_us() as begin:
            done = subprocess.run(
                [python, str(ours), "--out", str(out), *words, *arguments],
                env=_without_ours() if script.python else None,
                preexec_fn=begin,
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


def check_keeps(folder: Path | None) -> None:
    """Make the folder that --keep names, if it does. UserError where it takes no file."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--keep {folder}: {error.strerror}") from None
        probe(folder / "trace", "--keep")


def keep(trace: Path, folder: Path | None) -> None:
    """Copy a trace to the folder that --keep names, if it does.

    A file of its name stays, and the trace gets a number. UserError where it cannot be written.
    """
    if folder is None:
        return
    stem, endings = trace.name.removesuffix(TRACE_ENDING), TRACE_ENDING
    try:
        for number in itertools.count(1):
            kept = folder / (trace.name if number == 1 else f"{stem}-{number}{endings}")
            with suppress(FileExistsError), kept.open("xb") as file:
                _copy(trace, file)
                return
    except OSError as error:
        raise UserError(f"--keep {folder}: {error.strerror}") from None


def _copy(trace: Path, to: IO[bytes]) -> None:
    """Copy it whole; a file that is not whole is removed."""
    try:
        with trace.open("rb") as file:
            shutil.copyfileobj(file, to)
        to.flush()
    except BaseException:
        Path(to.name).unlink(missing_ok=True)
        raise
