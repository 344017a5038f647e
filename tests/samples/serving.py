"""What a measuring process does with a request: complain, end, or raise."""

from __future__ import annotations

import os
from contextlib import suppress
from multiprocessing.connection import Connection

from microbench.worker import WorkerDied

WATCHDOG = b"""terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 Rank 0] Process group watchdog thread terminated with exception: timeout
Exception raised from checkTimeout at ProcessGroupNCCL.cpp:692 (most recent call first):
frame #0: c10::Error::Error() + 0x80 (0x7f in libc10.so)

frame #1: <unknown function> + 0x12 (0x7f in libc.so.6)
"""


def complains(pipe: Connection, lines: int) -> None:
    """A library writes many lines that differ in numbers, and one that differs in words."""
    for number in range(lines):
        line = b"Corrupt JPEG data: %d extraneous bytes before marker 0x%x\n"
        os.write(2, line % (number, number))
    os.write(2, WATCHDOG + b"\nsomething else, unfinished")
    pipe.send(("ok", "ready"))
    pipe.recv()


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
