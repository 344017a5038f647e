"""What tests do with processes: find them, kill them, and wait for them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

MARK = "HALFWAY_TEST_MARK"  # in the environment of a command and of all its descendants


def marked(mark: str) -> list[tuple[int, str]]:
    """(pid, command line) of the processes that have the mark and have not ended."""
    found: list[tuple[int, str]] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            has = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes()
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if has and not is_gone(int(folder.name)):
            found.append((int(folder.name), line))
    return found


def wait_for(done: Callable[[], bool]) -> None:
    """Until it is so; three minutes at most, as a machine may do much else."""
    deadline_s = time.monotonic() + 180
    while not done():
        assert time.monotonic() < deadline_s
        time.sleep(0.03)


def kill(pid: int) -> None:
    """End a child at once, and wait for its end."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it leaves the reaping to its owner


def is_gone(pid: int) -> bool:
    """Whether a process has ended, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
