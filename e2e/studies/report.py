"""The report of a study: the published tables beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from e2e.report import ranks
from e2e.report.arms import view_of
from e2e.report.figures import ratio
from e2e.results.baselines import scaled
from e2e.studies.cells import NAMED, RAN, Cell
from e2e.studies.measures import COLUMNS, gain_of
from e2e.studies.run import RUNS, STATE, State
from e2e.studies.tables import table_of
from e2e.studies.tasks import Plan
from e2e.studies.types import Study
from microbench import fmt
from microbench.errors import UserError
from microbench.report.page import report_page, write_page
from microbench.report.table import Column, Part, Row, Table, markdown, records, write_csv
from microbench.results.runfile import write_text
from microbench.results.types import Run

PAGE, TEXT, CELLS = "report.html", "report.md", "cells.csv"


@dataclass(frozen=True)
class Found:
    """Everything that a report is made of. `run` is one of the run files; None: none yet."""

    study: Study
    plan: Plan
    state: State
    cells: Sequence[Cell]
    run: Run | None

    @property
    def device(self) -> str:
        """The name of the device."""
        return fmt.clean(str(self.run.device.get("name"))) if self.run else "nothing yet"


def write_report(found: Found, out: Path) -> list[Part]:
    """Write page, Markdown and CSV into a folder; returns the parts. UserError if it cannot."""
    parts = parts_of(found)
    title = f"{found.study.title}, on {found.device}"
    about = about_of(found)
    said = answer_of(found)
    write_page(report_page(title, about, said, parts, found.run), out / PAGE)
    lines = [f"# {title}", "", *about, "", *(f"**{line}**" for line in said), ""]
    for part in parts:
        lines += [f"## {part.title}", ""]
        lines += [markdown(part.table)] if part.table else []
        lines += [f"{line}\n" for line in part.below]
    try:
        write_text("\n".join(lines).rstrip("\n"), out / TEXT)
        write_text(write_csv([records(cells_table(found.cells))]).rstrip("\n"), out / CELLS)
    except OSError as error:
        raise UserError(f"cannot write the report in {out} ({error.strerror})") from None
    return parts


def about_of(found: Found) -> list[str]:
    """What was run: the study's question, its seed, profile and data."""
    state = found.state
    data = ", ".join(dict.fromkeys(str(c.factors.get("data")) for c in found.cells))
    ran = sum(cell.status == RAN for cell in found.cells)
    made = any(cell.generated for cell in found.cells if cell.status == RAN)
    return [
        *([found.study.question] if found.study.question else []),
        f"Study {found.study.name}, profile {state.profile}, data: {data}"
        + " (generated: accuracies are not the author's)" * made
        + f"; {fmt.count(ran, 'cell')} of {len(found.cells)} measured.",
    ]


def answer_of(found: Found) -> list[str]:
    """The answer in two sentences: what stands out, and what was left out.

    Only a speedup whose interval is wholly above 1, and narrow enough, stands out.
    """
    lines: list[str] = []
    gains = [(g, c) for c in found.cells if c.training and (g := gain_of(c.training))]
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
    lost = sum(cell.status != RAN for cell in found.cells)
    if lost:
        lines.append(f"{fmt.count(lost, 'cell')} without a measurement: listed in the report.")
    return lines


def parts_of(found: Found) -> list[Part]:
    """All parts of the report, in its order."""
    study = found.study
    by_name = {one.table: one for one in study.published}
    parts: list[Part] = []
    for form in study.tables:
        table, below = table_of(form, by_name[form.published], found.cells, found.device)
        parts.append(Part(form.title, table, below))
    parts += [part for one in study.parts for part in _scaling(one.id, found)]
    parts.append(Part("Every cell", cells_table(found.cells), [f"{CELLS} has all columns."]))
    differences = [*study.differences, *(f"{k}: {why}." for k, why in found.plan.lacking.items())]
    if differences:
        parts.append(Part("What differs from the original", None, differences))
    reasons: dict[str, list[str]] = {}
    for cell in found.cells:
        if cell.status != RAN:
            reasons.setdefault(f"{cell.status}: {cell.reason}", []).append(cell.id)
    if reasons:
        lines = [f"{reason}: {', '.join(ids)}." for reason, ids in reasons.items()]
        parts.append(Part("Cells without a measurement", None, lines))
    again = f"python -m e2e study {study.name} --profile {found.state.profile}"
    parts.append(Part("Run it again", None, [
        f"{again}; the report alone: python -m e2e study report DIR.",
        f"{STATE} and {RUNS}/ hold what was measured; sha256 of the study: {study.sha256}.",
    ]))  # fmt: skip
    return parts


def _scaling(part: str, found: Found) -> list[Part]:
    """How a part of the study scales over GPUs, and what its exchange of gradients costs."""
    trainings = [cell.training for cell in found.cells if cell.part == part and cell.training]
    if found.run is None or not scaled(trainings):
        return []
    view = view_of(replace(found.run, others=tuple(trainings)))
    return [
        replace(one, title=f"{one.title}, part {part}", below=one.notes)
        for one in (ranks.scaling_part(view), ranks.exchange_part(view))
    ]


def cells_table(cells: Sequence[Cell]) -> Table[Cell]:
    """Every cell with its factors and columns; a column that nothing has is left out."""
    factors = list(dict.fromkeys(name for cell in cells for name in cell.factors))
    others = dict.fromkeys(n for c in cells for n in c.values if n not in COLUMNS)
    names = [
        name
        for name in [*COLUMNS, *others]
        if any(cell.values.get(name) is not None for cell in cells)
    ]

    def value(name: str, cell: Cell) -> Any:
        return cell.values.get(name)

    def text(name: str, cell: Cell) -> str:
        found = cell.values.get(name)
        return "" if found is None else COLUMNS[name].text(found) if name in COLUMNS else (
            fmt.number(found)
        )  # fmt: skip

    def factor(name: str, cell: Cell) -> str:
        return str(cell.factors.get(name, ""))

    hidden = ("why", "accuracy", "losses")
    columns: list[Column[Cell]] = [
        Column("cell", lambda cell: cell.id, key=True, csv={"cell": lambda cell: cell.id}),
        *(Column(name, partial(factor, name), key=True, csv={name: partial(factor, name)})
          for name in factors),
        Column("status", lambda cell: cell.status, csv={
            "status": lambda cell: cell.status, "reason": lambda cell: cell.reason,
        }),
        *(
            Column(
                COLUMNS[name].title if name in COLUMNS else name,
                None if name in hidden else partial(text, name), right=True, drop=9,
                csv={name: partial(value, name)},
            )
            for name in names
        ),
    ]  # fmt: skip
    return Table(columns, [Row(cell) for cell in cells])
