"""Standard output and error: what they may be given, and as a program finds them.

Run files, file names and arguments may hold any character, a terminal may not get all. A stream may
be closed, full, or a pipe without a reader.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any, TextIO

MOST_CHARACTERS = 2000  # of an error message
# For terminals that cannot show the left one; each stays one character, so columns keep aligned.
_PLAIN = str.maketrans(
    "±·─━│┤└●▲■◆★♥♣♠○△□◇…→°¹",
    "~.--||+oAB*#@%&o^0<.>d1",
)


def clean(text: object) -> str:
    """One line without control characters, spaces joined."""
    return " ".join(printable(str(text)).split())


def printable(text: str) -> str:
    """The text with a space for each character that does not print, but line breaks and tabs."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else " " for c in text)


def message(text: str) -> str:
    """One clean line of at most MOST_CHARACTERS."""
    line = clean(text)
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"


@contextmanager
def clean_streams() -> Generator[None]:
    """While a command runs, what it prints is printable, and in characters that the stream has.

    Consoles write colours: they take the stream itself, and clean the text that they are given.
    """
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Clean(sys.stdout), _Clean(sys.stderr)  # type: ignore[assignment]
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def itself(stream: TextIO) -> TextIO:
    """The stream that `clean_streams` stands before; any other as it is."""
    return stream.itself if isinstance(stream, _Clean) else stream


class _Clean:
    """A text stream whose text is printable; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self.itself = stream
        allow_plain_characters(stream)

    def write(self, text: str) -> int:
        return self.itself.write(printable(text))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.itself, name)

    def __iter__(self) -> Any:
        return iter(self.itself)


def _in_plain_characters(problem: UnicodeError) -> tuple[str, int]:
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    text = problem.object[problem.start : problem.end].translate(_PLAIN)
    return "".join(c if ord(c) < 128 else "?" for c in text), problem.end


codecs.register_error("halfway-plain", _in_plain_characters)


def allow_plain_characters(stream: TextIO) -> None:
    """Where a stream cannot encode a character, it gets a similar one, or "?"."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="halfway-plain")


# ---------------------------------------------------------------- streams that refuse

REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO)


def open_closed_streams() -> None:
    """Give every closed standard stream a file, so that none of the program's own takes its number.

    Writing to an output that was closed fails, as it should; what goes to a closed standard error
    is lost.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # takes the lowest number that is free
            os.set_inheritable(number, True)
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def is_of_stream(error: OSError) -> bool:
    """Whether an output refused what was written: of a file, the error would have the name."""
    return error.filename is None and error.errno in REFUSED


def fault_of(stream: TextIO) -> OSError | None:
    """Why a stream does not take what was written to it; None where it does."""
    try:
        stream.flush()
    except OSError as error:
        return error
    return None


def give_up(stream: TextIO) -> None:
    """Let what was and is written to a stream vanish: Python would complain of it at its end."""
    with suppress(OSError, ValueError):  # one of a test has no number
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
