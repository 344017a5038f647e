"""Runs the commands of a study, each into its run file; goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from click import get_current_context

from e2e.case import DATA_ALIASES
from e2e.studies.schema import Options, Run, Study
from kernels.error_words import suggest
from microbench.command_line import called, typed
from microbench.command_line import given as given_to
from microbench.errors import UserError
from microbench.results.runfile import claimed, read_json, write_text
from microbench.sweep import parse_numbers

if TYPE_CHECKING:
    import click
    from rich.console import Console

    Commands = Mapping[str, click.Command]

STATE, TOML, RUNS = "study.json", "study.toml", "runs"
IDENTITY = ("study", "sha256", "profile", "sets", "data")
OWN_DATA = ("generated", "synthetic", "made", *DATA_ALIASES)  # that need no folder


@dataclass(frozen=True)
class Given:
    """What the user says beside the study: options to replace, folders of data and of weights.

    `device` is that of every run, "" for their own; `gpus` is how many there are, None where GPUs
    are processes of a CPU.
    """

    sets: Mapping[str, str] = field(default_factory=dict[str, str])
    data: Mapping[str, Path] = field(default_factory=dict[str, Path])
    weights: Path | None = None
    device: str = ""
    gpus: int | None = None


@dataclass(frozen=True)
class Planned:
    """A run as it is started; `skipped` is why it is not, `lacking` what it does without."""

    run: Run
    networks: Sequence[str]
    options: Options
    skipped: str = ""
    lacking: Sequence[str] = ()


@dataclass(frozen=True)
class State:
    """What a folder of a study holds beside its run files.

    `data` are the names of the user's data, without folders. `done` are ids of runs, `failed` why
    one broke off or was skipped, `lacking` sentences for the report.
    """

    study: str
    sha256: str
    profile: str
    sets: Mapping[str, str]
    data: Sequence[str]
    lacking: Sequence[str] = ()
    done: Sequence[str] = ()
    failed: Mapping[str, str] = field(default_factory=dict[str, str])


# ---------------------------------------------------------------- from a study to commands


def planned(study: Study, profile: str, given: Given, commands: Commands) -> list[Planned]:
    """The runs of a profile with all their options, checked.

    UserError for a profile, an option or a value that cannot be.
    """
    found: list[Planned] = []
    for run in study.runs(profile):
        try:
            one = _planned(study, run, given, commands)
            _check(one, commands)
        except (UserError, TypeError) as error:
            raise UserError(f"{study.name}: run {run.id}: {error}") from None
        found.append(one)
    known = {name for one in found for name in one.options} | {"network"}
    for name in given.sets:
        if name not in known:
            near = suggest(name, known) or f"; there are {', '.join(sorted(known))}"
            raise UserError(f"--set: no run has {name!r}{near}")
    return found


def _planned(study: Study, run: Run, given: Given, commands: Commands) -> Planned:
    taken = {str(param.name) for param in commands[run.command].params}
    common = {name: value for name, value in study.options.items() if name in taken}
    options: Options = {**common, **run.options}
    options |= {name: _value(text) for name, text in given.sets.items() if name in options}
    networks = run.networks
    if networks and "network" in given.sets:
        networks = given.sets["network"].split(",")
    skipped, lacking = "", list[str]()
    if "data" in options:
        several = cast("object", options["data"])
        listed = cast("list[object]", several) if isinstance(several, list) else [several]
        names = [str(one) for one in listed]
        options["data"] = _data(names, given.data)
        if not options["data"]:
            folders = (f"--data {one.rpartition(':')[2]}=DIR" for one in names)
            skipped = f"no data: give {' or '.join(folders)}"
    if "gpus" in options and given.gpus is not None:
        more = _without_missing_gpus(options, given.gpus)
        lacking += [f"Run {run.id}: {more}."] * bool(more)
        skipped = skipped or more * (not options["gpus"])
    if "weights" in options:
        options["weights"] = given.weights
        if given.weights is None:
            lacking.append(f"Run {run.id}: weights are random; --weights DIR has the pretrained.")
    if given.device:
        options["device"] = given.device
    return Planned(run, networks, options, skipped, lacking)


def _without_missing_gpus(options: Options, there: int) -> str:
    """Leave numbers of GPUs that the machine has not out of the options; which, in words."""
    asked = parse_numbers(str(options["gpus"]), "--gpus")
    options["gpus"] = ",".join(str(count) for count in asked if count <= there)
    if options["gpus"] == "1":
        options.pop("compress", None)  # there is nothing to exchange
    more = ", ".join(str(count) for count in asked if count > there)
    return f"not over {more} GPUs: this machine has {there}" if more else ""


def _data(names: Sequence[str], folders: Mapping[str, Path]) -> str:
    """The first of the data that is there, as "cifar10:DIR"; "" where none is."""
    for one in names:
        kind, _, name = one.partition(":")
        if kind in OWN_DATA:
            return kind
        if (name or kind) in folders:
            return f"{kind}:{folders[name or kind]}"
        if name and Path(name).expanduser().is_dir():
            return one
    return ""


def _value(text: str) -> str | bool:
    return {"true": True, "false": False}.get(text, text)


def _check(one: Planned, commands: Commands) -> None:
    """UserError or TypeError for options that the command refuses, before anything runs."""
    from e2e.recipes import parse_recipes

    if one.skipped:
        return
    for network in one.networks or [None]:
        _, words = asked(one, network, commands)
        if words["batch"] is not None:
            parse_numbers(str(words["batch"]), "--batch")
        if words.get("recipe") is not None:
            parse_recipes(words["recipe"])
        if one.run.command in ("train", "predict"):
            from e2e.commands.requests import request_of

            request_of(words.pop("network"), words, train=one.run.command == "train")


def asked(
    one: Planned, network: str | None, commands: Commands, **more: Any
) -> tuple[list[str], Options]:
    """A run's command as it would be typed, and what it is asked by these words."""
    with called(commands[one.run.command], [network], {**one.options, **more}) as words:
        context = get_current_context()
        return typed(context.command, given_to(context)), dict(words)


# ---------------------------------------------------------------- running


def begun(out: Path, state: State, content: bytes) -> State:
    """The state to go on with in a folder, which is made. UserError if it holds another study."""
    path = out / STATE
    if path.exists():
        before = read_state(out)
        for name in IDENTITY:
            then, now = getattr(before, name), getattr(state, name)
            if then != now:
                raise UserError(
                    f"{out} holds {before.study} with {name} {then}, not {now}; give the same, or "
                    "another --out"
                )
        return replace(before, lacking=state.lacking)
    if out.exists() and any(out.iterdir()):
        raise UserError(f"--out {out} is not empty, and holds no study; choose another folder")
    try:
        (out / RUNS).mkdir(parents=True, exist_ok=True)
        write_text(content.decode().rstrip("\n"), out / TOML)
    except OSError as error:
        raise UserError(f"--out {out}: cannot write there ({error.strerror})") from None
    return _kept(out, state)


def read_state(out: Path) -> State:
    """The state of a folder. UserError where it holds none, or a damaged one."""
    path = out / STATE
    if not path.exists():
        raise UserError(f"{out} holds no study: it has no {STATE}")
    try:
        return State(**cast("Any", read_json(path)))
    except TypeError:
        raise UserError(f"{path} is damaged, or of another version") from None


def _kept(out: Path, state: State) -> State:
    """The same state, after writing it. UserError where the disk refuses."""
    try:
        write_text(json.dumps(asdict(state), indent=1), out / STATE)
    except OSError as error:
        raise UserError(f"cannot write {out / STATE} ({error.strerror})") from None
    return state


def run_all(
    todo: Sequence[Planned], out: Path, state: State, commands: Commands, console: Console,
    *, quiet: bool,
) -> State:  # fmt: skip
    """Start what is not done yet; a run that breaks off is a reason, and the others go on."""
    with claimed(out / STATE, "--out"):
        for number, one in enumerate(todo, 1):
            name = one.run.id
            if name in state.done:
                continue
            failed = {other: why for other, why in state.failed.items() if other != name}
            done = list(state.done)
            console.print(f"\n{state.study}, run {name} ({number} of {len(todo)})")
            try:
                if one.skipped:
                    raise UserError(one.skipped)
                for network in one.networks or [None]:
                    _start(one, network, out / RUNS / f"{name}.json", commands, quiet=quiet)
                done.append(name)
            except UserError as error:
                # A report is handed on: it has no folder of this machine.
                failed[name] = str(error).replace(f"{out}/", "")
                console.print(f"not measured: {error}")
            state = _kept(out, replace(state, done=done, failed=failed))
    return state


def _start(
    one: Planned, network: str | None, path: Path, commands: Commands, *, quiet: bool
) -> None:
    """Add what the command measures of this network to the run file. UserError where it cannot."""
    from e2e.commands.requests import request_of
    from e2e.commands.stalls import run_loaders, run_stalls
    from e2e.commands.train import run_training

    file = {"resume" if path.exists() else "json": path}
    _, words = asked(one, network, commands, quiet=quiet, **file)
    if one.run.command == "loader":
        backend, workers, cold = (words.pop(key) for key in ("backend", "workers", "cold"))
        run_loaders(backend, workers, cold, words)
    elif one.run.command == "stalls":
        name, workers, measure = (words.pop(key) for key in ("network", "workers", "measure"))
        run_stalls(name, workers, measure, words)
    else:
        train = one.run.command == "train"
        run_training(request_of(words.pop("network"), words, train=train))
