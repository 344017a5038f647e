"""Consoles: their width, and plain text where the output is not a terminal."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import TextIO

from rich.console import Console

WIDTH = 100  # columns: of prose at most, and of a console whose width is unknown
NARROWEST = 20
# For terminals that cannot show the left one; each stays one character, so columns keep aligned.
_PLAIN = str.maketrans(
    "±·─━│┤└●▲■◆★♥♣♠○△□◇…→°",
    "~.--||+oAB*#@%&o^0<.>d",
)


def _in_plain_characters(problem: UnicodeError) -> tuple[str, int]:
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    text = problem.object[problem.start : problem.end].translate(_PLAIN)
    return "".join(c if ord(c) < 128 else "?" for c in text), problem.end


codecs.register_error("halfway-plain", _in_plain_characters)


def _allow_plain_characters(stream: TextIO) -> None:
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="halfway-plain")


def make_console(
    *, stderr: bool = False, quiet: bool = False, file: TextIO | None = None
) -> Console:
    """A console on stdout, stderr or a file.

    Its width is COLUMNS if that is set, else the terminal's, else WIDTH. Tables may fill it; prose
    is folded at WIDTH. Text is plain (no colour, bold or dim) with NO_COLOR, and where the output
    is not a terminal.
    """
    stream = file or (sys.stderr if stderr else sys.stdout)
    _allow_plain_characters(stream)
    console = Console(
        file=stream,
        quiet=quiet,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )
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


def is_live(console: Console) -> bool:
    """Whether lines on the console can be redrawn."""
    return console.is_terminal and not console.is_dumb_terminal and not console.quiet
