"""A table: columns declared once, and its writers for the screen, Markdown, HTML and CSV.

A column has its text for a person and its raw values. A writer is a function of the table; only
this module lays out tables.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Generic, TypeVar

from rich.cells import cell_len
from rich.text import Text

from microbench import fmt
from microbench.results.types import Interval
from microbench.streams import printable

DIM = "dim"
COMPUTED = ("=", "+", "-", "@")  # how cells begin that a spreadsheet computes
MISSING = {"skipped": "skipped", "failed": "FAILED"}  # status -> how a sentence for a row begins
R = TypeVar("R")
Value = str | int | float | bool | None
Read = Callable[[R], str]


@dataclass(frozen=True)
class Column(Generic[R]):
    """One column: its text for a row, and where it is shown.

    `title` may have two lines. `cell` is the text on the screen and in Markdown; a column without
    it is not on the screen. `markdown` and `markdown_title` replace the two in Markdown. `csv` has
    the raw values by name (units in names); None is unknown.

    `key` columns name the row and come before its sentence; `always` columns are filled in Markdown
    beside a sentence too. To fit the width, columns with a higher `drop` are left out first; 0
    never is.
    """

    title: str = ""
    cell: Read[R] | None = None
    right: bool = False
    drop: int = 0
    bold: bool = False
    key: bool = False
    always: bool = False
    markdown: Read[R] | None = None
    markdown_title: str | None = None
    csv: Mapping[str, Callable[[R], Value]] = field(default_factory=dict[str, Callable[[R], Value]])


@dataclass(frozen=True)
class Row(Generic[R]):
    """`sentence`, if there is one, replaces all columns except the key columns.

    `markdown` replaces the sentence in Markdown.
    """

    item: R
    sentence: str = ""
    style: str = ""
    markdown: str = ""


@dataclass
class Table(Generic[R]):
    """Columns and rows. On the screen, None is a blank line and a plain string a heading.

    CSV begins with the names in `csv_order`, so that published names keep their place; the others
    follow in the order of the columns.
    """

    columns: Sequence[Column[R]]
    rows: list[Row[R] | str | None] = field(default_factory=list["Row[R] | str | None"])
    csv_order: Sequence[str] = ()

    def block(self, heading: str, rows: Iterable[Row[R]]) -> None:
        """Add rows under a heading ("" for none), after a blank line."""
        if self.rows:
            self.rows.append(None)
        if heading:
            self.rows.append(heading)
        self.rows += rows

    @property
    def items(self) -> list[Row[R]]:
        """The rows without headings and blank lines."""
        return [row for row in self.rows if isinstance(row, Row)]


@dataclass(frozen=True)
class Part:
    """A titled part of a report: a table, and sentences below it.

    `notes` say on a screen how to read the table.
    """

    title: str = ""
    table: Table[Any] | None = None
    below: Sequence[str] = ()
    notes: Sequence[str] = ()


# ---------------------------------------------------------------- screen


@dataclass(frozen=True)
class Screen(Generic[R]):
    """Lines ready to print, titles of the columns left out, and items whose sentence was cut."""

    lines: list[Text]
    left_out: list[str]
    cut: list[R]

    def left_out_note(self, width: int) -> str:
        """ "left out to fit 60 columns: power W"; "" where none was."""
        names = ", ".join(self.left_out)
        return f"left out to fit {fmt.count(width, 'column')}: {names}" if names else ""


@dataclass(frozen=True)
class _Line:
    """The texts of a row's cells by column."""

    cells: Mapping[int, str]
    sentence: str = ""
    style: str = ""


def screen(table: Table[R], width: int) -> Screen[R]:
    """The table in at most `width` characters.

    First the gaps between columns shrink, then columns are left out, least important first; last,
    lines are cut.
    """
    columns = [column for column in table.columns if column.cell]
    lines = [_line(row, columns) if isinstance(row, Row) else row for row in table.rows]
    filled = [line for line in lines if isinstance(line, _Line)]
    used = [i for i in range(len(columns)) if any(line.cells.get(i) for line in filled)]
    widths = [
        max(map(cell_len, [*column.title.split("\n"), *(line.cells.get(i, "") for line in filled)]))
        for i, column in enumerate(columns)
    ]
    kept = _fitting(used or [0], columns, widths, width)
    layout = _Layout(columns, widths, _gaps(kept, widths, width))
    texts = [*layout.head(), *map(layout.line, lines)]
    for text in texts:
        text.rstrip()
        text.truncate(width, overflow="ellipsis")
        text.no_wrap = True
    room = width - sum(widths[i] + 2 for i, column in enumerate(columns) if column.key)
    return Screen(
        texts,
        left_out=[one_line(columns[i].title) for i in used if i not in kept],
        cut=[row.item for row in table.items if row.sentence and cell_len(row.sentence) > room],
    )


def _line(row: Row[R], columns: Sequence[Column[R]]) -> _Line:
    cells = {
        i: column.cell(row.item)
        for i, column in enumerate(columns)
        if column.cell and (column.key or not row.sentence)
    }
    return _Line(cells, row.sentence, row.style)


def _fitting(
    used: Sequence[int], columns: Sequence[Column[R]], widths: Sequence[int], width: int
) -> list[int]:
    """The columns that fit, with a space between them."""
    kept = list(used)
    while sum(widths[i] for i in kept) + len(kept) - 1 > width:
        going = max(kept, key=lambda i: (columns[i].drop, i))
        if not columns[going].drop or len(kept) == 1:
            break
        kept.remove(going)
    return kept


def _gaps(kept: Sequence[int], widths: Sequence[int], width: int) -> dict[int, str]:
    """What follows each column: gaps are two spaces from the left while there is room, then one."""
    taken = sum(widths[i] for i in kept) + len(kept) - 1
    room = max(0, min(width - taken, len(kept) - 1))
    gaps = {i: " " * (2 if place < room else 1) for place, i in enumerate(kept)}
    gaps[kept[-1]] = ""
    return gaps


@dataclass(frozen=True)
class _Layout(Generic[R]):
    """Where each column goes."""

    columns: Sequence[Column[R]]
    widths: Sequence[int]
    gaps: Mapping[int, str]

    def head(self) -> list[Text]:
        """The titles, at the foot of as many lines as the deepest has, and a rule."""
        titles = {i: self.columns[i].title.split("\n") for i in self.gaps}
        deep = max(map(len, titles.values()))
        padded = {i: [""] * (deep - len(title)) + title for i, title in titles.items()}
        lines = [
            self._join({i: title[level] for i, title in padded.items()}, "bold")
            for level in range(deep)
        ]
        return [*lines, Text("─" * cell_len(lines[-1].plain), DIM)]

    def line(self, line: _Line | str | None) -> Text:
        """A row; a heading; a blank line."""
        if not isinstance(line, _Line):
            return Text(line or "", "bold")
        cells = {i: line.cells[i] for i in self.gaps if i in line.cells}
        text = self._join(cells, line.style)
        if line.sentence:
            apart = "  " if cells and not self.gaps[max(cells)] else ""
            text.append(apart).append(line.sentence, line.style)
        return text

    def _join(self, cells: Mapping[int, str], style: str) -> Text:
        text = Text()
        for i, cell in cells.items():
            column, pad = self.columns[i], " " * (self.widths[i] - cell_len(cell))
            padded = pad + cell if column.right else cell + pad
            text.append(padded, "bold" if column.bold else style).append(self.gaps[i])
        return text


# ---------------------------------------------------------------- Markdown


def markdown(table: Table[R]) -> str:
    """The table in Markdown."""
    grid = _grid(table)
    rules = ["---:" if right else "---" for right in grid.right]
    lines: list[str] = []
    for cells in (
        grid.titles,
        rules,
        *grid.rows,
    ):  # a backslash escapes nothing, not its "|" either
        escaped = (re.sub(r"[|\\]", r"\\\g<0>", cell) for cell in cells)
        lines.append(f"| {' | '.join(escaped)} |\n")
    return plain_markdown("".join(lines))


@dataclass(frozen=True)
class _Grid:
    """Plain texts of a table, row by row; which columns hold numbers."""

    titles: list[str]
    right: list[bool]
    rows: list[list[str]]


def _grid(table: Table[R]) -> _Grid:
    """The table without its empty columns; a sentence is in the first column after the keys.

    Headings are not in it: a column says what they say.
    """
    columns = [column for column in table.columns if column.markdown or column.cell]
    rows = [_markdown_cells(row, columns) for row in table.items]
    kept = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    titles = [
        column.title if column.markdown_title is None else column.markdown_title
        for column in columns
    ]
    return _Grid(
        [one_line(titles[i]) for i in kept],
        [columns[i].right for i in kept],
        [[row[i] for i in kept] for row in rows],
    )


def _markdown_cells(row: Row[R], columns: Sequence[Column[R]]) -> list[str]:
    if not row.sentence:
        return [_markdown_text(column, row.item) for column in columns]
    cells = [
        _markdown_text(column, row.item) if column.key or column.always else ""
        for column in columns
    ]
    cells[sum(column.key for column in columns)] = row.markdown or row.sentence
    return cells


def _markdown_text(column: Column[R], item: R) -> str:
    read = column.markdown or column.cell
    return read(item) if read else ""


def plain_markdown(text: str) -> str:
    """Markdown without HTML and links: text of a run file may look like either."""
    return printable(text).replace("<", "&lt;").replace("](", "]\\(")


# ---------------------------------------------------------------- HTML


def html(table: Table[R]) -> str:
    """The table as an HTML element, with the columns and texts of Markdown. All text is escaped."""
    grid = _grid(table)
    marks = [' class="number"' if right else "" for right in grid.right]
    head, *body = (
        "".join(f"<{tag}{m}>{escape(t)}</{tag}>" for m, t in zip(marks, texts, strict=True))
        for tag, texts in (("th", grid.titles), *(("td", row) for row in grid.rows))
    )
    rows = "".join(f"<tr>{row}" for row in body)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


# ---------------------------------------------------------------- CSV

Records = tuple[list[str], list[dict[str, Value]]]  # names of the columns, rows


def records(table: Table[R]) -> Records:
    """The raw values of each row by name: (names, rows)."""
    values = {name: read for column in table.columns for name, read in column.csv.items()}
    names = list(dict.fromkeys([*table.csv_order, *values]))
    rows = [{name: values[name](row.item) for name in names} for row in table.items]
    return names, rows


def measured(*names: str) -> dict[str, Callable[[Any], Value]]:
    """The raw values of fields of the rows' measurements; None for what was not measured."""

    def value(name: str) -> Callable[[Any], Value]:
        return lambda row: getattr(row.measurement, name, None)

    return {name: value(name) for name in names}


def ends_of(name: str, of: Callable[[R], Interval | None]) -> dict[str, Callable[[R], Value]]:
    """The ends of an interval; `name` has a place for which of them."""

    def end(which: int) -> Callable[[R], Value]:
        return lambda row: ends[which] if (ends := of(row)) else None

    return {name.format("_low"): end(0), name.format("_high"): end(1)}


def write_csv(parts: Iterable[Records]) -> str:
    """One CSV of several tables, with all of their columns and one header."""
    parts = list(parts)
    names = list(dict.fromkeys(name for columns, _ in parts for name in columns))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writerow({name: csv_text(name) for name in names})
    for _, rows in parts:
        for row in rows:
            writer.writerow({name: csv_text(row.get(name)) for name in names})
    return text.getvalue()


def csv_text(value: Value) -> str:
    """Nine significant digits: finer than any timer here, without binary noise.

    A text has no control characters; one that a spreadsheet would compute gets an apostrophe.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = printable(value).strip()
        return f"'{text}" if text.startswith(COMPUTED) and not _is_number(text) else text
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def one_line(title: str) -> str:
    """A title without its line break."""
    return title.replace("\n", " ")
