"""Signs of life of a measuring process: slow compiling differs from a kernel that hangs."""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

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
