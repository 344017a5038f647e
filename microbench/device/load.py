"""Other programs on the CPU and on the GPU while the device is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from microbench.device.host import CPU_TICKS, ROOT, family
from microbench.device.telemetry import GpuState
from microbench.results.types import Json

LOADED = 0.5  # of all cores: from here on other programs are worth a warning
LOAD = "load"  # the key in a run's settings
SHARE, AT_START, PROCESSES, HELD, COMPUTING, LATER = (
    "cpu_share_of_others", "load_average_per_core", "gpu_processes", "gpu_bytes",
    "gpu_utilization_pct", "gpu_processes_later",
)  # fmt: skip
_BUSY = (0, 1, 2, 5, 6, 7)  # of /proc/stat's cpu line: user nice system irq softirq steal

Reading = tuple[float, float]  # CPU seconds of the machine, of this process and its children


def at_start(gpu: GpuState | None) -> Json:
    """The load before measuring: load average per core, other processes and their bytes on the GPU,
    and per cent of the time in which a kernel ran there.

    `gpu` is read before this process has a CUDA context, so all of its processes are others.
    """
    found: Json = {AT_START: round(os.getloadavg()[0] / (os.cpu_count() or 1), 3)}
    if gpu is not None and gpu.processes is not None:
        others = [size for pid, size in gpu.processes if pid != os.getpid()]
        found |= {PROCESSES: len(others), HELD: sum(size or 0 for size in others)}
    if gpu is not None and gpu.utilization_pct:
        found[COMPUTING] = gpu.utilization_pct
    return found


def others_now(gpu: GpuState | None) -> int:
    """How many other processes are on the GPU that this process uses; 0 where unknown.

    In a container NVML knows this process by another id, so one of the list is taken for it.
    """
    return max(0, len(gpu.processes or ()) - 1) if gpu is not None else 0


class LoadMeter:
    """Measures the CPU time of other programs since its construction (Linux only)."""

    def __init__(self, read: Callable[[], Reading | None] | None = None) -> None:
        self._read = read or reading
        self._began = self._clock()

    def _clock(self) -> tuple[float, Reading | None]:
        return time.monotonic(), self._read()

    def share(self) -> float | None:
        """The mean share of all cores that other programs used, 0 to 1; None where unknown."""
        (began_s, before), (now_s, after) = self._began, self._clock()
        core_s = (now_s - began_s) * (os.cpu_count() or 1)
        if before is None or after is None or core_s <= 0:
            return None
        others_s = (after[0] - before[0]) - (after[1] - before[1])
        return min(1.0, max(0.0, others_s / core_s))

    def noted(self, settings: Mapping[str, object], others: int = 0) -> Json:
        """A run's settings with the share added; for a resumed run, the larger one.

        `others` are the other processes on the GPU at the end (`others_now`).
        """
        held = settings.get(LOAD)
        load: Json = dict(cast(Json, held)) if isinstance(held, dict) else {}
        share = self.share()
        if share is not None:
            load[SHARE] = round(max(share, float(load.get(SHARE) or 0.0)), 3)
        if others > (load.get(PROCESSES) or 0):
            load[LATER] = max(others, load.get(LATER) or 0)
        return {**settings, LOAD: load} if load else dict(settings)


def reading(root: Path = ROOT) -> Reading | None:
    """CPU seconds since boot: of the machine, and of this process with all its descendants.

    None where /proc/stat cannot be read.
    """
    tick = os.sysconf("SC_CLK_TCK")
    try:
        words = (root / "proc/stat").read_text().splitlines()[0].split()[1:]
        busy = sum(int(words[i]) for i in _BUSY)
    except (OSError, IndexError, ValueError):
        return None
    own = sum(int(ticks) for fields in family(root).values() for ticks in fields[CPU_TICKS])
    return busy / tick, own / tick
