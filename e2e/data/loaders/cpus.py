"""The cores that this process may use, and the CPU time of processes."""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from microbench.device.host import CPU_TICKS, cpu_quota_cores, process_stat, usable_cores
from microbench.errors import UserError

TASKS = Path("/proc/self/task")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SPIN_S = 0.2
SPIN_BYTES = 1 << 22  # some milliseconds of work without Python's lock
MORE_THREADS = 2  # than cores, when it is tried whether these are all that they get
TOLERATED = 1.15  # of the cores


def cores() -> int:
    """How many cores this process may use, by affinity and quota (cgroup), rounded up."""
    quota = cpu_quota_cores()
    return usable_cores() if quota is None else min(usable_cores(), math.ceil(quota))


def limit_cpus(count: int) -> list[int]:
    """Limit this process and its future children to `count` cores; returns their numbers.

    UserError for more than it has, and where the system does not enforce the limit.
    """
    allowed = os.sched_getaffinity(0)
    if not 1 <= count <= len(allowed):
        raise UserError(f"--cpus {count}: this process may use 1 to {len(allowed)} cores")
    chosen = sorted(physical_first(allowed)[:count])
    for task in TASKS.iterdir():  # a process has no set of its own, each thread has
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), chosen)
    # Some sandboxes ignore the limit.
    if count < len(allowed) and (got := _spun(count + MORE_THREADS)) > TOLERATED * count:
        raise UserError(
            f"--cpus {count}: this system does not enforce CPU affinity (threads got {got:.1f} "
            "cores at once); limit the container's CPUs instead"
        )
    import torch

    torch.set_num_threads(count)
    return chosen


def physical_first(numbers: Iterable[int], root: Path = Path("/")) -> list[int]:
    """Logical cores: the first of each physical core in order, then the second ones, and so on."""
    before: Counter[str] = Counter()
    ranked: list[tuple[int, int]] = []
    for number in sorted(numbers):
        topology = root / f"sys/devices/system/cpu/cpu{number}/topology"
        try:
            siblings = (topology / "thread_siblings_list").read_text()
        except OSError:
            siblings = str(number)
        ranked.append((before[siblings], number))
        before[siblings] += 1
    return [number for _, number in sorted(ranked)]


def _spun(threads: int) -> float:
    """How many cores' worth of CPU time busy threads get together."""
    block = bytes(SPIN_BYTES)
    start_s, start_cpu_s = time.perf_counter(), time.process_time()

    def spin() -> None:
        while time.perf_counter() < start_s + SPIN_S:
            hashlib.sha256(block)

    spinning = [threading.Thread(target=spin) for _ in range(threads)]
    for thread in spinning:
        thread.start()
    for thread in spinning:
        thread.join()
    return (time.process_time() - start_cpu_s) / (time.perf_counter() - start_s)


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU seconds of these processes so far, user and system; 0 for one that ended."""
    ticks = 0
    for pid in pids:
        fields = process_stat(pid) or ()
        ticks += sum(map(int, fields[CPU_TICKS][:2]))  # without those of its children
    return ticks / TICKS_PER_S
