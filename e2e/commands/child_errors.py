"""What a training process and its loaders write to standard error, passed on without floods.

libjpeg has a line for every damaged image, each time that it is read, and a GPU one for every
thread whose assertion fails.
"""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from microbench.streams import printable
from microbench.worker import Serve

MOST_ALIKE = 3  # lines that differ in numbers only
STDERR = 2
CHUNK_BYTES = 1 << 16
LAST_WORDS_S = 0.5  # that a process which has ended gets for what it wrote
_NUMBER = re.compile(rb"0x[0-9a-f]+|[0-9a-f]*[0-9][0-9a-f]*")


def into(errors: Connection, serve: Serve, pipe: Connection, settings: Any) -> None:
    """In the child: serve, with standard error into `errors`, for this process and its children."""
    os.dup2(errors.fileno(), STDERR)
    errors.close()
    serve(pipe, settings)


class PassedOn:
    """A thread that passes lines on to standard error until the child and its children end."""

    def __init__(self, reader: Connection) -> None:
        self._reader = reader
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
        kind = _NUMBER.sub(b"N", line)
        self._seen[kind] += 1
        if self._seen[kind] <= MOST_ALIKE:
            _write(line)


def _write(line: bytes) -> None:
    text = printable(line.decode(errors="replace"))
    with suppress(OSError):  # a closed terminal
        os.write(STDERR, f"{text}\n".encode())
