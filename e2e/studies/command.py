"""`study list`, `show NAME`, `report DIR`, and `study NAME` itself."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.studies.run import Given, Planned, State, asked, begun, planned, run_all
from e2e.studies.schema import Study, content_of, read_study, shipped
from microbench import fmt
from microbench.errors import NothingMeasured, UserError
from microbench.report.screen import make_console
from microbench.report.table import Part, screen

if TYPE_CHECKING:
    from rich.console import Console

    from e2e.studies.run import Commands

WORDS = ("list", "show", "report")
DEVICES = Path("/dev")
SMOKE = "smoke"  # the profile that a CPU can run
MOST_ROWS = 16  # of a table on the screen


def run_study(
    words: Sequence[str], commands: Commands, *, profile: str | None, data: Sequence[str],
    weights: Path | None, out: Path | None, sets: Sequence[str], device: str, quiet: bool,
) -> None:  # fmt: skip
    """What the words ask; `commands` are those that a study may start.

    UserError for a mistake; NothingMeasured where no cell was measured.
    """
    console = make_console(quiet=quiet)
    first, *rest = words or ["list"]
    if first == "list" and not rest:
        _list(console)
        return
    if first == "report" and len(rest) == 1:
        report(Path(rest[0]), console)
        return
    shows = first == "show" and len(rest) == 1
    if not shows and (first in WORDS or rest):
        raise UserError("study takes list, show NAME, report DIR, or one NAME or FILE.toml")
    name = rest[0] if shows else first
    study, folders, replaced = read_study(name), _folders(data), _pairs(sets, "--set OPTION=VALUE")
    chosen = profile or study.first_profile
    gpus = sum(one.name[6:].isdecimal() for one in DEVICES.glob("nvidia[0-9]*"))
    on_cpu = device == "cpu" or (device == "auto" and not gpus)
    given = Given(replaced, folders, weights, "" if device == "auto" else device,
                  None if on_cpu else gpus)  # fmt: skip
    runs = planned(study, chosen, given, commands)
    if shows:
        _show(study, chosen, runs, commands, console)
        return
    lacking = [line for one in runs for line in one.lacking]
    content = content_of(name)
    state = State(study.name, hashlib.sha256(content).hexdigest(), chosen, replaced,
                  sorted(folders), lacking)  # fmt: skip
    target = out or Path(f"study-{study.name}-{chosen}")
    state = begun(target, state, content)
    console.print(f"{study.title or study.name}: {_profile(study, chosen)}, "
                  f"{fmt.count(len(runs), 'run')}; into {target}")  # fmt: skip
    if on_cpu and SMOKE in study.profile_names and chosen != SMOKE:
        console.print(f"There is no GPU here: --profile {SMOKE} is made for a CPU.")
    run_all(runs, target, state, commands, console, quiet=quiet)
    if not report(target, console):
        raise NothingMeasured


def report(out: Path, console: Console) -> int:
    """Write the report of a folder from its run files; returns how many cells were measured."""
    from e2e.studies.report import CELLS, PAGE, TEXT, answer_of, read_report, write_report

    found = read_report(out)
    write_report(found, out)
    console.print()
    for line in answer_of(found.cells):
        console.print(line, style="bold")
    for part in found.published:
        _print_part(part, console)
    console.print(f"\nPage: {out / PAGE}; also {TEXT} and {CELLS}")
    return sum(cell.measured for cell in found.cells)


def _print_part(part: Part, console: Console) -> None:
    console.print()
    console.print(part.title, style="bold underline")
    if part.table and len(part.table.rows) > MOST_ROWS:
        console.print(f"{fmt.count(len(part.table.rows), 'row')}: on the page", style="dim")
    elif part.table:
        laid_out = screen(part.table, console.width)
        console.print(*laid_out.lines, sep="\n")
        note = laid_out.left_out_note(console.width)
        if note:
            console.print(note, style="dim")
    for line in part.below:
        console.print(line, style="dim")


def _folders(words: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name, folder in _pairs(words, "--data NAME=DIR").items():
        found[name] = Path(folder).expanduser()
        if not found[name].is_dir():
            raise UserError(f"--data {name}={folder}: no such folder")
    return found


def _pairs(words: Sequence[str], form: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not value:
            raise UserError(f"{form.split()[0]} {word}: write {form}")
        found[name] = value
    return found


# ---------------------------------------------------------------- screens


def _profile(study: Study, name: str) -> str:
    about = study.profiles.get(name)
    return f"profile {name}" + (f", about {about}" if about else "")


def _list(console: Console) -> None:
    width = max(map(len, shipped()))
    for name in shipped():
        study = read_study(name)
        profiles = ", ".join(f"{one} {about}" for one, about in study.profiles.items())
        console.print(f"{name:{width}}  {study.title}")
        console.print(f"{'':{width}}  {profiles}", style="dim")
    console.print(
        "\nTimes are estimates. study show NAME says what one runs; study NAME --profile short "
        "runs it."
    )


def _show(
    study: Study, profile: str, runs: Sequence[Planned], commands: Commands, console: Console
) -> None:
    """Print what a study is, and the commands of a profile. Nothing runs."""
    console.print(study.title or study.name, style="bold")
    if study.question:
        console.print(study.question)
    console.print(f"\n{_profile(study, profile)}; it has {', '.join(study.profile_names)}")
    for one in runs:
        console.print(f"\n{one.run.id}: {one.skipped or one.run.command}", style="bold")
        for network in one.networks or [None]:
            words = ["halfway", *asked(one, network, commands)[0]]
            console.print(shlex.join(words), style="dim", soft_wrap=True, markup=False)
        for line in one.lacking:
            console.print(line, style="dim")
    if study.differences:
        console.print("\nUnlike the original:")
        for line in study.differences:
            console.print(f"  {line}")
    rows = sum(len(one.rows) for one in study.published if not one.template)
    console.print(f"\n{fmt.count(rows, 'published row')}. Nothing was run.")
