"""The author's tables, with the published cells beside the measured ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from e2e.report.figures import ratio as in_words
from e2e.results.baselines import BASELINES
from e2e.results.types import Training
from e2e.studies.cells import RAN, UNTESTABLE, Cell, differing
from e2e.studies.measures import COLUMNS, MEASURES, clock, gain_of
from e2e.studies.types import Published, TableForm
from microbench import fmt
from microbench.report.table import Column, Row, Table
from microbench.results.values import RUINED_PCT

DURATION = re.compile(r"(?:(\d+)h )?(\d+)min (\d+)s")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
UNIT = re.compile(r"[\d.]+( ?[A-Za-z%]+)$")
# Columns that a CPU has not, and the field of a training that has each.
OF_GPU = {
    "gpu_util_pct": "state", "nvml_mb": "memory_process_bytes", "reserved_mb":
    "memory_reserved_bytes", "allocated_mb": "memory_peak_bytes",
}  # fmt: skip
HERE = "here"


@dataclass(frozen=True)
class Text:
    """A cell of a grid; `faint` where it cannot be compared."""

    text: str = ""
    faint: bool = False


Line = list[Text]


def number_of(text: Any) -> float | None:
    """The number that a published cell begins with: seconds of "57min 17s", 40.92 of "40.92 ± 2".

    None where there is none.
    """
    if isinstance(text, int | float):
        return float(text)
    found = DURATION.match(str(text))
    if found:
        hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return 3600.0 * hours + 60 * minutes + seconds
    start = NUMBER.match(str(text))
    return float(start[0].replace(",", "")) if start else None


def published_ratio(published: Published, record: Mapping[str, Any], column: str) -> float | None:
    """A published number against float32 on the same machine, as times faster or times as much.

    Of seconds it is the base over the own; of all else the own over the base.
    """
    base = next(
        (
            other
            for other in published.records()
            if _recipe(published, other) in BASELINES["fp32"]
            and all(other[k] == record[k] for k in published.key if k not in RECIPE_KEYS)
        ),
        None,
    )
    own, of = number_of(record[column]), number_of(base[column]) if base else None
    if not own or not of or base == record:
        return None
    return of / own if column.endswith("_s") and not column.endswith("per_s") else own / of


RECIPE_KEYS = ("recipe", "method", "precision")  # keys that name the precision


def _recipe(published: Published, record: Mapping[str, Any]) -> Any:
    word = next((record[key] for key in published.key if key in RECIPE_KEYS), None)
    return published.alias.get(str(word), word)


def own_word(published: Published, key: str, cell: Cell) -> str:
    """What the author would call a factor of a measured cell."""
    if key == published.machine:
        return HERE
    factor = "recipe" if key in RECIPE_KEYS else key
    value = cell.factors.get(factor, "")
    if str(value) in published.alias:  # the author's word for it too
        return str(value)
    words = (word for word, ours in published.alias.items() if str(ours) == str(value))
    return next(words, str(value))


# ---------------------------------------------------------------- laid out


def table_of(
    form: TableForm, published: Published, cells: Sequence[Cell], device: str
) -> tuple[Table[Line], list[str]]:
    """A row a published row, then a row a measured cell; and why some cannot be compared."""
    ours = [
        _with_elsewhere(form, published, cell, cells) for cell in cells
        if cell.part in form.parts and "recipe" in cell.factors
    ]  # fmt: skip
    keys = published.key
    titles = [*keys, *form.columns.values(), *([form.ratio_title] if form.ratio else []), "cell"]
    lines: list[Line] = []
    for record in published.records():
        line = [Text(str(record[name])) for name in (*keys, *form.columns)]
        if form.ratio:
            times = published_ratio(published, record, form.ratio)
            line.append(Text("" if times is None else f"{times:.3f}"))
        lines.append([*line, Text("published")])
    shown = {"recipe" if key in RECIPE_KEYS else key for key in keys}
    beside = [name for name in differing(ours) if name not in shown]
    for cell in ours:
        line = [Text(own_word(published, key, cell)) for key in keys]
        line += [_value(published, name, cell) for name in form.columns]
        if form.ratio:
            gain = gain_of(cell.training) if cell.training else None
            line.append(Text(in_words(gain) if gain else ""))
        lines.append([*line, Text(", ".join([cell.id, *cell.words(beside)]))])

    def column(i: int, title: str) -> Column[Line]:
        return Column(
            title, lambda line: line[i].text, right=len(keys) <= i < len(titles) - 1,
            key=i < len(keys), faint=lambda line: line[i].faint,
            csv={title: lambda line: line[i].text},
        )  # fmt: skip

    notes = _notes(form, published, ours, device)
    if any(text.text.endswith(fmt.UNCERTAIN) for line in lines for text in line):
        notes.append(f"{fmt.UNCERTAIN}: beyond ±{RUINED_PCT:.0f} %, too uncertain for a verdict.")
    columns = [column(i, title) for i, title in enumerate(titles)]
    return Table(columns, [Row(line) for line in lines]), notes


def _with_elsewhere(
    form: TableForm, published: Published, cell: Cell, cells: Sequence[Cell]
) -> Cell:
    """The cell with the columns that other parts measure, each from the cell over the most GPUs."""
    alike = ("network", "recipe", "batch")
    values = dict(cell.values)
    for column, part in form.elsewhere.items():
        name = measured_as(published, column)
        measured = [
            other for other in cells
            if other.part == part and other.values.get(name) is not None
            and all(other.factors.get(key) == cell.factors.get(key) for key in alike)
        ]  # fmt: skip
        if measured:
            most = max(measured, key=lambda other: int(other.factors.get("gpus", 1)))
            values[name] = most.values[name]
    return replace(cell, values=values)


def _value(published: Published, column: str, cell: Cell) -> Text:
    """A measured value as the author writes it, faint where it cannot be held against theirs."""
    if cell.status != RAN and cell.training and cell.training.fits_batch:
        return Text(f"out of memory; batch {cell.training.fits_batch} fits", True)
    if cell.status != RAN:
        return Text(UNTESTABLE if cell.status == UNTESTABLE else cell.status, True)
    name = measured_as(published, column)
    value = cell.values.get(name, cell.factors.get(name))
    if value is None:
        return Text(UNTESTABLE if lacks(name, cell) else "-", True)
    write = COLUMNS[name].text if name in COLUMNS else _plainly
    if any(DURATION.match(str(record[column])) for record in published.records()):
        write = clock
    text = write(value) + _unit(published, column)
    deviation = cell.values.get(name.rsplit("_", 1)[0] + "_std")
    if deviation is not None and any("±" in str(record[column]) for record in published.records()):
        text += f" ± {deviation:.2f}"
    return Text(text, not _compares(published, column, cell))


def _plainly(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _unit(published: Published, column: str) -> str:
    """ "%" or " MB", where every published number of a column ends so."""
    texts = [str(record[column]) for record in published.records()]
    ends = {found[1] for text in texts if (found := UNIT.match(text))}
    return ends.pop() if len(ends) == 1 else ""


def measured_as(published: Published, column: str) -> str:
    """The name of our column for a published one."""
    return str(published.alias.get(f"column {column}", column))


def lacks(name: str, cell: Cell) -> str:
    """Why a cell that ran has no value in a column."""
    measures = [one for one in cell.measure if name in MEASURES[one].columns]
    if not measures:
        return "this part does not measure it"
    if name == "projected_s":
        return "no epochs were run to project from"
    if name in OF_GPU and OF_GPU[name] in Training.__dataclass_fields__:
        return "there is no GPU to read it from"
    return "training does not record it yet"


def _compares(published: Published, column: str, cell: Cell) -> bool:
    how = published.comparable.get(column, "ratios")
    if how.startswith("with "):
        return cell.factors.get("data") == how.removeprefix("with ")
    return how == "yes"


def _notes(form: TableForm, published: Published, ours: Sequence[Cell], device: str) -> list[str]:
    """Sentences below a table: who is here, and why columns or cells are grey."""
    found = [f"{HERE}: {device}. Grey: cannot be compared with the published cell."]
    steps = {repeat.steps for c in ours if c.training for repeat in c.training.repeats}
    if steps:
        found.append(f"A training here has {' or '.join(f'{n:,}' for n in sorted(steps))} steps.")
    if published.note:
        found.append(published.note)
    for column, title in form.columns.items():
        how = published.comparable.get(column, "ratios")
        if how.startswith("with ") and any(not _compares(published, column, c) for c in ours):
            kinds = ", ".join(dict.fromkeys(str(c.factors.get("data")) for c in ours))
            found.append(f"{title}: measured on {kinds} data, published on {how[5:]}.")
        elif column in published.reasons:
            found.append(f"{title}: {published.reasons[column]}.")
        name = measured_as(published, column)
        empty = [c for c in ours if c.status == RAN and c.values.get(name) is None]
        if column in form.elsewhere:
            part = form.elsewhere[column]
            what = COLUMNS[name].title if name in COLUMNS else name
            found.append(f"{title}: {what}, of part {part}, over the most GPUs that it had.")
            why = {f"part {part} has no value" for _ in empty}
        else:
            why = {lacks(name, cell) for cell in empty}
        found += [f"{title}, {UNTESTABLE}: {one}." for one in sorted(why) if one]
    reasons = dict.fromkeys(f"{c.status}: {c.reason}." for c in ours if c.status != RAN)
    return [*found, *reasons]
