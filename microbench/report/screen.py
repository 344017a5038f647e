"""Consoles: their width, and plain text where the output is not a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleRenderable, RenderHook
from rich.text import Text

from microbench.streams import allow_plain_characters, printable

WIDTH = 100  # columns: of prose at most, and of a console whose width is unknown
NARROWEST = 20


class _PrintableTexts(RenderHook):
    """Cleans every text that a console is given; the styles of its parts stay."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_printable(one) if isinstance(one, Text) else one for one in renderables]


def _printable(text: Text) -> Text:
    plain = printable(text.plain)
    if plain != text.plain:
        text = text.copy()
        text.plain = plain
    return text


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
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked):
        return max(NARROWEST, int(asked))
    return console.width if console.is_terminal else WIDTH


def prose_width(console: Console) -> int:
    """Columns that sentences may take: those of the console, at most WIDTH."""
    return min(console.width, WIDTH)


def print_lines(console: Console, lines: Iterable[Text]) -> None:
    """Print lines: of a table as wide as the console, others folded at WIDTH."""
    for line in lines:
        width = console.width if line.no_wrap else prose_width(console)
        console.print(line, width=width, overflow="fold")


def is_live(console: Console) -> bool:
    """Whether lines on the console can be redrawn."""
    return console.is_terminal and not console.is_dumb_terminal and not console.quiet
