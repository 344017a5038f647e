"""What tests do with processes: kill them, and wait for them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


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
