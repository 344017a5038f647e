"""The computer around the device: processor, caches, memory, control groups, software; and what
other programs do on it and on the GPU meanwhile.

Reads /proc and /sys of Linux; what is missing there is None. `root` arguments are for tests.
Nothing here identifies the computer: no host name, serial number or address.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import cast

from microbench.device.telemetry import GpuState
from microbench.results.types import Json

DRIVER_FILES = ("proc/driver/nvidia/version", "dev/dxg")  # Linux, and Linux under Windows
KIB = 1024
ROOT = Path("/")
CGROUP_V1_UNLIMITED = 1 << 60  # v1 writes "no limit" as about 2^63, rounded down to a page
CUPY_DISTRIBUTIONS = ("cupy-cuda13x", "cupy-cuda12x", "cupy")
CUBLAS_DISTRIBUTIONS = ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12")
# Fields of /proc/PID/stat after the name; ticks are utime stime cutime cstime.
STATE, PARENT, CPU_TICKS = 0, 1, slice(11, 15)
TRITON_DISTRIBUTIONS = ("triton", "pytorch-triton")


def process_stat(pid: int, root: Path = ROOT) -> list[str] | None:
    """The fields of /proc/PID/stat after the name: STATE, PARENT, ..., CPU_TICKS; None if ended."""
    fields = (_text(root / f"proc/{pid}/stat") or "").rpartition(")")[2].split()
    return fields if len(fields) >= CPU_TICKS.stop else None


def family(root: Path = ROOT) -> dict[int, list[str]]:
    """`process_stat` of this process and all below it, by id."""
    pids = (int(path.name) for path in (root / "proc").glob("[0-9]*"))
    stats = {pid: fields for pid in pids if (fields := process_stat(pid, root))}
    below: dict[int, list[int]] = {}
    for pid, fields in stats.items():
        below.setdefault(int(fields[PARENT]), []).append(pid)
    relatives = [os.getpid()]
    for pid in relatives:
        relatives += below.get(pid, [])
    return {pid: stats[pid] for pid in relatives if pid in stats}


def has_driver(root: Path = ROOT) -> bool:
    """Whether there is a driver of NVIDIA's, so that there may be a GPU."""
    return any((root / name).exists() for name in DRIVER_FILES)


def usable_cores() -> int:
    """Logical cores that this process may run on (its CPU affinity)."""
    return len(os.sched_getaffinity(0))


def cpu_name(root: Path = ROOT) -> str:
    """The processor's model name, or the architecture where /proc/cpuinfo has none (many Arms)."""
    return _field(root / "proc/cpuinfo", "model name") or platform.machine()


def memory_bytes(root: Path = ROOT) -> int | None:
    """Memory of the whole computer in bytes; None where unknown."""
    return _meminfo_bytes("MemTotal", root)


def available_memory_bytes(root: Path = ROOT) -> int | None:
    """Bytes that a process could still take: MemAvailable, or what the control groups leave."""
    limits = [
        _meminfo_bytes("MemAvailable", root),
        *(_memory_left(g) for g in _cgroups(root, "memory")),
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def cpu_quota_cores(root: Path = ROOT) -> float | None:
    """The control groups' CPU quota in cores; None where there is no quota."""
    quotas = (_quota(group) for group in _cgroups(root, "cpu"))
    return min((quota for quota in quotas if quota is not None), default=None)


def cpu_governor(root: Path = ROOT) -> str | None:
    """The frequency governor of core 0; None where the system hides it, as in most VMs."""
    return _text(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def last_level_cache_bytes(root: Path = ROOT) -> int | None:
    """Bytes of last-level cache that the usable cores reach, each shared cache counted once."""
    caches: dict[tuple[int, str], int] = {}
    for core in os.sched_getaffinity(0):
        for folder in (root / f"sys/devices/system/cpu/cpu{core}/cache").glob("index*"):
            level, size = _text(folder / "level"), _size_bytes(_text(folder / "size"))
            if level and size and _text(folder / "type") != "Instruction":
                shared = _text(folder / "shared_cpu_list") or str(core)
                caches[int(level), shared] = size
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last) or None


def software() -> dict[str, str | None]:
    """Versions of the software that affects the numbers, as in the run file; None if absent."""
    import torch

    from microbench import __version__

    cudnn = torch.backends.cudnn.version()
    return {
        "project": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": _version(*TRITON_DISTRIBUTIONS),
        "cupy": _version(*CUPY_DISTRIBUTIONS),
        "cuda": torch.version.cuda,
        "cudnn": None if cudnn is None else cudnn_version(cudnn),
        "cublas": _version(*CUBLAS_DISTRIBUTIONS),
    }


def cudnn_version(number: int) -> str:
    """cuDNN's CUDNN_VERSION as text: 91002 is "9.10.2"; before cuDNN 9, 8907 is "8.9.7"."""
    major_unit = 10_000 if number >= 90_000 else 1_000
    return f"{number // major_unit}.{number % major_unit // 100}.{number % 100}"


def _version(*distributions: str) -> str | None:
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.lstrip("-").isdigit() else None


def _field(path: Path, name: str) -> str | None:
    """The first "name : value" of a /proc file."""
    for line in (_text(path) or "").splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() == name:
            return value.strip()
    return None


def _meminfo_bytes(name: str, root: Path) -> int | None:
    value = _field(root / "proc/meminfo", name)
    return KIB * int(value.split()[0]) if value else None


def _size_bytes(text: str | None) -> int | None:
    """Bytes of a sysfs cache size: "36608K", "32M"."""
    units = {"K": KIB, "M": KIB**2, "G": KIB**3}
    if not text or text[-1] not in units or not text[:-1].isdigit():
        return None
    return int(text[:-1]) * units[text[-1]]


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control group and its ancestors, version 2 and 1.

    A container often sees its own group at the top of the mount, which the ancestors include.
    """
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controllers and controller)
        group = mount / path.strip("/")
        while True:
            yield group
            if group == mount:
                break
            group = group.parent


def _memory_left(group: Path) -> int | None:
    """What a group's memory limit leaves; page cache that can be dropped counts as free."""
    limit = _number(group / "memory.max") or _number(group / "memory.limit_in_bytes")
    used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes")
    if limit is None or used is None or limit >= CGROUP_V1_UNLIMITED:
        return None
    stat = dict(
        line.split(maxsplit=1) for line in (_text(group / "memory.stat") or "").splitlines()
    )
    droppable = int(stat.get("total_inactive_file") or stat.get("inactive_file") or 0)
    return max(0, limit - used + droppable)


def _quota(group: Path) -> float | None:
    both = (_text(group / "cpu.max") or "").split()  # version 2: "max 100000" or "200000 100000"
    if len(both) == 2:
        return None if both[0] == "max" else int(both[0]) / int(both[1])
    quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


# ---------------------------------------------------------------- other programs meanwhile


LOADED = 0.5  # of all cores: from here on other programs are worth a warning
LOAD = "load"  # the key in a run's settings
SHARE, AT_START, PROCESSES, HELD, COMPUTING, LATER = (
    "cpu_share_of_others", "load_average_per_core", "gpu_processes", "gpu_bytes",
    "gpu_utilization_pct", "gpu_processes_later",
)  # fmt: skip
_BUSY = (0, 1, 2, 5, 6, 7)  # of /proc/stat's cpu line: user nice system irq softirq steal

CpuSeconds = tuple[float, float]  # CPU seconds of the machine, of this process and its children


def at_start(gpu: GpuState | None) -> Json:
    """The load before measuring: load average per core, other processes and their bytes on the GPU,
    and per cent of the time in which a kernel ran there.

    `gpu` is read before this process has a CUDA context, so all of its processes are others.
    """
    load: Json = {AT_START: round(os.getloadavg()[0] / (os.cpu_count() or 1), 3)}
    if gpu is not None and gpu.processes is not None:
        others = [size for pid, size in gpu.processes if pid != os.getpid()]
        load |= {PROCESSES: len(others), HELD: sum(size or 0 for size in others)}
    if gpu is not None and gpu.utilization_pct:
        load[COMPUTING] = gpu.utilization_pct
    return load


def others_now(gpu: GpuState | None) -> int:
    """How many other processes are on the GPU that this process uses; 0 where unknown.

    In a container NVML knows this process by another id, so one of the list is taken for it.
    """
    return max(0, len(gpu.processes or ()) - 1) if gpu is not None else 0


class LoadMeter:
    """Measures the CPU time of other programs since its construction (Linux only)."""

    def __init__(self, read: Callable[[], CpuSeconds | None] | None = None) -> None:
        self._read = read or cpu_seconds
        self._began = self._clock()

    def _clock(self) -> tuple[float, CpuSeconds | None]:
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


def cpu_seconds(root: Path = ROOT) -> CpuSeconds | None:
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
