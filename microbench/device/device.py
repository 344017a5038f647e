"""The device: its description, its sensors and settings, its free memory.

The only importer of pynvml (nvidia-ml-py). Where NVML is missing, or refuses a call, a fact is None
and nothing fails. Nothing here changes a setting.
"""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any

from kernels.case import Target
from kernels.messages import first_line
from microbench.device import host
from microbench.device.host import software as software
from microbench.device.telemetry import POLL_INTERVAL_S, SM_CLOCK, GpuState, NvmlGpu, Telemetry
from microbench.errors import UserError

# Assumed where sysfs has no cache size.
ASSUMED_CACHE_BYTES = 32 * 1024 * 1024
OTHERS_SHARE = 0.1  # of a GPU's memory: so much that others hold is a reason why it is full


@dataclass(frozen=True)
class DeviceInfo:
    """The facts of a device that go into a run file; None where unknown.

    `sm_count` is the usable cores of a CPU, `l2_bytes` its last-level cache; `capability` is
    (major, minor). Nothing identifies the computer: no host name, UUID, serial number or bus
    address. `card` tells two cards of one model apart: the first 12 hex digits of SHA-256 of
    "halfway " and the GPU's UUID. The UUID cannot be computed from it, but a known UUID can be
    tested against it. None on a CPU and where NVML is missing.
    """

    name: str
    kind: str  # "cuda" or "cpu"
    capability: tuple[int, int] | None
    sm_count: int
    memory_bytes: int | None
    l2_bytes: int
    driver: str | None = None
    power_limit_w: float | None = None
    sm_clock_max_mhz: float | None = None
    index: int = 0  # torch's, so after CUDA_VISIBLE_DEVICES
    card: str | None = None

    def target(self) -> Target:
        """The facts by which kernels are chosen."""
        return Target(self.kind, self.name, self.capability, self.sm_count, self.index)

    def as_dict(self) -> dict[str, object]:
        """The "device" object of the run file."""
        facts = asdict(self)
        del facts["index"]
        if self.capability is not None:
            facts["capability"] = "{}.{}".format(*self.capability)
        return facts


def describe(device: str = "auto") -> DeviceInfo:
    """The device called "auto" (a GPU if there is one), "cuda", "cuda:N" or "cpu".

    UserError for an unknown name, no GPU, or an index that does not exist.
    """
    if device == "auto":
        device = "cuda" if why_no_cuda() is None else "cpu"
    if device == "cpu":
        return DeviceInfo(
            name=host.cpu_name(),
            kind="cpu",
            capability=None,
            sm_count=host.usable_cores(),
            memory_bytes=host.memory_bytes(),
            l2_bytes=host.last_level_cache_bytes() or ASSUMED_CACHE_BYTES,
        )
    name, colon, index = device.partition(":")
    if name != "cuda" or (colon and not (index.isascii() and index.isdigit())):
        raise UserError(f"unknown device {device!r}; choose from auto, cuda, cuda:N, cpu")
    return _describe_cuda(int(index or 0))


def why_no_cuda() -> str | None:
    """Why torch finds no CUDA device, or None when it finds one."""
    import torch

    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if torch.cuda.is_available():
        return None
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    return "torch finds no NVIDIA driver or no GPU"


def _describe_cuda(index: int) -> DeviceInfo:
    """The GPU that torch calls cuda:`index`. UserError when there is none."""
    import torch

    reason = why_no_cuda()
    if reason is not None:
        raise UserError(f"no CUDA device here: {reason}; use --device cpu")
    count = torch.cuda.device_count()
    if index >= count:
        choices = ", ".join(f"cuda:{i}" for i in range(count))
        raise UserError(f"no device cuda:{index} here; choose from {choices}, cpu")
    properties = _properties(index)
    gpu = gpu_for(index)
    return DeviceInfo(
        name=properties.name,
        kind="cuda",
        capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        l2_bytes=properties.L2_cache_size,
        driver=gpu and gpu.driver(),
        power_limit_w=gpu and gpu.watts("nvmlDeviceGetEnforcedPowerLimit"),
        sm_clock_max_mhz=gpu and gpu.ask("nvmlDeviceGetMaxClockInfo", SM_CLOCK),
        index=index,
        card=gpu and gpu.card(),
    )


def free_memory_bytes(info: DeviceInfo) -> int | None:
    """Free memory of the device in bytes; None where unknown.

    On a GPU this creates a CUDA context.
    """
    if info.kind == "cpu":
        return host.available_memory_bytes()
    import torch

    return torch.cuda.mem_get_info(info.index)[0]


def fault_of_gpu() -> Exception | None:
    """What a kernel of this process did; a library that met it first says only that it failed."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except Exception as error:
        return error
    return None


def raise_if_dead(error: Exception) -> None:
    """RuntimeError after a fault that leaves the GPU of no use to this process."""
    if fault_of_gpu():
        raise RuntimeError(first_line(error)) from error


def held_by_others() -> str:
    """Such as "other processes hold 130.1 of the GPU's 150.1 GB"; empty where they hold little.

    In a process that uses the GPU: its context, and what others than torch took, count as theirs.
    """
    import torch

    if not torch.cuda.is_initialized():
        return ""
    free, total = torch.cuda.mem_get_info()
    theirs = total - free - torch.cuda.memory_reserved()
    if theirs < OTHERS_SHARE * total:
        return ""
    return f"other processes hold {theirs / 1e9:.1f} of the GPU's {total / 1e9:.1f} GB"


def limit_memory(index: int, limit: int) -> None:
    """Let torch's allocator take no more than `limit` bytes of cuda:`index`, in this process.

    It raises torch.OutOfMemoryError beyond. The CUDA context is not counted, nor what libraries
    allocate themselves.
    """
    import torch

    _, total = torch.cuda.mem_get_info(index)
    cuda: Any = torch.cuda
    cuda.set_per_process_memory_fraction(min(1.0, limit / total), index)


def memory_of_process(index: int) -> int | None:
    """Bytes that this process uses of the GPU that torch calls cuda:`index`, by NVML.

    In a container processes have other ids than NVML knows: where just one is on the GPU, it is
    this one, and where NVML shows none, what is used of the whole card is taken. None if unknown.
    """
    gpu = gpu_for(index)
    if gpu is None:
        return None
    held = dict(gpu.processes() or ())
    if os.getpid() in held:
        return held[os.getpid()]
    if len(held) == 1:
        return next(iter(held.values()))
    memory = None if held else gpu.ask("nvmlDeviceGetMemoryInfo")
    return memory and int(memory.used)


def open_sensors(info: DeviceInfo) -> NvmlGpu | None:
    """The sensors of a device; None for a CPU or where NVML is missing."""
    return gpu_for(info.index) if info.kind == "cuda" else None


def open_telemetry(info: DeviceInfo, interval_s: float = POLL_INTERVAL_S) -> Telemetry:
    """Telemetry of a device, not started yet; it samples every `interval_s` seconds."""
    return Telemetry(open_sensors(info), interval_s)


def gpu_state(info: DeviceInfo) -> GpuState | None:
    """Settings and condition of the GPU; None for a CPU or where NVML is missing."""
    gpu = open_sensors(info)
    return None if gpu is None else gpu.state()


def gpu_for(index: int) -> NvmlGpu | None:
    """The GPU that torch calls cuda:`index` as NVML sees it; None where NVML is missing.

    CUDA_VISIBLE_DEVICES renumbers torch's devices but not NVML's, so they are matched by PCI
    address.
    """
    nvml = load_nvml()
    if nvml is None:
        return None
    view = _properties(index)
    address = f"{view.pci_domain_id:08X}:{view.pci_bus_id:02X}:{view.pci_device_id:02X}.0"
    try:
        return NvmlGpu(nvml, nvml.nvmlDeviceGetHandleByPciBusId(address))
    except nvml.NVMLError:
        return None


def _properties(index: int) -> Any:
    """torch's properties of a CUDA device."""
    import torch

    cuda: Any = torch.cuda  # its functions have no types
    return cuda.get_device_properties(index)


@functools.cache
def load_nvml() -> Any:
    """The pynvml module, initialised once per process; None without the package or the driver."""
    try:
        import pynvml  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
