"""`study list`, `show NAME`, `report DIR`, and `study NAME` itself."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from e2e.studies.run import Commands, command_lines, planned, run_all
from e2e.studies.schema import Study, read_study, shipped
from microbench import fmt
from microbench.errors import NothingMeasured, UserError
from microbench.report.screen import make_console

DEVICES = Path("/dev")
SHORT, SMOKE = "short", "smoke"  # the profiles for a first look, and for a CPU


def run_study(
    words: Sequence[str], commands: Commands, *, profile: str | None, out: Path | None,
    sets: Sequence[str], device: str, quiet: bool,
) -> None:  # fmt: skip
    """What the words ask; `commands` are those that a study may start.

    UserError for a mistake; NothingMeasured where no cell was measured.
    """
    from e2e.studies.report import report

    console = make_console(quiet=quiet)
    match words:
        case [] | ["list"]:
            _list(console)
            return
        case ["report", folder]:
            report(Path(folder), console)
            return
        case ["show", name] | [name] if name not in ("show", "report"):
            study = read_study(name)
        case _:
            raise UserError("study takes list, show NAME, report DIR, or one NAME or FILE.toml")
    names = study.profile_names
    chosen = profile or (SHORT if SHORT in names else names[0])
    gpus = sum(one.name[6:].isdecimal() for one in DEVICES.glob("nvidia[0-9]*"))
    on_cpu = device == "cpu" or (device == "auto" and not gpus)
    own = "" if device == "auto" else device
    study = planned(study, chosen, _sets(sets), own, None if on_cpu else gpus, commands)
    about = f"profile {chosen}, about {study.profiles.get(chosen, 'as long as it takes')}"
    if len(words) > 1:
        _show(study, about, commands, console)
        return
    target = out or Path(f"study-{study.name}-{chosen}")
    console.print(f"{study.title or study.name}: {about}, {fmt.count(len(study.run), 'run')}; "
                  f"into {target}")  # fmt: skip
    if on_cpu and SMOKE in names and chosen != SMOKE:
        console.print(f"There is no GPU here: --profile {SMOKE} is made for a CPU.")
    run_all(study, target, commands, console)
    if not report(target, console):
        raise NothingMeasured


def _sets(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not value:
            raise UserError(f"--set {word}: write --set OPTION=VALUE")
        folder = value.partition(":")[2]
        if name == "data" and folder and not Path(folder).expanduser().is_dir():
            raise UserError(f"--set {word}: no such folder")
        found[name] = value
    return found


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


def _show(study: Study, about: str, commands: Commands, console: Console) -> None:
    """Print what a study is, and its commands. Nothing runs."""
    console.print(study.title or study.name, style="bold")
    console.print(study.question)
    console.print(f"\nThis is {about}; there are {', '.join(study.profiles)}")
    for run in study.run:
        console.print(f"\n{run.id}: {run.why or run.command}", style="bold")
        for words in command_lines(run, commands):
            console.print(shlex.join(words), style="dim", soft_wrap=True)
    if study.differences:
        console.print("\nUnlike the original:")
        for line in study.differences:
            console.print(f"  {line}")
    rows = sum(len(one.rows) for one in study.published if not one.template)
    console.print(f"\n{fmt.count(rows, 'published row')}. Nothing was run.")
