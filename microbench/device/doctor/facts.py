"""The facts that doctor gathers once, and the finding that each check makes of them."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, Literal

from kernels.user_folders import PROGRAM
from microbench.device import host
from microbench.device.device import DeviceInfo, free_memory_bytes, gpu_state, why_no_cuda
from microbench.device.nvml import GpuState
from microbench.own_packages import NAMES

OPTIONAL_LIBRARIES = ("triton", "cupy")
GIB = 1024**3
DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/dxg")  # Linux, and Linux under Windows


@dataclass(frozen=True)
class Facts:
    """The machine as doctor judges it; None where unknown. Sizes are bytes."""

    device: DeviceInfo
    gpu: GpuState | None = None
    no_cuda: str | None = None  # why torch finds no CUDA device; None when it finds one
    driver_present: bool = False
    software: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    # library -> the error, one line
    unimportable: Mapping[str, str] = field(default_factory=dict[str, str])
    torch_architectures: tuple[str, ...] = ()  # "sm_90", ...: what torch was compiled for
    matmul_fp32: str | None = None  # torch's switches: "none" (not set), "ieee", "tf32"
    conv_fp32: str | None = None
    # host.WATCHED_VARIABLES that are set
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    shadowed: tuple[str, ...] = ()  # names of ours that another installed package has too
    own_pid: int = 0
    cores_usable: int = 1
    cores_total: int = 1
    quota_cores: float | None = None
    load_1min: float | None = None
    governor: str | None = None
    virtual_machine: bool = False
    cache_bytes: int | None = None  # last level of the CPU
    device_free_bytes: int | None = None  # GPU only
    host_total_bytes: int | None = None
    host_free_bytes: int | None = None
    disk_free_bytes: int | None = None  # where Triton keeps what it compiled


def gather(info: DeviceInfo) -> Facts:
    """Ask torch, NVML, /proc, /sys and the environment. Changes nothing; takes about a second."""
    import torch

    cudnn: Any = torch.backends.cudnn
    # NVML before free_memory_bytes, which makes this process one of those on the GPU.
    gpu = gpu_state(info)
    return Facts(
        device=info,
        gpu=gpu,
        no_cuda=why_no_cuda(),
        driver_present=any(Path(name).exists() for name in DRIVER_FILES),
        software=host.software(),
        unimportable=_import_errors(OPTIONAL_LIBRARIES),
        torch_architectures=tuple(torch.cuda.get_arch_list()),
        matmul_fp32=str(torch.backends.cuda.matmul.fp32_precision),
        conv_fp32=str(cudnn.conv.fp32_precision),
        environment=host.watched_environment(),
        shadowed=_also_theirs(),
        own_pid=os.getpid(),
        cores_usable=host.usable_cores(),
        cores_total=os.cpu_count() or 1,
        quota_cores=host.cpu_quota_cores(),
        load_1min=os.getloadavg()[0],
        governor=host.cpu_governor(),
        virtual_machine=host.is_virtual_machine(),
        cache_bytes=host.last_level_cache_bytes(),
        device_free_bytes=free_memory_bytes(info) if info.kind == "cuda" else None,
        host_total_bytes=host.memory_bytes(),
        host_free_bytes=host.available_memory_bytes(),
        disk_free_bytes=_disk_free_bytes(_triton_cache()),
    )


def _import_errors(names: Iterable[str]) -> dict[str, str]:
    errors: dict[str, str] = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken library can raise anything as it loads
            lines = str(error).strip().splitlines() or [""]
            errors[name] = f"{type(error).__name__}: {lines[0]}"
    return errors


def _also_theirs() -> tuple[str, ...]:
    """Our packages' names that another installed distribution has too."""
    known = packages_distributions()
    return tuple(name for name in NAMES if set(known.get(name, ())) - {PROGRAM})


def _triton_cache() -> Path:
    """TRITON_CACHE_DIR, else .triton/cache under TRITON_HOME or the home folder, as Triton does."""
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache"))


def _disk_free_bytes(folder: Path) -> int | None:
    """Free bytes on the disk that holds the folder, which need not exist yet."""
    for existing in (folder, *folder.absolute().parents):
        if existing.exists():
            try:
                return shutil.disk_usage(existing).free
            except OSError:
                return None
    return None


# ---------------------------------------------------------------- findings

Level = Literal["ok", "note", "warning", "problem"]
LEVELS: tuple[Level, ...] = ("ok", "note", "warning", "problem")


@dataclass(frozen=True)
class Finding:
    """One fact, judged.

    "note" is worth knowing, a "warning" makes numbers worse or less stable, a "problem" makes them
    wrong or impossible. `what` states the fact with its numbers; `remedy` what the user can do.
    """

    name: str
    level: Level
    what: str
    remedy: str | None = None


def graded(name: str, good: bool, what: str, remedy: str) -> Finding:
    """A fact that is fine where it is `good`, else a warning with what the user can do."""
    return Finding(name, "ok", what) if good else Finding(name, "warning", what, remedy)


Check = Callable[[Facts], Finding | None]  # None: does not apply here, or is not known
