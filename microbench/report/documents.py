"""Files that are not runs (`microbench.report.kinds`), laid out as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from microbench import fmt
from microbench.report.comparison import MOST_NAMED, listed_alone, only_in, summary, threshold
from microbench.report.console import header
from microbench.report.screen import print_lines
from microbench.report.table import Column, Part, Row, Table, ends_of, screen
from microbench.results.comparison import CompareRow, Comparison
from microbench.results.fields import decode
from microbench.results.types import Run
from microbench.results.values import AnyCase, Interval, Json

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


def ends(ci95: Interval | None) -> str:
    """ "0.991 to 1.006"; "" where there is no interval."""
    return f"{ci95[0]:.3f} to {ci95[1]:.3f}" if ci95 else ""


# ---------------------------------------------------------------- of `compare --json`


@dataclass(frozen=True)
class _Compared:
    """A row of a comparison's file."""

    key: str
    verdict: str
    ratio: float | None
    ci95: Interval | None
    a_s: float | None
    b_s: float | None
    note: str
    reason: str = ""
    threshold_pct: float | None = None
    run: str = ""

    @property
    def op(self) -> str:
        """The kind of result."""
        return self.key.partition("/")[0]


@dataclass(frozen=True)
class _File:
    differences: tuple[str, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    rows: tuple[_Compared, ...]


@dataclass(frozen=True)
class _Several:
    baseline: str
    comparisons: tuple[_Named, ...]


@dataclass(frozen=True)
class _Named(_File):
    run: str


def comparison(data: Json) -> Sheet:
    """A comparison of two runs; in brief, rows not "same". ValueError for an invalid field."""
    found: _File = decode(_File, data, "")
    notes = [Text(line) for line in _notes(found)]
    return _sheet(found.rows, notes, summary(_compared(found)), _alone(found))


def comparisons(data: Json) -> Sheet:
    """Comparisons of several runs with one baseline; in brief, the rows that are not "same".

    ValueError for an invalid field.
    """
    found: _Several = decode(_Several, data, "")
    rows = [replace(row, run=one.run) for one in found.comparisons for row in one.rows]
    notes = [
        Text(f"{fmt.clean(one.run)}: {line}")
        for one in found.comparisons
        for line in (*_notes(one), summary(_compared(one)))
    ]
    alone = [f"{fmt.clean(one.run)}: {line}" for one in found.comparisons for line in _alone(one)]
    return _sheet(rows, notes, f"A is {fmt.clean(found.baseline)}.", alone)


def _notes(found: _File) -> Iterator[str]:
    """How the runs differ, and what only one of them has."""
    for text in found.differences:
        yield f"The runs differ: {fmt.clean(text)}"
    for name, keys in (("A", found.only_a), ("B", found.only_b)):
        yield from only_in(name, list(map(fmt.clean, keys)))


def _alone(found: _File) -> list[str]:
    """The cases that only one of the runs has, where the notes do not name them all."""
    return [
        line
        for name, keys in (("A", found.only_a), ("B", found.only_b))
        if len(keys) > MOST_NAMED
        for line in listed_alone(name, list(map(fmt.clean, keys)))
    ]


def _compared(found: _File) -> Comparison:
    """The comparison as far as it is counted."""
    rows = [
        CompareRow(r.key, cast(AnyCase, r), r.verdict, r.ratio, r.ci95, r.a_s, r.b_s)
        for r in found.rows
    ]
    return Comparison([], rows, [], [])


def _sheet(
    found: Sequence[_Compared], notes: Sequence[Text], said: str, more: Sequence[str]
) -> Sheet:
    several = any(row.run for row in found)
    run: list[Column[_Compared]] = [
        Column("B", lambda row: fmt.clean(row.run), csv={"run": lambda row: row.run})
    ]
    columns: list[Column[_Compared]] = [
        *(run if several else ()),
        Column("B is", lambda row: fmt.clean(row.verdict),
               csv={"verdict": lambda row: row.verdict}),
        Column("case", lambda row: fmt.clean(row.key), csv={"key": lambda row: row.key}),
        Column("time A", lambda row: _duration(row.a_s), True, 5, csv={"a_s": lambda row: row.a_s}),
        Column("time B", lambda row: _duration(row.b_s), True, 5, csv={"b_s": lambda row: row.b_s}),
        Column("A / B", lambda row: f"{row.ratio:.3f}" if row.ratio else "", True,
               csv={"ratio": lambda row: row.ratio}),
        Column("interval", lambda row: ends(row.ci95), True, 4,
               csv=ends_of("ci95{}", lambda row: row.ci95)),
        Column("note", lambda row: fmt.clean(row.note), drop=6, csv={"note": lambda row: row.note}),
        Column("threshold", lambda row: threshold(row.threshold_pct), True, 3,
               csv={"threshold_pct": lambda row: row.threshold_pct}),
        Column("reason", lambda row: fmt.clean(row.reason), drop=1,
               csv={"reason": lambda row: row.reason}),
    ]  # fmt: skip
    rows = [Row(row) for row in found]
    return Sheet(
        Table(columns, list(rows)),
        Table(columns, [row for row in rows if row.item.verdict != "same"]),
        said,
        notes,
        more,
    )


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else fmt.duration(seconds)


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
