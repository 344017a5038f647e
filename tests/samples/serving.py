"""What a measuring process does with a request: compute in Python, wait for a compiler, or hang."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
import time
from contextlib import suppress

from microbench import child_pipes
from microbench.child_pipes import Pipe
from microbench.worker import WorkerDied

HANG_S = 4.0  # in place of two minutes, without a sign of life
child_pipes.BEAT_S = 0.5  # between two looks, in a child

SPIN = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: pass"


def compiles(pipe: Pipe, seconds: float) -> None:
    """Python moves for some seconds without a word, as a compiler written in it does.

    A narrow loop would not do: a look finds it at one of three or four instructions, so that a few
    looks in a row may find the same one.
    """
    pipe.send(("ok", "ready"))
    pipe.recv()
    end_s = time.monotonic() + seconds
    module = ast.parse(inspect.getsource(ast))
    while time.monotonic() < end_s:
        ast.unparse(module)
    pipe.send(("ok", "done"))
    pipe.recv()


def waits_for_a_compiler(pipe: Pipe, seconds: float) -> None:
    """A child process computes for some seconds; this one waits for it."""
    pipe.send(("ok", "ready"))
    pipe.recv()
    subprocess.run([sys.executable, "-c", SPIN.format(seconds)], check=True)
    pipe.send(("ok", "done"))
    pipe.recv()


def complains(pipe: Pipe, lines: int) -> None:
    """A library writes many lines that differ in numbers, and one that differs in words."""
    for number in range(lines):
        line = b"Corrupt JPEG data: %d extraneous bytes before marker 0x%x\n"
        os.write(2, line % (number, number))
    os.write(2, b"something else, unfinished")
    pipe.send(("ok", "ready"))
    pipe.recv()


def hangs(pipe: Pipe, _: object) -> None:
    """Nothing happens any more."""
    pipe.send(("ok", "ready"))
    pipe.recv()
    time.sleep(3600)


def gives_up_while_idle(pipe: Pipe, reason: str) -> None:
    """It ends before anything is asked of it."""
    pipe.send(("ok", "ready"))
    raise WorkerDied("", reason)


def fails_after_its_parent(pipe: Pipe, error: Exception) -> None:
    """It raises after its parent has ended."""
    pipe.send(("ok", "ready"))
    with suppress(EOFError):
        pipe.recv()
    raise error
