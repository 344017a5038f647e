"""Standard output and error as a program finds them: closed, full, or a pipe without a reader."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import TextIO

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
