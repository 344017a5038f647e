"""A measuring process and its parent: requests, signs of life, and what it writes to stderr.

Slow compiling differs from a kernel that hangs by its signs of life. Lines on standard error are
passed on without floods: libjpeg has a line for every damaged image, each time that it is read, and
a GPU one for every thread whose assertion fails.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import Counter
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from microbench.streams import printable

BEAT_S = 2.0  # between two looks
BUSY_SHARE = 0.1  # of a core: a process that uses more is computing
ALIVE = "alive"
_OWN_TIMES, _ALL_TIMES = slice(11, 13), slice(11, 15)  # of /proc/PID/stat after the name


class Pipe:
    """The child's end of the pipe to its parent, over which a thread sends signs of life too.

    Between a request and its answer ("alive",) is sent every BEAT_S seconds in which the process
    moved: its main thread is elsewhere in the program, or its children (compilers) compute. On a
    CPU, computing itself counts too (`computes`); beside a GPU it does not, as waiting for a kernel
    spins.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._asked = threading.Event()
        self._asked.set()
        self.computes = False

    def beat(self) -> None:
        """Send signs of life from now on, about the thread that calls this."""
        about = threading.get_ident()
        threading.Thread(target=self._watch, args=(about,), name="pulse", daemon=True).start()

    def send(self, message: tuple[Any, ...]) -> None:
        """Send a message to the parent. OSError where it has gone."""
        with self._sending:
            self._connection.send(message)

    def recv(self) -> tuple[Any, ...]:
        """The next request; no signs of life are sent while waiting. EOFError: no parent."""
        self._asked.clear()
        request = self._connection.recv()
        self._asked.set()
        return request

    def _watch(self, about: int) -> None:
        place, busy_s = _place(about), self._busy_s()
        rest = threading.Event()
        while True:
            rest.wait(BEAT_S)
            self._asked.wait()
            before, busy_before_s = place, busy_s
            place, busy_s = _place(about), self._busy_s()
            if place != before or busy_s - busy_before_s > BUSY_SHARE * BEAT_S:
                try:
                    self.send((ALIVE,))
                except OSError:
                    return

    def _busy_s(self) -> float:
        """CPU seconds of the children so far and, if it `computes`, of this process."""
        own = _cpu_s(os.getpid(), _OWN_TIMES) if self.computes else 0.0
        return own + sum(_cpu_s(pid, _ALL_TIMES) for pid in _descendants(os.getpid()))


def _place(thread: int) -> tuple[tuple[int, int], ...]:
    """Where a thread is in the program: the code and the instruction of every call under way."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    found: list[tuple[int, int]] = []
    while frame is not None:
        found.append((id(frame.f_code), frame.f_lasti))
        frame = frame.f_back
    return tuple(found)


def _descendants(pid: int) -> list[int]:
    found = [pid]
    for one in found:
        for path in Path(f"/proc/{one}/task").glob("*/children"):
            try:
                found += map(int, path.read_text().split())
            except (OSError, ValueError):
                continue  # it has ended
    return found[1:]


def _cpu_s(pid: int, times: slice) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return sum(map(int, fields[times])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


# ---------------------------------------------------------------- what it writes to standard error

MOST_ALIKE = 3  # lines that differ in numbers only
STDERR = 2
CHUNK_BYTES = 1 << 16
LAST_WORDS_S = 0.5  # that a process which has ended gets for what it wrote
_NUMBER = re.compile(rb"0x[0-9a-f]+|[0-9a-f]*[0-9][0-9a-f]*")


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
