"""Files that are not runs (`microbench.report.kinds`), laid out as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from microbench import fmt
from microbench.report.console import header
from microbench.report.screen import print_lines
from microbench.report.table import Column, Part, Row, Table, screen
from microbench.results.fields import decode
from microbench.results.types import Run
from microbench.results.values import Json

HEADER = ("command", "device", "software", "finished_at")  # of a document, above its table


@dataclass(frozen=True)
class Sheet:
    """A document as a table. Without --verbose the screen has `brief` in place of it.

    `first` is above the table, `notes` and `summary` follow it. `more` are lines that --verbose
    adds, and that are folded on a page. `parts` are further tables, on a page and with --verbose;
    without it the screen has `brief_parts`.
    """

    table: Table[Any]
    brief: Table[Any]
    summary: str = ""
    notes: Sequence[Text] = ()
    more: Sequence[str] = ()
    parts: Sequence[Part] = ()
    brief_parts: Sequence[Part] = ()
    first: Sequence[str] = ()


def print_document(data: Json, sheet: Sheet, console: Console, *, details: bool) -> None:
    """Print the device, if the document has one, and the sheet. ValueError: invalid field."""
    if "device" in data:
        print_lines(console, header(run_of_document(data), details))
        console.print()
    print_sheet(sheet, console, details=details)


def run_of_document(data: Json) -> Run:
    """A document's device, software, command and time as a run. ValueError: invalid field."""
    *names, when = HEADER
    facts = {name: data.get(name) for name in names}
    when = data.get(when)
    return decode(Run, {**facts, "started_at": when, "finished_at": when}, "")


def print_sheet(sheet: Sheet, console: Console, *, details: bool = False) -> None:
    """Print the table, notes, and the summary."""
    table = sheet.table if details else sheet.brief
    lines = [Text(line, "bold") for line in sheet.first]
    lines += [*(screen(table, console.width).lines if table.rows else ()), *sheet.notes]
    for part in sheet.parts if details else sheet.brief_parts:
        rows = screen(part.table, console.width).lines if part.table else ()
        lines += [Text(""), Text(part.title), *rows, *map(Text, part.below)]
    lines += [Text(line) for line in sheet.more] if details else []
    print_lines(console, lines)
    if sheet.summary:
        console.print(*([""] if lines else []), Text(sheet.summary, "bold"), sep="\n")


# ---------------------------------------------------------------- of other programs


def figures(data: Mapping[str, object]) -> Sheet:
    """The values in another program's document, one per line, in its own units."""
    columns: list[Column[tuple[str, str]]] = [
        Column("figure", lambda row: row[0], csv={"figure": lambda row: row[0]}),
        Column("value", lambda row: row[1], csv={"value": lambda row: row[1]}),
    ]
    rows = [
        Row((fmt.clean(name), fmt.clean(_value(value))))
        for name, value in data.items()
        if name not in HEADER
    ]
    table = Table(columns, list(rows))
    return Sheet(table, table)


def check(data: Mapping[str, object]) -> Sheet:
    """The totals of a check of the method, and how long its lists are; its file holds them."""
    return figures({
        name: len(cast("list[object]", value)) if isinstance(value, list) else value
        for name, value in data.items()
        if not isinstance(value, dict)
    })  # fmt: skip


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, cast("list[object]", value)))
    return str(value)
