"""Runs the commands of a study, each into its run file; goes on where it was."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from click import Command, get_current_context
from msgspec.structs import replace
from rich.console import Console

from e2e.studies.schema import Options, Run, Study, read_study, shipped
from kernels.messages import suggest
from microbench import fmt
from microbench.command_line import called, given, typed, without_folder
from microbench.errors import NothingMeasured, UserError
from microbench.report.screen import make_console
from microbench.results.runfile import claimed, write_text
from microbench.sweep import parse_numbers

DEVICES = Path("/dev")
SHORT, SMOKE = "short", "smoke"  # the profiles for a first look, and for a CPU


def run_study(
    words: Sequence[str], commands: Commands, *, profile: str | None, out: Path | None,
    sets: Sequence[str],
) -> None:  # fmt: skip
    """What the words ask; `commands` are those that a study may start.

    UserError for a mistake; NothingMeasured where no cell was measured.
    """
    from e2e.studies.report import report

    console = make_console(quiet=False)
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
    gpus = sum(device.name[6:].isdecimal() for device in DEVICES.glob("nvidia[0-9]*"))
    study = planned(study, chosen, _sets(sets), gpus or None, commands)
    about = f"profile {chosen}, about {study.profiles.get(chosen, 'as long as it takes')}"
    if len(words) > 1:
        _show(study, about, commands, console)
        return
    target = out or Path(f"study-{study.name}-{chosen}")
    console.print(f"{study.title or study.name}: {about}, {fmt.count(len(study.run), 'run')}; "
                  f"into {target}")  # fmt: skip
    if not gpus and SMOKE in names and chosen != SMOKE:
        console.print(f"There is no GPU here: --profile {SMOKE} is made for a CPU.")
    run_all(study, target, commands, console)
    if not report(target, console):
        raise NothingMeasured


def _sets(words: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not value:
            raise UserError(f"--set {word}: write --set OPTION=VALUE")
        folder = value.partition(":")[2]
        if name == "data" and folder and not Path(folder).expanduser().is_dir():
            raise UserError(f"--set {word}: no such folder")
        values[name] = value
    return values


def _list(console: Console) -> None:
    width = max(map(len, shipped()))
    for name in shipped():
        study = read_study(name)
        profiles = ", ".join(f"{profile} {about}" for profile, about in study.profiles.items())
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
    if study.profiles:
        console.print(f"\nThis is {about}; there are {', '.join(study.profiles)}")
    for run in study.run:
        console.print(f"\n{run.id}: {run.why or run.command}", style="bold")
        for parts in command_lines(run, commands):
            console.print(shlex.join(parts), style="dim", soft_wrap=True)
    if study.differences:
        console.print("\nUnlike the original:")
        for line in study.differences:
            console.print(f"  {line}")
    rows = sum(len(table.rows) for table in study.published if not table.template)
    console.print(f"\n{fmt.count(rows, 'published row')}. Nothing was run.")


STUDY, RUNS = "study.json", "runs"
VALUES = {"true": True, "false": False}  # of options that take none

Commands = Mapping[str, Command]


def planned(
    study: Study, profile: str, sets: Mapping[str, str], gpus: int | None, commands: Commands
) -> Study:
    """The study with the runs of a profile alone, and all their options, checked.

    `sets` replace options, but the data of a run that names its own. `gpus` is how many there are,
    None where GPUs are processes of a CPU. UserError for a profile, an option or a value that
    cannot be.
    """
    runs = [run for run in study.run if run.profile == profile]
    if not runs:
        names = ", ".join(study.profile_names)
        raise UserError(f"{study.name} has no profile {profile!r}; it has {names}")
    known = {"network", *study.options, *(name for run in runs for name in run.options)}
    for name in sets:
        if name not in known:
            near = suggest(name, known) or f"; there are {', '.join(sorted(known))}"
            raise UserError(f"--set: no run has {name!r}{near}")
    ready, differences = list[Run](), list(study.differences)
    for run in runs:
        taken = {str(param.name) for param in commands[run.command].params}
        common = {name: value for name, value in study.options.items() if name in taken}
        options: Options = {**common, **run.options}
        options |= {
            name: VALUES.get(text, text) for name, text in sets.items()
            if name in options and not (name == "data" and name in run.options)
        }  # fmt: skip
        if run.network and "network" in sets:
            run = replace(run, network=tuple(sets["network"].split(",")))
        try:
            more = _without_missing_gpus(options, gpus) if "gpus" in options else ""
            if more:
                differences.append(f"Run {run.id}: {more}.")
            ready.append(replace(run, options=options, why="" if options.get("gpus", 1) else more))
            command_lines(ready[-1], commands)  # refuses what the command does
        except (UserError, TypeError) as error:
            raise UserError(f"{study.name}: run {run.id}: {error}") from None
    return replace(study, run=tuple(ready), differences=tuple(differences))


def _without_missing_gpus(options: Options, there: int | None) -> str:
    """Leave numbers of GPUs that the machine has not out of the options; which, in words."""
    counts = parse_numbers(str(options["gpus"]), "--gpus")
    missing = [str(count) for count in counts if there is not None and count > there]
    options["gpus"] = ",".join(str(count) for count in counts if str(count) not in missing)
    if options["gpus"] == "1":
        options.pop("compress", None)  # there is nothing to exchange
    return f"not over {', '.join(missing)} GPUs: this machine has {there}" if missing else ""


def command_lines(run: Run, commands: Commands) -> list[list[str]]:
    """A run's command for each network, as it would be typed.

    UserError or TypeError for options that the command refuses.
    """
    from e2e.options import TrainOptions
    from e2e.recipes import parse_recipes

    lines: list[list[str]] = []
    for network in run.networks:
        with called(commands[run.command], [network], run.options) as values:
            context = get_current_context()
            lines.append(["halfway", *typed(context.command, given(context))])
            if values["batch"] is not None:
                parse_numbers(str(values["batch"]), "--batch")
            if values.get("recipe") is not None:
                parse_recipes(values["recipe"])
            if run.command in ("train", "predict") and not run.why:
                TrainOptions.of(str(network), values)
    return lines


def run_all(study: Study, out: Path, commands: Commands, console: Console) -> None:
    """Start what is not done yet; a run that breaks off is a reason, and the others go on.

    UserError where the folder holds another study, or cannot be written.
    """
    kept = _begun(study, out)
    with claimed(out / STUDY, "--out"):
        for number, run in enumerate(study.run):
            if kept.run[number].done:
                continue
            console.print(f"\n{study.name}, run {run.id} ({number + 1} of {len(study.run)})")
            done, why = False, run.why
            try:
                for network in () if why else run.networks:
                    _start(run, network, out / RUNS / f"{run.id}.json", commands, console)
                done = not why
            except UserError as error:
                why = str(error).replace(f"{out}/", "")  # no folder of this machine is handed on
            if why:
                console.print(f"not measured: {why}")
            runs = list(kept.run)
            runs[number] = replace(runs[number], done=done, why=why)
            kept = _written(replace(kept, run=tuple(runs)), out)


def _start(run: Run, network: str | None, path: Path, commands: Commands, console: Console) -> None:
    """Add what the command measures of this network to the run file. UserError where it cannot."""
    file = {"resume" if path.exists() else "json": path}
    options = {**run.options, **file, "quiet": False}
    with called(commands[run.command], [network], options), suppress(NothingMeasured):
        context = get_current_context()
        context.command.invoke(context)


def _begun(study: Study, out: Path) -> Study:
    """The study as its folder has it, which is made; without folders of this machine."""
    study = replace(study, run=tuple(
        replace(
            run, network=tuple(without_folder("network", name) for name in run.networks if name),
            options={name: without_folder(name, value) for name, value in run.options.items()},
        ) for run in study.run
    ))  # fmt: skip
    if (out / STUDY).exists():
        kept = read_folder(out)
        if _fresh(kept) != _fresh(study):
            raise UserError(
                f"{out} holds {kept.name}, profile {kept.run[0].profile}, with other options; give "
                "the same, or another --out"
            )
        return kept
    if out.exists() and any(out.iterdir()):
        raise UserError(f"--out {out} is not empty, and holds no study; choose another folder")
    return _written(study, out)


def _fresh(study: Study) -> Study:
    return replace(study, run=tuple(replace(run, done=False, why="") for run in study.run))


def read_folder(out: Path) -> Study:
    """The study of a folder of results. UserError where it holds none, or a damaged one."""
    path = out / STUDY
    if not path.exists():
        raise UserError(f"{out} holds no study: it has no {STUDY}")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Study)
    except (OSError, msgspec.MsgspecError):
        raise UserError(f"{path} is damaged, or of another version") from None


def _written(study: Study, out: Path) -> Study:
    """The same study, after writing it. UserError where the disk refuses."""
    try:
        (out / RUNS).mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(study), indent=1).decode()
        write_text(text, out / STUDY)
    except OSError as error:
        raise UserError(f"--out {out}: cannot write there ({error.strerror})") from None
    return study
