"""`study list`, `show NAME`, `report DIR`, and `study NAME` itself."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from e2e.studies.expand import expand, layers
from e2e.studies.factors import FACTORS
from e2e.studies.run import RUNS, TOML, State, begun, device_of, read_state, run_tasks
from e2e.studies.schema import check_factor, content_of, read_study, shipped
from e2e.studies.tasks import Machine, Plan
from e2e.studies.types import Study
from kernels.error_words import suggest
from microbench import fmt
from microbench.device.host import usable_cores
from microbench.errors import NothingMeasured, UserError
from microbench.report.screen import make_console
from microbench.report.table import Column, Part, Row, Table, screen

if TYPE_CHECKING:
    from rich.console import Console

WORDS = ("list", "show", "report")
DEVICES = Path("/dev")
SMOKE = "smoke"  # the profile that a CPU can run
MOST_ROWS = 16  # of a table on the screen


def run_study(
    words: Sequence[str], *, profile: str, data: Sequence[str], weights: Path | None,
    gpus: str | None, out: Path | None, sets: Sequence[str], dry_run: bool, device: str,
    quiet: bool,
) -> None:  # fmt: skip
    """What the words ask. UserError for a mistake; NothingMeasured where no cell was measured."""
    console = make_console(quiet=quiet)
    first, *rest = words or ["list"]
    if first == "list" and not rest:
        _list(console)
    elif first in ("show", "report") and len(rest) == 1:
        if first == "show":
            _show(read_study(rest[0]), console)
        else:
            report(Path(rest[0]), console)
    elif first in WORDS or rest:
        raise UserError("study takes list, show NAME, report DIR, or one NAME or FILE.toml")
    else:
        study = read_study(first)
        given = parse_sets(sets)
        if gpus is not None:
            given |= parse_sets([f"gpus={gpus}"])
        machine = machine_of(device)
        folders = _folders(data)
        if device != "auto":
            study = replace(study, defaults={**study.defaults, "device": device})
        plan = expand(layers(study, profile, given), machine, folders, weights)
        if study.retired:
            console.print(f"Not read any more: {', '.join(study.retired)}.", style="dim")
        state = State(study.name, study.sha256, profile, given, tuple(sorted(folders)),
                      asdict(machine), plan.lacking)  # fmt: skip
        if dry_run:
            show_plan(study, state, plan, console)
            return
        target = out or Path(f"study-{study.name}-{profile}")
        _run(study, begun(target, state, content_of(first)), plan, target, console, quiet)


def _run(
    study: Study, state: State, plan: Plan, out: Path, console: Console, quiet: bool
) -> None:  # fmt: skip
    todo = sum(not task.skipped for task in plan.tasks)
    console.print(
        f"{study.title}: profile {state.profile}, {fmt.count(todo, 'task')}"
        f"{_about(study, state)}; into {out}"
    )
    on_cpu = state.machine["kind"] == "cpu"
    if on_cpu and SMOKE in study.profiles and state.profile != SMOKE:
        console.print(f"There is no GPU here: --profile {SMOKE} is made for a CPU.")
    run_tasks(study, plan, out, state, console, quiet=quiet)
    if not report(out, console):
        raise NothingMeasured


def _about(study: Study, state: State) -> str:
    """How long the profile takes, where it runs as it is in the file."""
    about = study.profiles[state.profile].about
    return f", about {about}" if about and not state.sets else ""


def report(out: Path, console: Console) -> int:
    """Write the report of a folder from its run files; returns how many cells were measured."""
    from e2e.studies import report as reports
    from e2e.studies.cells import RAN, cells_of

    state = read_state(out)
    study = read_study(str(out / TOML))
    kind, run = device_of(out)
    data = {name: Path(name) for name in state.data}
    machine = Machine(**cast("Any", dict(state.machine)))
    plan = expand(layers(study, state.profile, state.sets), machine, data, None)
    plan = replace(plan, lacking=state.lacking)
    cells = cells_of(plan, out / RUNS, state, kind)
    found = reports.Found(study, plan, state, cells, run)
    parts = reports.write_report(found, out)
    console.print()
    for line in reports.answer_of(found):
        console.print(line, style="bold")
    for part in parts[: len(study.tables)]:
        _print_part(part, console)
    console.print(f"\nPage: {out / reports.PAGE}; also {reports.TEXT} and {reports.CELLS}")
    return sum(cell.status == RAN for cell in cells)


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


def machine_of(device: str) -> Machine:
    """The machine as a plan needs it, without loading torch."""
    gpus = sum(one.name[6:].isdecimal() for one in DEVICES.glob("nvidia[0-9]*"))
    kind = "cpu" if device == "cpu" or (device == "auto" and not gpus) else "cuda"
    return Machine(kind, usable_cores(), max(1, gpus))


def parse_sets(words: Sequence[str]) -> dict[str, Any]:
    """Factors of "batch=128,512". UserError for an unknown factor or a value that cannot be."""
    found: dict[str, Any] = {}
    for name, text in _pairs(words, "--set", "FACTOR=VALUE, or FACTOR=A,B"):
        if name not in FACTORS:
            near = suggest(name, FACTORS) or "; docs/studies.md has the list"
            raise UserError(f"--set: unknown factor {name!r}{near}")
        values = [_parsed(one) for one in text.split(",")]
        found[name] = values if len(values) > 1 else values[0]
        check_factor(name, found[name], "--set ")
    return found


def _parsed(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _folders(words: Sequence[str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name, folder in _pairs(words, "--data", "NAME=DIR, for example cifar10=/data/cifar10"):
        found[name] = Path(folder).expanduser()
        if not found[name].is_dir():
            raise UserError(f"--data {name}={folder}: no such folder")
    return found


def _pairs(words: Sequence[str], option: str, form: str) -> Iterator[tuple[str, str]]:
    for word in words:
        name, _, value = word.partition("=")
        if not value:
            raise UserError(f"{option} {word}: write {form}")
        yield name, value


# ---------------------------------------------------------------- screens


def _list(console: Console) -> None:
    width = max(map(len, shipped()))
    for name in shipped():
        study = read_study(name)
        profiles = ", ".join(f"{one} {p.about}".strip() for one, p in study.profiles.items())
        console.print(f"{name:{width}}  {study.title}")
        console.print(f"{'':{width}}  {profiles}", style="dim")
    console.print(
        "\nTimes are estimates. study show NAME says what one measures; "
        "study NAME --profile quick runs it."
    )


def _show(study: Study, console: Console) -> None:
    console.print(study.title, style="bold")
    if study.question:
        console.print(study.question)
    for part in study.parts:
        own = ", ".join(f"{name} {_short(value)}" for name, value in part.factors.items())
        console.print(f"\npart {part.id}: {', '.join(part.measure)}")
        console.print(f"  {own or 'as the defaults'}", style="dim")
    own = ", ".join(f"{name} {_short(value)}" for name, value in study.defaults.items())
    console.print(f"\ndefaults: {own}", style="dim")
    if study.differences:
        console.print("\nUnlike the original:")
        for line in study.differences:
            console.print(f"  {line}")
    rows = sum(len(one.rows) for one in study.published)
    console.print(f"\n{fmt.count(rows, 'published row')}; profiles: {', '.join(study.profiles)}")


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_short, cast("list[Any]", value)))
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return "{" + ", ".join(f"{k} {_short(v)}" for k, v in pairs.items()) + "}"
    return str(value)


def show_plan(study: Study, state: State, plan: Plan, console: Console) -> None:
    """Print the tasks of a plan. Nothing runs."""
    columns: list[Column[Any]] = [
        Column("part", lambda t: t.part, key=True),
        Column("network", lambda t: t.network),
        Column("recipes", lambda t: ", ".join(t.recipes) if t.kind != "loader" else ""),
        Column("batch", lambda t: ", ".join(map(str, t.batches))),
        Column("data", lambda t: t.words["data"].partition(":")[0], drop=2),
        Column("workers", lambda t: ", ".join(map(str, t.workers)) * (t.kind != "train")
               or str(t.words.get("workers", "")), drop=3),
        Column("measures", lambda t: ", ".join(t.measure), drop=1),
    ]  # fmt: skip
    rows = [Row(t, f"not testable here: {t.skipped}" * bool(t.skipped)) for t in plan.tasks]
    console.print(f"{study.title}: profile {state.profile}", style="bold")
    console.print(*screen(Table(columns, list(rows)), console.width).lines, sep="\n")
    for name, why in plan.lacking.items():
        console.print(f"{name}: {why}", style="dim")
    todo = sum(not task.skipped for task in plan.tasks)
    console.print(f"{fmt.count(todo, 'task')}{_about(study, state)}. Nothing was run.")
