"""What an exception says, in a line."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """The first line of its text, or its type."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def one_line(error: BaseException) -> str:
    """Its type and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
