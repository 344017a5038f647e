"""The parent's end of a training process: what it says, and its end."""

from __future__ import annotations

import multiprocessing
import os
import re
import threading
from collections import Counter
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from e2e.commands.job import Begun, Ended, Job, Stage, serve
from e2e.interrupts import share_sockets_folder
from microbench.streams import printable
from microbench.worker import GENTLE_S, HANG_S, Child, OnStage, Serve, WorkerDied

SET_UP_S = 600.0  # compiling a large network may take minutes without a word
MOST_ALIKE = 3  # lines that differ in numbers only
STDERR = 2
CHUNK_BYTES = 1 << 16
LAST_WORDS_S = 0.5  # that a process which has ended gets for what it wrote
_NUMBER = re.compile(rb"0x[0-9a-f]+|[0-9a-f]*[0-9][0-9a-f]*")
_WATCHDOG = b"terminate called after throwing an instance of 'c10::DistBackendError'"
_WORDS = re.compile(rb"  what\(\):  (?:.* terminated with exception: )?(.*)")
_STACK = re.compile(rb"Exception raised from |frame #|$")


class JobProcess(Child):
    """A process that carries out a job, and says what it finds."""

    daemon = False  # those may have no children, and data loaders have

    def __init__(self, job: Job) -> None:
        self.ended = False
        super().__init__(serve, job)

    def _start(self, serve: Serve, settings: object) -> None:
        reader, errors = multiprocessing.get_context("spawn").Pipe(duplex=False)
        share_sockets_folder()  # before: the process has it from its start
        super()._start(partial(into, errors, serve), settings)
        errors.close()
        self._errors = PassedOn(reader)

    def next(self, begun: Begun, on_stage: OnStage) -> Any:
        """What it says next. WorkerDied where it ends, or says nothing for long in what has begun;
        UserError for a mistake of the user.
        """
        patience_s = begun.budget_s + (2 * HANG_S if begun.what == Stage.TIMING else SET_UP_S)
        try:
            event = self._answer(on_stage, patience_s)
        except WorkerDied as death:
            why = f": {self._errors.watchdog}" if self._errors.watchdog else ""
            raise WorkerDied(death.key, death.reason + why) from None
        self.ended = isinstance(event, Ended)
        return event

    def close(self) -> None:
        """End it, at once unless it is done, and wait a moment for what it wrote to stderr."""
        if not self.ended:
            self._process.terminate()
            self._process.join(GENTLE_S)
        super().close()
        self._errors.finish()


# ---------------------------------------------------------------- what it writes to standard error

# libjpeg has a line for every damaged image, each time that it is read, and a GPU one for every
# thread whose assertion fails. NCCL's watchdog ends a rank that waits for another in vain, with the
# stack of C++: its message belongs to the reason of that end; the stack is left out.


def into(errors: Connection, serve: Serve, pipe: Connection, settings: Any) -> None:
    """In the child: serve, with standard error into `errors`, for this process and its children."""
    os.dup2(errors.fileno(), STDERR)
    errors.close()
    serve(pipe, settings)


class PassedOn:
    """A thread that passes lines on to standard error until the child and its children end.

    `watchdog` is what NCCL's has said as it ended a rank; "" where it has not.
    """

    def __init__(self, reader: Connection) -> None:
        self.watchdog = ""
        self._reader, self._in_stack = reader, False
        self._seen: Counter[bytes] = Counter()
        self._thread = threading.Thread(target=self._run, name="child's errors", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait a moment for the rest."""
        self._thread.join(LAST_WORDS_S)

    def _run(self) -> None:
        rest = b""
        while chunk := os.read(self._reader.fileno(), CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take(line)
        self._reader.close()
        if rest:
            self._take(rest)
        for kind, count in self._seen.items():
            if count > MOST_ALIKE:
                more = count - MOST_ALIKE
                _write(b"(%d more lines as: %s)" % (more, kind))

    def _take(self, line: bytes) -> None:
        match = _WORDS.match(line)
        self._in_stack = line == _WATCHDOG or (self._in_stack and bool(match or _STACK.match(line)))
        if self._in_stack:
            self.watchdog = match[1].decode(errors="replace") if match else self.watchdog
            return
        kind = _NUMBER.sub(b"N", line)
        self._seen[kind] += 1
        if self._seen[kind] <= MOST_ALIKE:
            _write(line)


def _write(line: bytes) -> None:
    text = printable(line.decode(errors="replace"))
    with suppress(OSError):  # a closed terminal
        os.write(STDERR, f"{text}\n".encode())
