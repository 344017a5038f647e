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
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from e2e.interrupts import programs_end_with_us
from e2e.profile.halfway_watch import LEAD_IN
from microbench.errors import UserError
from microbench.own_packages import ROOT
from microbench.results.runfile import probe

RECORDER, PROOFS = "halfway_watch.py", "halfway_prove.py"
TRACE_ENDING, PROOFS_ENDING = ".json.gz", ".proofs.json"
PYTHON_FILES = (".py", ".pyw")
LAUNCHERS = {  # the module that each runs
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.accelerate_cli",
}
UNASKED = "amp,float32,anomaly"  # what is tried after every recording: each switched off, or on
MOST_LABEL = 60  # characters


@dataclass(frozen=True)
class Script:
    """A script or a module, its arguments, and how its steps are recorded.

    `launcher` are the words that start it on several GPUs: ("torchrun", "--nproc_per_node", "2").
    `after`, `bare` and `traced` are numbers of steps: of warm-up, timed without the profiler, and
    recorded. `prove`: changes are tried in more steps.
    """

    name: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    launcher: tuple[str, ...] = ()
    python: str | None = None
    after: int = 20
    bare: int = 20
    traced: int = 3
    prove: bool = False
    quiet: bool = False

    def options(self) -> list[str]:
        """The options of `halfway diagnose` that are not as by default: ["--prove"]."""
        numbers = ("after", "bare", "traced")
        given = [name for name in numbers if getattr(self, name) != getattr(Script, name)]
        flags = [word for name in given for word in (f"--{name}", str(getattr(self, name)))]
        return flags + ["--prove"] * self.prove

    def words(self) -> list[str]:
        """What starts it, without folders: ["torchrun", "train.py"]."""
        name = self.name if self.is_module else Path(self.name).name
        return [*self.launcher, *(["-m"] if self.is_module else []), name]


def script_of(command: Sequence[str], python: str | None, **options: Any) -> Script | None:
    """The script that these words start, with `options` of Script; None where they name no script.

    It is SCRIPT.py, -m MODULE, or a file that Python runs by its first line, such as a command of
    an installed package; the first two also after a launcher. UserError for one without.
    """
    if not command:
        return None
    first, *rest = command
    if first in LAUNCHERS:
        python = python or _interpreter(shutil.which(first))
        for place, word in enumerate(rest):
            is_module = word in ("-m", "--module")
            if is_module or Path(word).suffix in PYTHON_FILES:
                started = script_of(["-m" if is_module else word, *rest[place + 1 :]], python)
                if started:
                    return replace(started, launcher=(first, *rest[:place]), **options)
        raise UserError(
            f"{first} starts no SCRIPT.py and no -m MODULE here; write, for example, "
            f"halfway diagnose {first} train.py"
        )
    if first == "-m":
        return Script(rest[0], tuple(rest[1:]), True, (), python, **options) if rest else None
    if Path(first).suffix in PYTHON_FILES:
        return Script(first, tuple(rest), False, (), python, **options)
    file = first if Path(first).is_file() else shutil.which(first)
    python = python or _interpreter(file)
    return Script(file, tuple(rest), False, (), python, **options) if file and python else None


def _interpreter(file: str | None) -> str | None:
    """The Python that a file's first line names; None for a file that is no Python script."""
    with suppress(OSError, UnicodeDecodeError), Path(file or "").open(encoding="utf-8") as opened:
        line = opened.readline(1000)
        names = [word for word in line[2:].split() if "python" in Path(word).name]
        if line.startswith("#!") and names:
            return names[0] if Path(names[0]).is_file() else sys.executable
    return None


def labels(runs: Sequence[Script]) -> list[str]:
    """The runs by their arguments: "train.py --amp". Of long ones what differs is shown."""
    same = 0
    if len(runs) > 1 and max(len(shlex.join(run.arguments)) for run in runs) > MOST_LABEL:
        pairs = zip(runs[0].arguments, runs[1].arguments, strict=False)
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    names: list[str] = []
    for run in runs:
        parts = [run.words()[-1], *(["…"] if same else []), *run.arguments[same:]]
        text = " ".join(word if word == "…" else shlex.quote(word) for word in parts)
        names.append(text if len(text) <= MOST_LABEL else text[: MOST_LABEL - 1] + "…")
    return names


def recorder(name: str = RECORDER) -> str:
    """The text of the recorder, or of what it needs to prove: one file that needs torch alone."""
    return files("e2e.profile").joinpath(name).read_text(encoding="utf-8")


def plan_of(script: Script) -> str:
    """ "train.py runs for 44 steps, or 48 on a GPU (20 of warm-up, …), and is then ended".

    UserError where the script or its interpreter is missing.
    """
    if not script.is_module and not Path(script.name).is_file():
        raise UserError(f"no such script: {script.name}")
    if script.python and not shutil.which(script.python):
        raise UserError(f"--python {script.python}: no such program")
    recorded = LEAD_IN + script.traced
    steps = script.after + script.bare + recorded
    more = "then, or after some dozens more where autocast can be tried"
    if script.prove:
        more = "after some hundred more, in which changes are tried"
    return (
        f"{shlex.join(script.words())} runs for {steps} steps, or {steps + recorded} on a GPU "
        f"({script.after} of warm-up, {script.bare} timed, {recorded} recorded, on a GPU twice), "
        f"and is ended {more}."
    )


def record(script: Script, out: Path, folder: Path, tries: bool) -> int:
    """Run the script and return its exit code. `tries`: changes may be tried in it.

    The trace is in `out` then, or in a file beside it for each rank, unless the recorder said why
    there is none. `folder` is for the recorder. UserError where the interpreter does not start.
    """
    for name in (RECORDER, PROOFS):
        (folder / name).write_text(recorder(name), encoding="utf-8")
    command = [str(folder / RECORDER), "--out", str(out), "--quiet"]
    for name in ("after", "bare", "traced"):
        command += [f"--{name}", str(getattr(script, name))]
    command += [] if script.quiet else ["--progress"]
    command += ["--then-exit", *(["--prove"] if tries else [])]
    command += ["--only", UNASKED] if tries and not script.prove else []
    command += [*(["-m"] if script.is_module else []), script.name, *script.arguments]
    before = ["-m", LAUNCHERS[script.launcher[0]], *script.launcher[1:]] if script.launcher else []
    python = script.python or sys.executable
    sys.stdout.flush()
    try:
        with programs_end_with_us() as begin:
            done = subprocess.run(
                [python, *before, *command], preexec_fn=begin,
                env=_without_ours() if script.python else None,
            )  # fmt: skip
    except OSError as error:
        raise UserError(f"--python {python}: {error.strerror}") from None
    return done.returncode


def traces_in(folder: Path) -> list[Path]:
    """The traces that a run has left there, by rank."""
    return sorted(folder.glob("*" + TRACE_ENDING), key=lambda path: (len(path.name), path.name))


def proofs_of(trace: Path) -> Path:
    """Where the recorder writes what was tried: it is there as soon as that begins."""
    return trace.with_name(trace.name.removesuffix(TRACE_ENDING) + PROOFS_ENDING)


def _without_ours() -> dict[str, str]:
    """The environment without our folder in PYTHONPATH: another interpreter has its own packages.

    Where nothing else is in PYTHONPATH it is not set: an empty one would name the working folder.
    """
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = os.pathsep.join(place for place in places if Path(place).resolve() != ROOT)
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return others | ({"PYTHONPATH": kept} if kept else {})


def arguments_in(option: str, text: str) -> tuple[str, ...]:
    """The words of an option, as a shell splits them. UserError for an open quotation."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UserError(f"{option} {text!r}: {error}") from None


def check_keeps(folder: Path | None) -> None:
    """Make the folder that --keep names, if it does. UserError where it takes no file."""
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--keep {folder}: {error.strerror}") from None
        probe(folder / "trace", "--keep")


def keep(trace: Path, folder: Path | None) -> None:
    """Copy a trace, and what was tried, to the folder that --keep names, if it does.

    A file of its name stays, and the trace gets a number. UserError where it cannot be written.
    """
    if folder is None:
        return
    stem = trace.name.removesuffix(TRACE_ENDING)
    try:
        for number in itertools.count(1):
            kept = folder / f"{stem}{'' if number == 1 else f'-{number}'}{TRACE_ENDING}"
            with suppress(FileExistsError), kept.open("xb") as file, trace.open("rb") as whole:
                try:
                    shutil.copyfileobj(whole, file)
                    file.flush()
                except BaseException:
                    kept.unlink(missing_ok=True)
                    raise
                if proofs_of(trace).exists():
                    shutil.copyfile(proofs_of(trace), proofs_of(kept))
                return
    except OSError as error:
        raise UserError(f"--keep {folder}: {error.strerror}") from None
