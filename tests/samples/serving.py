"""What a measuring process does with a request: hang, end, or raise."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from multiprocessing.connection import Connection

from microbench.worker import WorkerDied


def complains(pipe: Connection, lines: int) -> None:
    """A library writes many lines that differ in numbers, and one that differs in words."""
    for number in range(lines):
        line = b"Corrupt JPEG data: %d extraneous bytes before marker 0x%x\n"
        os.write(2, line % (number, number))
    os.write(2, b"something else, unfinished")
    pipe.send(("ok", "ready"))
    pipe.recv()


def hangs(pipe: Connection, _: object) -> None:
    """Nothing happens any more."""
    pipe.send(("ok", "ready"))
    pipe.recv()
    time.sleep(3600)


def gives_up_while_idle(pipe: Connection, reason: str) -> None:
    """It ends before anything is asked of it."""
    pipe.send(("ok", "ready"))
    raise WorkerDied("", reason)


def fails_after_its_parent(pipe: Connection, error: Exception) -> None:
    """It raises after its parent has ended."""
    pipe.send(("ok", "ready"))
    with suppress(EOFError):
        pipe.recv()
    raise error
