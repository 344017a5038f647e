"""The cells of a study: what its run files have, each by the key of its case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.case import TrainCase, label_of
from e2e.results.loader_types import LoadCase, Loading
from e2e.results.types import PREDICTED, Training
from e2e.studies.columns import COLUMNS
from e2e.studies.run import RUNS, State
from e2e.studies.schema import Run, Study
from microbench import fmt
from microbench.report.table import Column, Row, Table
from microbench.results.runfile import read_run

NOT_RUN = "not run"
MEASURED = ("ok", PREDICTED)
ALWAYS = ("network", "recipe", "batch", "gpus", "data")  # of a case, in every table of cells
UNSEEN = ("why", "losses")  # in cells.csv only
GENERATED = ("generated", "made")  # accuracy on them compares with nothing published


@dataclass(frozen=True)
class Cell:
    """One result of a run. `id` is "RUN-N", as in cells.csv; `reason` is why it has no values.

    `case` None stands for what a run has not measured.
    """

    id: str
    run: Run
    status: str
    reason: str = ""
    case: TrainCase | LoadCase | None = None
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    training: Training | None = None

    @property
    def measured(self) -> bool:
        """Whether it has values."""
        return self.status in MEASURED

    def value(self, name: str) -> Any:
        """The value of a column, or else of a field of the case; None where it has neither."""
        found = self.values.get(name)
        return getattr(self.case, name, None) if found is None else found

    def words(self, names: Sequence[str]) -> list[str]:
        """These fields of its case in words: ["resnet50", "amp", "2 GPUs"]; usual ones are left
        out.
        """
        if not isinstance(self.case, TrainCase):
            return []
        return [text for name in names if (text := label_of(self.case, name))]


def cells_of(study: Study, state: State, out: Path) -> list[Cell]:
    """All cells of a folder: every result of each run, and a cell for what a run lacks.

    UserError for a damaged file.
    """
    found: list[Cell] = []
    for run in study.runs(state.profile):
        path = out / RUNS / f"{run.id}.json"
        read = read_run(path) if path.exists() else None
        results = read.others if read else ()
        epochs = read and read.settings.get("training", {}).get("epochs")
        for number, result in enumerate(results, 1):
            found.append(_cell(f"{run.id}-{number}", run, result, study.targets, epochs))
        if run.id not in state.done:
            why = state.failed.get(run.id) or ("broken off" if results else "not run yet")
            found.append(Cell(run.id, run, NOT_RUN, why))
    return found


def _cell(name: str, run: Run, result: Any, targets: Sequence[float], epochs: int | None) -> Cell:
    reason = result.reason or ""
    if not isinstance(result, Training):
        values = {"per_s": result.per_s} if isinstance(result, Loading) else {}
        return Cell(name, run, result.status, reason, result.case, values)
    values = {column: one.read(result) for column, one in COLUMNS.items()}
    for target in targets:
        times = result.seconds_to(target) if result.repeats else None
        values[f"s_to_{100 * target:g}_pct"] = times and times[0]
    values["epochs"] = epochs if result.repeats else None
    if epochs and run.of_epochs and values["iterations_s"] is not None:
        values["projected_s"] = values["iterations_s"] * run.of_epochs / epochs
    return Cell(name, run, result.status, reason, result.case, values, result)


def differing(cells: Sequence[Cell]) -> list[str]:
    """The fields in which the cases of cells differ, in the order of a case."""
    cases = [cell.case for cell in cells if cell.case]
    return [
        name for name in TrainCase.__dataclass_fields__
        if len({getattr(case, name) for case in cases if hasattr(case, name)}) > 1
    ]  # fmt: skip


def cells_table(cells: Sequence[Cell]) -> Table[Cell]:
    """Every cell with its fields and columns; a column that nothing has is left out."""
    fields = list(dict.fromkeys([*ALWAYS, *differing(cells)]))
    named = dict.fromkeys(name for cell in cells for name in [*COLUMNS, *cell.values])
    names = [name for name in named if any(c.values.get(name) is not None for c in cells)]

    def field_of(name: str) -> Column[Cell]:
        def text(cell: Cell) -> str:
            value = getattr(cell.case, name, None)
            return "" if value is None else str(value)

        return Column(name, text, key=True, csv={name: text})

    def column(name: str) -> Column[Cell]:
        title, write = name, fmt.number
        if name in COLUMNS:
            title, write = COLUMNS[name].title, COLUMNS[name].text

        def text(cell: Cell) -> str:
            value = cell.values.get(name)
            return "" if value is None else write(value)

        return Column(
            title, None if name in UNSEEN else text, right=True, drop=9,
            csv={name: lambda cell: cell.values.get(name)},
        )  # fmt: skip

    return Table(
        [
            Column("cell", lambda cell: cell.id, key=True, csv={"cell": lambda cell: cell.id}),
            *map(field_of, fields),
            Column("status", lambda cell: cell.status, csv={
                "status": lambda cell: cell.status, "reason": lambda cell: cell.reason,
                "key": lambda cell: cell.case.key if cell.case else "",
            }),
            *map(column, names),
        ],
        [Row(cell) for cell in cells],
    )  # fmt: skip
