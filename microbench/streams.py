"""Standard output and error: what they may be given, as a program finds them, and how it ends.

Run files, file names and arguments may hold any character, a terminal may not get all. A stream may
be closed, full, or a pipe without a reader.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from contextlib import suppress
from typing import TextIO

import click

from kernels.messages import first_line
from microbench.errors import NothingMeasured, UserError
from microbench.stopping import Stopped, end

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

MOST_CHARACTERS = 2000  # of an error message
REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO)


def prepare_streams() -> None:
    """Give every closed standard stream a file, so that none of the program's own takes its number.

    Writing to an output that was closed fails, as it should; what goes to a closed standard error
    is lost. What an output cannot encode, it gets in plain characters.
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
    allow_plain_characters(sys.stdout)
    allow_plain_characters(sys.stderr)


def is_of_stream(error: OSError) -> bool:
    """Whether an output refused what was written: of a file, the error would have the name."""
    return error.filename is None and error.errno in REFUSED


def redirect_to_null(stream: TextIO) -> None:
    """Let what was and is written to a stream vanish: Python would complain of it at its end."""
    with suppress(OSError, ValueError):  # one of a test has no number
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


# ---------------------------------------------------------------- a program, from start to end


def run_app(app: click.Group, program: str, arguments: list[str] | None) -> int:
    """Run a command line and return its exit code. Errors are one line on stderr.

    0 done, 1 where all that was tried failed, 2 for a mistake of the user and where the machine
    refuses what the program needs, 130 where stopped.
    """
    prepare_streams()
    try:
        code = _run(app, program, arguments)
        sys.stdout.flush()  # while what fails can still be said
        return code
    except BrokenPipeError:
        redirect_to_null(sys.stdout)  # the reader of a pipe has gone
        return 1
    except OSError as error:
        return _complain(_refused(error), 2)
    except MemoryError:
        return _complain("out of memory", 2)
    except ImportError as error:  # a library is broken, or the machine does not load it
        return _complain(f"cannot load a library: {first_line(error)}", 2)


def _run(app: click.Group, program: str, arguments: list[str] | None) -> int:
    try:
        code = app(arguments, prog_name=program, standalone_mode=False)
    except UserError as error:
        return _complain(str(error), 2)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message())
        return 2
    except click.ClickException as error:
        return _complain(error.format_message(), 2)
    except (click.exceptions.Abort, KeyboardInterrupt) as error:
        stopped = error.__cause__ or error  # click makes an Abort of it
        if isinstance(stopped, Stopped):
            end(stopped.code)
        return 130
    except NothingMeasured as error:
        return _complain(str(error), 1) if str(error) else 1
    return code if isinstance(code, int) else 0


def _refused(error: OSError) -> str:
    """What the machine did not do, in one line."""
    refused = is_of_stream(error)
    try:
        sys.stdout.flush()
    except OSError as fault:  # it did not take what was written to it
        refused, error = True, fault
    if refused:
        redirect_to_null(sys.stdout)
        return f"cannot write the output: {error.strerror}"
    reason = error.strerror or first_line(error)
    if error.errno == errno.EMFILE:
        reason += " (ulimit -n)"
    return f"{error.filename}: {reason}" if error.filename else reason


def _complain(text: str, code: int) -> int:
    line = clean(f"error: {text}")
    if len(line) > MOST_CHARACTERS:
        line = f"{line[: MOST_CHARACTERS - 1]}…"
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        redirect_to_null(sys.stderr)
    return code
