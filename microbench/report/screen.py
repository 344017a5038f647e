"""Consoles, and a report on one: the answer, then tables no wider than it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleRenderable, RenderHook
from rich.segment import Segment, Segments
from rich.table import Column, Table
from rich.text import Text

from microbench import fmt
from microbench.report.parts import PROSE, VERBOSE, Part, Report, cells
from microbench.streams import allow_plain_characters, printable

WIDTH = 100  # columns: of prose at most, and of a console whose width is unknown
NARROWEST = 20
GAP = 2  # columns between those of a table
SHOW = "halfway show FILE"


class _PrintableTexts(RenderHook):
    """Cleans every text that a console is given; the styles of its parts stay."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        for text in renderables:
            if isinstance(text, Text):
                text.plain = printable(text.plain)
        return renderables


def make_console(
    *, stderr: bool = False, quiet: bool = False, file: TextIO | None = None
) -> Console:
    """A console on stdout, stderr or a file. Control characters of its texts are left out.

    Its width is COLUMNS if that is set, else the terminal's, else WIDTH. Tables may fill it; prose
    is folded at WIDTH. Text is plain (no colour, bold or dim) with NO_COLOR, and where the output
    is not a terminal.
    """
    stream = file or (sys.stderr if stderr else sys.stdout)
    allow_plain_characters(stream)
    console = Console(
        file=stream,
        quiet=quiet,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.push_render_hook(_PrintableTexts())
    console.width = _columns(console)
    return console


def _columns(console: Console) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return max(NARROWEST, int(columns))
    return console.width if console.is_terminal else WIDTH


def prose_width(console: Console) -> int:
    """Columns that sentences may take: those of the console, at most WIDTH."""
    return min(console.width, WIDTH)


def is_live(console: Console) -> bool:
    """Whether lines on the console can be redrawn."""
    return console.is_terminal and not console.is_dumb_terminal and not console.quiet


# ---------------------------------------------------------------- a report


def print_report(
    report: Report, console: Console, *, verbose: bool = False, topic: str = "", more: str = SHOW
) -> None:
    """Print the answer, then the parts: of the screen, of --verbose, or of a topic alone.

    `more` is the command that says more, without its options.
    """
    if not topic:
        if verbose and report.about:
            for line in report.about:
                _say(console, line, "dim")
            console.print()
        _print_answer(report, console, "" if verbose else more)
    for i, part in enumerate(report.shown(verbose=verbose, topic=topic)):
        if i or not topic:
            console.print()
        print_part(part, console)


def _print_answer(report: Report, console: Console, more: str) -> None:
    """Print what was found, then why, what to do, what to doubt, and what shows more."""
    for line in report.answer:
        if not line.label:
            _say(console, line.text, "bold")
    lines = [(line.label, line.text) for line in report.answer if line.label]
    if more and (options := _options(report)):
        lines.append(("More", f"{more} {'|'.join(options)}"))
    grid = Table.grid(Column(style="bold", no_wrap=True), Column(overflow="fold"))
    grid.padding = (0, GAP, 0, 0)
    for label, text in lines:
        grid.add_row(label, Text(fmt.clean(text)))
    if lines:
        _put(console, grid, prose_width(console))


def _options(report: Report) -> list[str]:
    """What shows more than the screen; nothing where the screen has all."""
    topics = {part.topic for part in report.parts if part.rows or part.below}
    named = [f"--{topic}" for topic in ("ledger", "phases", "causes") if topic in topics]
    hidden = any(part.level == VERBOSE for part in report.parts)
    return ["--verbose", *named, "--html PAGE"] if hidden else []


def print_part(part: Part, console: Console) -> None:
    """Print the title, the table, what did not fit, and the sentences below."""
    if part.title:
        _say(console, part.title, "bold")
    if part.rows:
        table, left_out = _fitted(part, console.width)
        _put(console, table, console.width)
        if left_out:
            _say(console, f"left out to fit: {', '.join(left_out)}", "dim")
    for line in part.below:
        _say(console, line)


def _fitted(part: Part, width: int) -> tuple[Table, list[str]]:
    """The table no wider than `width`, and the titles of the columns left out.

    Long texts fold first, then columns go, least important first; a last one is cut.
    """
    content = cells(part)
    columns, texts = content.columns, content.texts
    widths = [
        max(map(cell_len, [*column.title.split("\n"), *(line[i] for line in texts)]))
        for i, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    while len(kept) > 1 and sum(min(widths[i], PROSE) + GAP for i in kept) - GAP > width:
        going = max(kept, key=lambda i: (columns[i].drop, i))
        kept.remove(going)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    folds = any(widths[i] > PROSE for i in kept)
    for i in kept:
        table.add_column(
            columns[i].title,
            justify="right" if content.numbers[i] else "left",
            vertical="top" if folds else "bottom",
            no_wrap=widths[i] <= PROSE,
            overflow="ellipsis" if widths[i] <= PROSE else "fold",
        )
    blocks = [i for i in kept if columns[i].once]
    repeated = any(a[i] == b[i] for a, b in pairwise(texts) for i in blocks[:1])
    above: Sequence[str] = [""] * len(columns)
    for row, line in zip(part.rows, texts, strict=True):
        changed = [i for i in blocks if line[i] != above[i]]
        if repeated and blocks[:1] == changed[:1] and any(above):
            table.add_section()
        first = min(changed, default=len(columns))
        shown = ["" if i in blocks and i < first else line[i] for i in kept]
        table.add_row(*map(Text, shown), style=row.style)
        above = line
    return table, [
        columns[i].title.replace("\n", " ") for i in range(len(columns)) if i not in kept
    ]


def _say(console: Console, text: str, style: str = "") -> None:
    """Print a sentence, folded."""
    _put(console, Text(fmt.clean(text), style, overflow="fold"), prose_width(console))


def _put(console: Console, renderable: Table | Text, width: int) -> None:
    """Print without blanks at the ends of lines."""
    for line in console.render_lines(renderable, console.options.update(width=width), pad=False):
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
        console.print(Segments([*line, Segment.line()]), end="")
