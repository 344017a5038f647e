"""What an exception says, in a line; what a mistyped name may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def first_line(error: BaseException) -> str:
    """The first line of its text, or its type."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def one_line(error: BaseException) -> str:
    """Its type and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def suggest(word: str, known: Iterable[str]) -> str:
    """What the user may have meant: "; did you mean a, b?", or nothing when none is near."""
    close = difflib.get_close_matches(word, list(known), n=3)
    return f"; did you mean {', '.join(close)}?" if close else ""
