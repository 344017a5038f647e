"""The cores that this process may use, what processes took of them, and shared memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import torch

from microbench.errors import UserError
from microbench.host import cpu_quota_cores, usable_cores

SHARED_MEMORY = Path("/dev/shm")
TASKS = Path("/proc/self/task")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
USER_TICKS, SYSTEM_TICKS = 11, 12  # fields of /proc/PID/stat, counted after the command's name


def cores() -> int:
    """How many cores' worth of time this process may use, rounded up."""
    quota = cpu_quota_cores()
    return usable_cores() if quota is None else min(usable_cores(), math.ceil(quota))


def limit_cpus(count: int) -> None:
    """Let this process and those it will start use `count` of its cores. UserError beyond them."""
    allowed = sorted(os.sched_getaffinity(0))
    if not 1 <= count <= len(allowed):
        raise UserError(f"--cpus {count}: this process may use {len(allowed)}, take 1 to that")
    for task in TASKS.iterdir():  # a process has no set of its own, each thread has
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), allowed[:count])
    torch.set_num_threads(count)


def cpu_seconds(pids: Iterable[int]) -> float:
    """What these processes have computed so far, in user and system mode; 0 for one that ended."""
    return sum(_ticks(pid) for pid in pids) / TICKS_PER_S


def free_shared_memory() -> int | None:
    """Bytes free for what processes share. None where the system does not say."""
    try:
        status = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize


def _ticks(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = stat.rpartition(")")[2].split()
    return int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])
