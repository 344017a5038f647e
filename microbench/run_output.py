"""The outputs of a run: its file, resuming it, its report."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernels.files import made_writable, state_folder, temporary_folder, warn
from kernels.op import OWN
from microbench.command_line import Outputs, given, typed, without_folder
from microbench.device.doctor import watched_environment
from microbench.device.host import LOAD
from microbench.errors import NothingMeasured, UserError
from microbench.results import runfile
from microbench.results.kinds import kinds
from microbench.results.types import METHOD_VERSION, Json, Run
from microbench.streams import clean, is_of_stream, printable, redirect_to_null
from microbench.worker import Greeting

if TYPE_CHECKING:
    from rich.console import Console

CARD = "card"  # the device fact that older run files lack
CONSOLE = "halfway"  # the console command
STUDY = "study"  # a command that goes on without --resume FILE
STDOUT = Path("-")  # as --json: the run goes to standard output, everything else to stderr


def run_console(outputs: Outputs) -> Console:
    """The report's console: standard output, or standard error where the run goes there."""
    from microbench.report.screen import make_console

    return make_console(stderr=outputs.json == STDOUT, quiet=outputs.quiet)


@contextmanager
def run_file(outputs: Outputs, name: str) -> Generator[tuple[Path, Run | None]]:
    """The path of the run file, held while the context is open, and the run to go on with.

    It is the one named, or a new one in the user's state folder, or among the temporary files where
    that takes none. A run for standard output has one there too, kept current while it is measured.
    UserError where it cannot be written, or another command writes it.
    """
    if outputs.resume:
        if outputs.json:
            raise UserError("--resume writes to the run file it continues; leave out --json")
        if outputs.resume == STDOUT:
            raise UserError("only --json can write to standard output (-)")
        with runfile.claimed(outputs.resume, "--resume"):
            yield outputs.resume, runfile.read_run(outputs.resume)
        return
    path = outputs.json if outputs.json and outputs.json != STDOUT else own_path(name)
    with runfile.claimed_new(path, "--json", resumes=True, overwrite=outputs.overwrite):
        yield path, None


def own_path(name: str) -> Path:
    """A new file in the state folder. UserError where no folder takes it."""
    folder = state_folder("runs")
    fault = made_writable(folder)
    if fault or folder is None:
        try:
            folder = temporary_folder("runs")
        except OSError as error:
            raise UserError(
                f"cannot write run files ({fault}; {error.filename}: {error.strerror}); choose a "
                "file with --json"
            ) from None
        warn(f"no folder for run files ({fault}): this one is in {folder}; choose one with --json")
    return folder / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.json"


def now() -> str:
    """This moment as run files have it: ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def new_run(program: str, greeting: Greeting, settings: Json) -> Run:
    """A run that begins now; `settings` are the options to keep in it."""
    kind, options = asked()
    return Run(
        kind=kind,
        options=options,
        command=command_line(program),
        started_at=now(),
        device=greeting.device,
        software=greeting.software,
        settings={
            **settings, "environment": watched_environment(),
            **({LOAD: greeting.load} if greeting.load else {}),
        },
    )  # fmt: skip


def asked() -> tuple[str, Json]:
    """The command that runs, and the options that it was given, as they are kept: without paths."""
    context = click.get_current_context(silent=True)
    if context is None:
        return "", {}
    kept = {name: without_folder(name, value) for name, value in given(context).items()}
    return str(context.command.name), kept


def command_line(program: str) -> tuple[str, ...]:
    """The command for the run file, as it would be typed, without paths."""
    context = click.get_current_context(silent=True)
    return (*_program(program), *(typed(context.command, asked()[1]) if context else ()))


def _program(package: str) -> tuple[str, ...]:
    """How the program was called: by its console command, or by its package."""
    context = click.get_current_context(silent=True)
    console = context is not None and context.find_root().info_name == CONSOLE
    return (CONSOLE,) if console else ("python", "-m", package)


def check_goes_on(path: Path | None, before: Run, greeting: Greeting) -> None:
    """UserError unless the run to resume has this method version, device and software."""
    if before.method_version != METHOD_VERSION:
        raise UserError(
            f"--resume {path}: measured with method_version {before.method_version}, but this "
            f"version has {METHOD_VERSION}; start a new run"
        )
    parts = (
        ("device", before.device, greeting.device),
        ("software", before.software, greeting.software),
    )
    for part, then, now in parts:
        for name in sorted(then.keys() | now.keys()):
            if name == CARD and None in (then.get(CARD), now.get(CARD)):
                continue  # files of older versions lack it
            if then.get(name) != now.get(name):
                raise UserError(
                    f"--resume {path}: {part} {name} was {then.get(name)} and is now "
                    f"{now.get(name)}; start a new run"
                )


def save(run: Run, path: Path) -> None:
    """Write the run file. UserError where the disk refuses."""
    try:
        runfile.write_run(run, path)
    except OSError as error:
        raise UserError(
            f"cannot write {path} ({error.strerror}); the results written so far are intact"
        ) from None


def say_stopped(program: str, path: Path) -> None:
    """Print how to continue after Ctrl-C, to standard error; nothing where nothing is written."""
    if not path.exists():
        return
    context = click.get_current_context(silent=True)
    words = sys.argv[1:]
    if words[:1] != [STUDY] and context:  # a study knows its folder: the same command goes on
        paths = {n: v for n, v in given(context).items() if without_folder(n, v) != v}
        words = [*typed(context.command, paths), "--resume", str(path)]
    command = shlex.join([*_program(program), *words])
    text = f"\nStopped. Finished results are in {path}. Continue with:\n  {command}"
    print(printable(text), file=sys.stderr)


@dataclass(frozen=True)
class Done:
    """A finished run, its run file, and how it is shown."""

    run: Run
    path: Path
    outputs: Outputs

    def report(self) -> None:
        """Print the run; with --quiet what failed.

        NothingMeasured where no case was measured, or a kernel of the user's failed; UserError
        where the report cannot be written.
        """
        from microbench.report.report import report_of
        from microbench.report.screen import print_report

        run, outputs, console = self.run, self.outputs, run_console(self.outputs)
        try:
            print_report(report_of(run), console, verbose=outputs.verbose)
            console.print(f"Run file: {self.path}")
            if outputs.json == STDOUT:
                sys.stdout.write(self.path.read_text(encoding="utf-8"))
                sys.stdout.flush()
        except OSError as error:
            if not is_of_stream(error):
                raise
            redirect_to_null(sys.stdout)
            raise UserError(
                f"cannot write the report ({error.strerror}); the results are in {self.path}"
            ) from None
        if outputs.quiet:
            for name, reason in _failed(run):
                print(clean(f"failed: {name}: {reason}"), file=sys.stderr)
        check_measured(run)


def check_measured(run: Run) -> None:
    """NothingMeasured where no case has figures, or a kernel of the user's failed.

    Judged are the results that the run was for: those of the user's own kernels, else of the
    precisions that were asked for and not only compared with, else of the first kind that it has.
    """
    from microbench.verdict import asked_for

    own = [result for result in run.results if OWN in result.case.backend]
    broken = [result for result in own if result.status == "failed"]
    if broken:
        names = ", ".join(dict.fromkeys(result.case.backend for result in broken))
        raise NothingMeasured(f"{names} failed in {len(broken)} of {len(own)} cases")
    ops = {entry.case.op for entry in run.others}
    first = next((op for op in kinds() if op in ops), None)
    asked = [result for result in run.results if result.case.precision_name in asked_for(run)]
    others = [entry for entry in run.others if entry.case.op == first]
    judged = own or asked or others
    if all(entry.status in ("failed", "skipped") for entry in judged):
        why = Counter(entry.reason for entry in judged).most_common(1)
        more = f": {why[0][0]}" if why else ""
        raise NothingMeasured(f"nothing was measured{more}")


def _failed(run: Run) -> Iterator[tuple[str, str]]:
    """The name of each case that failed, and why."""
    from microbench import fmt

    for result in run.results:
        if result.status == "failed":
            yield fmt.name(result.case), result.reason or ""
    for entry in run.others:
        if entry.status == "failed":
            cells = kinds()[entry.case.op].cells(entry.case)
            yield " ".join(cell for cell in cells if cell), entry.reason or ""
