"""Files that are not runs, laid out as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from microbench.report.console import header
from microbench.report.screen import print_lines
from microbench.report.table import Part, Table, screen
from microbench.results.codec import decode
from microbench.results.types import Json, Run

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
