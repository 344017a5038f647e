"""The report of a study: the published tables beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from e2e.report import ranks
from e2e.report.arms import view_of
from e2e.report.figures import ratio
from e2e.results.baselines import scaled
from e2e.studies.cells import GENERATED, Cell, cells_of, cells_table
from e2e.studies.columns import gain_of
from e2e.studies.run import RUNS, STATE, TOML, State, read_state
from e2e.studies.schema import Study, read_study
from e2e.studies.tables import part_of
from microbench import fmt
from microbench.errors import UserError
from microbench.report.export import report_page, write_page
from microbench.report.table import Part, markdown, records, write_csv
from microbench.results.runfile import read_run, write_text
from microbench.results.types import Run

PAGE, TEXT, CELLS = "report.html", "report.md", "cells.csv"
NAMED = ("network", "recipe", "batch", "workers", "loader", "gpus", "compress")


@dataclass(frozen=True)
class Report:
    """What a report is made of. `run` is one of the run files; None: none yet."""

    study: Study
    state: State
    cells: Sequence[Cell]
    run: Run | None

    @property
    def device(self) -> str:
        """The name of the device."""
        return fmt.clean(str(self.run.device.get("name"))) if self.run else "nothing yet"

    @property
    def published(self) -> list[Part]:
        """The published tables, with ours below."""
        return [part_of(one, self.cells, self.device) for one in self.study.published]


def read_report(out: Path) -> Report:
    """The report of a folder, from its run files. UserError where it holds no study."""
    state, study = read_state(out), read_study(str(out / TOML))
    first = next(iter(sorted((out / RUNS).glob("*.json"))), None)
    return Report(study, state, cells_of(study, state, out), read_run(first) if first else None)


def write_report(found: Report, out: Path) -> None:
    """Write page, Markdown and CSV into a folder. UserError if it cannot."""
    parts, about, answer = _parts(found), _about(found), answer_of(found.cells)
    title = f"{found.study.title or found.study.name}, on {found.device}"
    lines = [f"# {title}", "", *about, "", *(f"**{line}**" for line in answer), ""]
    for part in parts:
        lines += [f"## {part.title}", ""]
        lines += [markdown(part.table)] if part.table else []
        lines += [f"{line}\n" for line in part.below]
    write_page(report_page(title, about, answer, parts, found.run), out / PAGE)
    try:
        write_text("\n".join(lines).rstrip("\n"), out / TEXT)
        write_text(write_csv([records(cells_table(found.cells))]).rstrip("\n"), out / CELLS)
    except OSError as error:
        raise UserError(f"cannot write the report in {out} ({error.strerror})") from None


def _about(found: Report) -> list[str]:
    """What was run: the study's question, its profile and data."""
    measured = [cell for cell in found.cells if cell.measured]
    data = list(dict.fromkeys(str(cell.value("data")) for cell in measured))
    made = " (generated: accuracies are not the author's)" * any(one in GENERATED for one in data)
    return [
        *([found.study.question] if found.study.question else []),
        f"Study {found.study.name}, profile {found.state.profile}, data: {', '.join(data)}{made}; "
        f"{fmt.count(len(measured), 'cell')} measured.",
    ]


def answer_of(cells: Sequence[Cell]) -> list[str]:
    """What stands out, and what was left out.

    Only a speedup whose interval is wholly above 1, and narrow enough, stands out.
    """
    lines: list[str] = []
    gains = [(gain, c) for c in cells if c.training and (gain := gain_of(c.training))]
    proven = [
        (gain, cell) for gain, cell in gains
        if gain.ci95 and gain.ci95[0] > 1 and not gain.ruined_pct
    ]  # fmt: skip
    if proven:
        best, cell = max(proven, key=lambda pair: pair[0].ratio)
        words = ", ".join(cell.words(NAMED))
        lines.append(f"Largest speedup: {ratio(best)} times, {words} ({cell.id}).")
    elif gains:
        lines.append("No cell is faster than float32 beyond doubt.")
    lost = len({cell.run.id for cell in cells if not cell.measured})
    if lost:
        lines.append(f"{fmt.count(lost, 'run')} not measured, or not all of it: see below.")
    return lines


def _parts(found: Report) -> list[Part]:
    """All parts of the report, in its order."""
    study, state = found.study, found.state
    parts = [*found.published]
    parts += [part for run in study.runs(state.profile) for part in _scaling(run.id, found)]
    rows = [cell for cell in found.cells if cell.case]
    parts.append(Part("Every cell", cells_table(rows), [f"{CELLS} has all columns."]))
    differences = [*study.differences, *state.lacking]
    if differences:
        parts.append(Part("What differs from the original", None, differences))
    reasons = [f"{c.id}: {c.status}: {c.reason}." for c in found.cells if not c.measured]
    if reasons:
        parts.append(Part("Not measured", None, reasons))
    sets = "".join(f" --set {name}={value}" for name, value in state.sets.items())
    parts.append(Part("Run it again", None, [
        f"halfway study {study.name} --profile {state.profile}{sets}; the report alone: halfway "
        "study report DIR.",
        f"{STATE} and {RUNS}/ hold what was measured; sha256 of the study: {state.sha256}.",
    ]))  # fmt: skip
    return parts


def _scaling(run: str, found: Report) -> list[Part]:
    """How a run of the study scales over GPUs, and what its exchange of gradients costs."""
    trainings = [cell.training for cell in found.cells if cell.run.id == run and cell.training]
    if found.run is None or not scaled(trainings):
        return []
    view = view_of(replace(found.run, others=tuple(trainings)))
    return [
        replace(one, title=f"{one.title}, run {run}", below=one.notes)
        for one in (ranks.scaling_part(view), ranks.exchange_part(view))
    ]
