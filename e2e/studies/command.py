"""`study list`, `show NAME`, `report DIR`, and `study NAME` itself."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from e2e.studies.budget import estimate_s, scaled, task_s
from e2e.studies.expand import layers
from e2e.studies.factors import FACTORS
from e2e.studies.schema import check_factor, content_of, read_study, seconds, shipped
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

    from e2e.studies.report import Judged

WORDS = ("list", "show", "report")
DEVICES = Path("/dev")
SLOW = 3  # times the budget: a profile that is for another machine
MOST_ROWS = 16  # of a table on the screen


def run_study(
    words: Sequence[str], *, profile: str, budget: str | None, data: Sequence[str],
    weights: Path | None, gpus: str | None, out: Path | None, sets: Sequence[str], dry_run: bool,
    device: str, quiet: bool,
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
        budget_s = seconds(budget) if budget else _profile_budget_s(study, profile)
        if device != "auto":
            study = replace(study, defaults={**study.defaults, "device": device})
        plan = scaled(layers(study, profile, given), budget_s, machine, folders, weights)
        if dry_run:
            show_plan(study, profile, plan, machine, budget_s, console)
            return
        content = content_of(first)
        target = out or Path(f"study-{study.name}-{profile}")
        _run(study, content, plan, machine, target, console, quiet, weights, dict(
            profile=profile, budget_s=budget_s, sets=given, data=tuple(sorted(folders)),
        ))  # fmt: skip


def _profile_budget_s(study: Study, profile: str) -> float:
    layers(study, profile, {})  # UserError for one that is not there
    return study.profiles[profile].budget_s


def _run(
    study: Study, content: bytes, plan: Plan, machine: Machine, out: Path, console: Console,
    quiet: bool, weights: Path | None, asked: dict[str, Any],
) -> None:  # fmt: skip
    from e2e.studies.run import State, begun, run_tasks

    state = State(
        study.name, study.sha256, machine=asdict(machine), lacking=plan.lacking, **asked
    )  # fmt: skip
    state = begun(out, state, content)
    todo = sum(not task.skipped for task in plan.tasks)
    console.print(
        f"{study.title}: profile {state.profile}, {fmt.count(todo, 'task')}, about "
        f"{fmt.rough_duration(estimate_s(plan, machine))} (an estimate); into {out}"
    )
    if machine.kind == "cpu" and estimate_s(plan, machine) > SLOW * state.budget_s:
        console.print("There is no GPU here: --profile smoke is made for a CPU.")
    run_tasks(study, plan, out, state, console, quiet=quiet)
    if not report(out, console):
        raise NothingMeasured


def report(out: Path, console: Console) -> int:
    """Write the report of a folder from its run files; returns how many cells were measured."""
    from e2e.studies import report as reports
    from e2e.studies.cells import RAN, cells_of
    from e2e.studies.run import RUNS, TOML, device_of, read_state

    state = read_state(out)
    study = read_study(str(out / TOML))
    kind, run = device_of(out)
    data = {name: Path(name) for name in state.data}
    machine = Machine(**cast("Any", dict(state.machine)))
    laid = layers(study, state.profile, state.sets)
    plan = scaled(laid, state.budget_s, machine, data, None)
    plan = replace(plan, lacking=state.lacking)
    cells = cells_of(plan, out / RUNS, state.failed, kind)
    found = reports.Found(study, plan, state, cells, run)
    parts = reports.write_report(found, out)
    console.print()
    for line in reports.answer_of(found):
        console.print(line, style="bold")
    for part in parts[: len(study.tables)]:
        _print_part(part, console)
    _print_claims(reports.judged(study, cells), console)
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


def _print_claims(found: Sequence[Judged], console: Console) -> None:
    if found:
        console.print("\nWhat the author says", style="bold underline")
    for one in found:
        number = f": {one.answer.number} in {one.answer.cell}" if one.answer.number else ""
        why = f" ({one.why})" if one.why else ""
        console.print(f'"{one.claim.text}"')
        console.print(f"  {one.verdict}{number}{why}", style="bold")


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
        profiles = ", ".join(
            f"{one} {fmt.rough_duration(p.budget_s)}" for one, p in study.profiles.items()
        )
        console.print(f"{name:{width}}  {study.title}")
        console.print(f"{'':{width}}  {profiles}", style="dim")
    console.print("\nstudy show NAME says what one measures; study NAME --profile quick runs it.")


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
    for claim in study.claims:
        console.print(f"\nclaim {claim.id}: {claim.text}")
        how = f"test: {claim.test.text}" if claim.test else f"not testable: {claim.untestable}"
        console.print(f"  {how}", style="dim")
    for puzzle in study.puzzles:
        console.print(f"\npuzzle {puzzle.id}: {puzzle.text}")
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


def show_plan(
    study: Study, profile: str, plan: Plan, machine: Machine, budget_s: float, console: Console
) -> None:
    """Print the tasks of a plan, what is cut and the estimate. Nothing runs."""
    columns: list[Column[Any]] = [
        Column("part", lambda t: t.part, key=True),
        Column("network", lambda t: t.network),
        Column("recipes", lambda t: ", ".join(t.recipes) if t.kind != "loader" else ""),
        Column("batch", lambda t: ", ".join(map(str, t.batches))),
        Column("data", lambda t: t.words["data"].partition(":")[0], drop=2),
        Column("workers", lambda t: ", ".join(map(str, t.workers)) * (t.kind != "train")
               or str(t.words.get("workers", "")), drop=3),
        Column("measures", lambda t: ", ".join(t.measure), drop=1),
        Column("about", lambda t: fmt.rough_duration(task_s(t, machine)), right=True),
    ]  # fmt: skip
    rows = [Row(t, f"not testable here: {t.skipped}" * bool(t.skipped)) for t in plan.tasks]
    console.print(f"{study.title}: profile {profile}", style="bold")
    console.print(*screen(Table(columns, list(rows)), console.width).lines, sep="\n")
    for cut in plan.cuts:
        console.print(f"cut in {cut.part}: {cut.factor} {cut.asked} -> {cut.done}")
    for name, why in plan.lacking.items():
        console.print(f"{name}: {why}", style="dim")
    about_s = estimate_s(plan, machine)
    fits = "" if about_s <= budget_s else ", and nothing more can be cut: try --profile smoke"
    console.print(
        f"About {fmt.rough_duration(about_s)} of a budget of {fmt.rough_duration(budget_s)}, by "
        f"arithmetic{fits}. Nothing was run."
    )
