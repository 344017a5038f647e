"""A published table with ours below it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from e2e.report.figures import ratio as in_words
from e2e.results.baselines import BASELINES
from e2e.studies.cells import Cell, differing
from e2e.studies.columns import COLUMNS, DEVIATION, HERE, clock, gain_of
from e2e.studies.schema import Published, Shown
from microbench import fmt
from microbench.report.table import Column, Part, Row, Table
from microbench.results.types import RUINED_PCT

DURATION = re.compile(r"(?:(\d+)h )?(\d+)min (\d+)s")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
UNKNOWN = "-"


@dataclass(frozen=True)
class Text:
    """A place of the table; `faint` where it cannot be compared."""

    text: str = ""
    faint: bool = False


Line = list[Text]
Record = Mapping[str, Any]  # a published row, by key and column


def records_of(published: Published) -> list[Record]:
    """The rows by their keys and by our columns."""
    names = [*published.keys, *(column.value for column in published.columns)]
    return [dict(zip(names, row, strict=True)) for row in published.rows]


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


def published_ratio(published: Published, record: Record) -> float | None:
    """A published number against float32 on the same machine, as times faster or times as much.

    Of seconds it is the base over the own; of all else the own over the base.
    """
    (recipe,) = (key for key, field in published.keys.items() if field == "recipe")
    others = [key for key in published.keys if key != recipe]
    bases = (
        other for other in records_of(published)
        if published.words.get(str(other[recipe]), other[recipe]) in BASELINES["fp32"]
        and all(other[key] == record[key] for key in others)
    )  # fmt: skip
    base, column = next(bases, None), published.ratio_of
    own, of = number_of(record[column]), number_of(base[column]) if base else None
    if not own or not of or base == record:
        return None
    return of / own if column.endswith("_s") and not column.endswith("per_s") else own / of


def part_of(published: Published, cells: Sequence[Cell], device: str) -> Part:
    """A row a published row, then a row a cell of its runs; and why some cannot be compared."""
    ours = [cell for cell in cells if cell.run.id in published.runs and cell.training]
    keys, columns = published.keys, published.columns
    lines: list[Line] = []
    for record in () if published.template else records_of(published):
        texts = [str(value) for value in record.values()]
        if published.ratio_of:
            times = published_ratio(published, record)
            texts.append("" if times is None else f"{times:.3f}")
        lines.append([*map(Text, texts), Text("published")])
    beside = [name for name in differing(ours) if name not in keys.values()]
    for cell in ours:
        line = [Text(_own_word(published, field, cell)) for field in keys.values()]
        line += [_value(published, column, cell) for column in columns]
        if published.ratio_of:
            gain = cell.training and gain_of(cell.training)
            line.append(Text(in_words(gain) if gain else ""))
        lines.append([*line, Text(", ".join([cell.id, *cell.words(beside)]))])
    titles = [*keys, *(column.title for column in columns),
              *[published.ratio_title] * bool(published.ratio_of), "cell"]  # fmt: skip

    def column(i: int, title: str) -> Column[Line]:
        return Column(
            title, lambda line: line[i].text, right=len(keys) <= i < len(titles) - 1,
            key=i < len(keys), faint=lambda line: line[i].faint,
            csv={title: lambda line: line[i].text},
        )  # fmt: skip

    notes = _notes(published, ours, device)
    if any(text.text == UNKNOWN for line in lines for text in line):
        notes.append(f"{UNKNOWN}: the run does not measure it.")
    if any(text.text.endswith(fmt.UNCERTAIN) for line in lines for text in line):
        notes.append(f"{fmt.UNCERTAIN}: beyond ±{RUINED_PCT:.0f} %, too uncertain for a verdict.")
    table = Table([column(i, title) for i, title in enumerate(titles)], list(map(Row, lines)))
    return Part(published.title, table, notes)


def _own_word(published: Published, field: str, cell: Cell) -> str:
    """What the author would call a field of our case."""
    if field == HERE:
        return HERE
    value = str(cell.value(field))
    return next((word for word, ours in published.words.items() if ours == value), value)


def _value(published: Published, column: Shown, cell: Cell) -> Text:
    """Ours as the author writes it, faint where it cannot be held against theirs."""
    if not cell.measured:
        fits = cell.training and cell.training.fits_batch
        return Text(f"out of memory; batch {fits} fits" if fits else cell.status, True)
    value = cell.value(column.value)
    if value is None:
        return Text(UNKNOWN, True)
    texts = [str(record[column.value]) for record in records_of(published)]
    write = COLUMNS[column.value].text if column.value in COLUMNS else str
    if any(map(DURATION.match, texts)):
        write = clock
    text = write(value) + column.unit
    deviation = cell.values.get(column.value + DEVIATION)
    if deviation is not None and any("±" in one for one in texts):
        text += f" ± {deviation:.2f}"
    return Text(text, not _compares(column, cell))


def _compares(column: Shown, cell: Cell) -> bool:
    if column.compare.startswith("with "):
        return cell.value("data") == column.compare.removeprefix("with ")
    return column.compare == "yes"


def _notes(published: Published, ours: Sequence[Cell], device: str) -> list[str]:
    """Sentences below a table: who is here, and why columns or cells are grey."""
    found = [f"{HERE}: {device}. Grey: cannot be compared with the published cell."]
    if published.template:
        found = [f"{HERE}: {device}. The published table is a template without numbers."]
    steps = {repeat.steps for c in ours if c.training for repeat in c.training.repeats}
    if steps:
        found.append(f"A training here has {' or '.join(f'{n:,}' for n in sorted(steps))} steps.")
    if published.note:
        found.append(published.note)
    for column in published.columns:
        data = [str(cell.value("data")) for cell in ours if not _compares(column, cell)]
        if column.compare.startswith("with ") and data:
            kinds = ", ".join(dict.fromkeys(data))
            found.append(f"{column.title}: measured on {kinds} data, published on "
                         f"{column.compare[5:]}.")  # fmt: skip
        elif column.reason:
            found.append(f"{column.title}: {column.reason}.")
    return [*found, *dict.fromkeys(f"{c.id}: {c.reason}." for c in ours if c.reason)]
