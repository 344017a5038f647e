"""What on this machine makes figures wrong or unstable: each check reads what it judges.

A check yields a finding for each thing that it judges, none for what it cannot know. Adding one is
a function that `examine` calls. Nothing is changed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from microbench.device import host
from microbench.device.device import DeviceInfo, gpu_state, why_no_cuda
from microbench.device.telemetry import GpuState, throttle_words

Level = Literal["ok", "note", "warning", "problem"]
GIB = 1024**3
OPTIONAL_LIBRARIES = ("triton", "cupy")
LOAD_WARNING = 0.5  # load average per core of the computer
POWER_LIMIT_TOLERANCE = 0.99
MARGIN_WARNING_C = 10
BUSY_WARNING_PCT = 10
COOL = "let the GPU cool; check fans and air flow"
OTHER_GPU = "wait until the GPU is idle, or choose another: --device cuda:N"
# Of a word of telemetry.THROTTLE_REASONS: what to do. There is no setting for the others.
THROTTLE_REMEDIES = {
    "power cap": "another program draws power: stop it, or wait until the GPU is idle",
    "thermal": COOL,
    "power brake": "the server's power supply limits the GPU: ask the administrator",
    "hw slowdown": "heat or the power supply limits the GPU: check cooling and cables",
    "application clocks": "reset the clocks: sudo nvidia-smi -rgc, then -rac",
}
# Environment variables that change results on a GPU: level, effect, and harmless values.
VARIABLES: dict[str, tuple[Level, str, tuple[str, ...]]] = {
    "CUDA_LAUNCH_BLOCKING": (
        "problem", "every launch waits for its kernel, so the timer cannot work", ("", "0")),
    "NVIDIA_TF32_OVERRIDE": (
        "problem", "silently overrides the TF32 setting: at 0, tf32 is measured as fp32", ("",)),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": (
        "warning", "float32 GEMMs start as TF32, and torch refuses to read the setting", ("", "0")),
    "CUBLAS_WORKSPACE_CONFIG": (
        "warning", "limits the workspace, so cuBLAS may choose slower algorithms", ("",)),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (
        "warning", "every allocation calls cudaMalloc, which waits: steps are slow", ()),
    "TRITON_INTERPRET": (
        "problem", "Triton kernels run in Python, so their times mean nothing", ("", "0")),
}  # fmt: skip


def watched_environment() -> dict[str, str]:
    """The environment variables that change results and are set, as in the run file."""
    watched = (*VARIABLES, "OMP_NUM_THREADS")
    return {name: os.environ[name] for name in watched if name in os.environ}


@dataclass(frozen=True)
class Finding:
    """One fact, judged.

    "note" is worth knowing, a "warning" makes numbers worse or less stable, a "problem" makes them
    wrong or impossible. `what` states the fact with its numbers; `remedy` what the user can do.
    """

    name: str
    level: Level
    what: str
    remedy: str = ""


def examine(info: DeviceInfo) -> list[Finding]:
    """What there is to say of the device and the computer that it is in."""
    gpu = gpu_state(info)  # first: what follows may make this process one of those on the GPU
    findings = [*_device(info), *_libraries(info, gpu), *_environment(info), *_host(info)]
    if info.kind == "cuda" and gpu is None:
        symptom = "NVML is missing: clock, power and throttling are unknown"
        remedy = "pip install nvidia-ml-py, and check nvidia-smi"
        findings.append(Finding("sensors", "warning", symptom, remedy))
    return findings if gpu is None else [*findings, *_clock(gpu), *_sharing(info, gpu)]


def _device(info: DeviceInfo) -> Iterator[Finding]:
    """The device that will be measured, and why it is not a GPU."""
    memory = "unknown" if info.memory_bytes is None else f"{info.memory_bytes / GIB:.0f} GiB"
    if info.kind == "cuda":
        capability = "{}.{}".format(*info.capability or (0, 0))
        symptom = f"{info.name}: compute capability {capability}, {info.sm_count} SMs, {memory}"
        yield Finding("device", "ok", symptom)
        return
    symptom, reason = f"{info.name}: {info.sm_count} usable cores, {memory}", why_no_cuda()
    if reason is None:
        yield Finding("device", "note", f"{symptom}; there is also a GPU", "use --device cuda")
    elif host.has_driver():
        symptom += f"; an NVIDIA driver is installed, but {reason}"
        remedy = "install torch for CUDA; check nvidia-smi and CUDA_VISIBLE_DEVICES"
        yield Finding("device", "warning", symptom, remedy)
    else:
        symptom += f"; CPU only ({reason}), so GPU back ends are skipped"
        yield Finding("device", "note", symptom, "run on a computer with an NVIDIA GPU and driver")


def _libraries(info: DeviceInfo, gpu: GpuState | None) -> Iterator[Finding]:
    """Versions, what cannot be imported, and whether driver and torch fit the GPU."""
    import torch

    software = host.software()
    named = {"halfway" if name == "project" else name: one for name, one in software.items()}
    versions = ", ".join(f"{name} {version}" for name, version in named.items() if version)
    yield Finding("libraries", "ok", versions)
    for name in OPTIONAL_LIBRARIES:
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken library can raise anything as it loads
            first = (str(error).strip().splitlines() or [""])[0]
            symptom = f"{name} cannot be imported ({type(error).__name__}: {first})"
            level: Level = "problem" if info.kind == "cuda" else "note"
            yield Finding(name, level, symptom, f"reinstall {name} for CUDA {software.get('cuda')}")
    cuda, newest = software.get("cuda"), gpu and gpu.driver_cuda
    if cuda and newest and newest < tuple(int(part) for part in cuda.split(".")[:2]):
        symptom = f"driver {info.driver} supports CUDA {newest[0]}.{newest[1]}, torch has {cuda}"
        level = "problem" if newest[0] < int(cuda.split(".")[0]) else "note"
        yield Finding("driver", level, symptom, f"install a driver for CUDA {cuda} or newer")
    built = torch.cuda.get_arch_list()
    if info.capability and built and not any(_runs_on(name, info.capability) for name in built):
        wanted = "sm_{}{}".format(*info.capability)
        symptom = f"torch has no kernels for {wanted}, only for {', '.join(built)}"
        yield Finding("torch kernels", "problem", symptom, f"install a torch built for {wanted}")


def _runs_on(name: str, capability: tuple[int, int]) -> bool:
    """Machine code ("sm_80") runs on its major version from its minor on, PTX on all newer GPUs."""
    kind, _, digits = name.partition("_")
    digits = digits.rstrip("af")
    built = (int(digits[:-1]), int(digits[-1])) if digits.isdigit() else (99, 0)
    return built <= capability and (kind == "compute" or built[0] == capability[0])


def _environment(info: DeviceInfo) -> Iterator[Finding]:
    """Environment variables that change results."""
    found = False
    for name, (level, effect, harmless) in VARIABLES.items():
        value = os.environ.get(name)
        if info.kind == "cuda" and value is not None and value not in harmless:
            found = True
            yield Finding(name, level, f"{name}={value}: {effect}", "unset it")
    if not found:
        yield Finding("environment", "ok", "no variable that changes results is set")


def _host(info: DeviceInfo) -> Iterator[Finding]:
    """Cores, threads, load, and the clock of the CPU."""
    usable, total, quota = host.usable_cores(), os.cpu_count() or 1, host.cpu_quota_cores()
    symptom = f"{usable} of {total} cores usable"
    if quota is not None and quota < usable:
        symptom += f", but a CPU quota of {quota:g} cores stalls all threads when it is used up"
        remedy = f"raise the container's CPU quota, or use at most {max(1, int(quota))} threads"
        yield Finding("cores", "warning", symptom, remedy)
    elif usable < total:
        remedy = "widen the CPU affinity (taskset, --cpuset-cpus), if unintended"
        yield Finding("cores", "note", symptom, remedy)
    else:
        yield Finding("cores", "ok", symptom)
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and 0 < int(threads) < usable:
        symptom = f"OMP_NUM_THREADS={threads}: fewer threads than usable cores"
        yield Finding("OMP_NUM_THREADS", "note", symptom, "unset it, unless intended")
    load = os.getloadavg()[0]
    symptom, idle = f"load average {load:.1f} on {total} cores", load < LOAD_WARNING * total
    yield _graded("load", idle, symptom, "stop other programs, or wait until the load falls")
    governor = host.cpu_governor()
    if info.kind == "cpu" and governor not in (None, "performance"):
        symptom = f"{governor}: the CPU clock varies, and times with it"
        remedy = "sudo cpupower frequency-set -g performance"
        yield Finding("cpu governor", "warning", symptom, remedy)


def _clock(gpu: GpuState) -> Iterator[Finding]:
    """What holds the clock of the GPU down: limits, settings, heat."""
    readings = {"power": gpu.power_w, "SM clock": gpu.sm_clock_mhz,
                "temperature": gpu.temperature_c, "throttling": gpu.event_reasons}  # fmt: skip
    if silent := [name for name, value in readings.items() if value is None]:
        symptom = f"NVML does not answer for {', '.join(silent)}"
        yield Finding("sensors", "note", symptom, "run outside the virtual machine or MIG slice")
    limit_w, default_w = gpu.power_limit_w, gpu.power_limit_default_w
    if limit_w is not None and default_w is not None:
        whole = limit_w >= default_w * POWER_LIMIT_TOLERANCE
        symptom = f"{limit_w:.0f} W of {default_w:.0f} W"
        yield _graded("power limit", whole, symptom, f"sudo nvidia-smi -i GPU -pl {default_w:.0f}")
    clock_mhz, usual_mhz = gpu.application_clock_mhz, gpu.application_clock_default_mhz
    if clock_mhz is not None and usual_mhz is not None:
        symptom = f"application clock {clock_mhz} MHz of {usual_mhz} MHz"
        yield _graded("clocks", clock_mhz == usual_mhz, symptom, "sudo nvidia-smi -i GPU -rac")
    if words := throttle_words(gpu.event_reasons):
        remedies = [THROTTLE_REMEDIES[word] for word in words if word in THROTTLE_REMEDIES]
        symptom = f"the clock is limited now by {', '.join(words)}"
        level: Level = "warning" if remedies else "note"
        yield Finding("throttling", level, symptom, "; ".join(remedies))
    if gpu.temperature_margin_c is not None:
        margin_c = gpu.temperature_margin_c
        symptom = f"{gpu.temperature_c} °C, {margin_c} °C below the slowdown threshold"
        yield _graded("temperature", margin_c >= MARGIN_WARNING_C, symptom, COOL)


def _sharing(info: DeviceInfo, gpu: GpuState) -> Iterator[Finding]:
    """Whether the GPU is a part of one, or works for others, and its link to the host."""
    if gpu.mig:
        symptom = (
            f"MIG is on: this slice has {info.sm_count} SMs; power, clock and throttling are the "
            "whole card's, and so is the datasheet"
        )
        yield Finding("mig", "warning", symptom, "measure on a GPU with MIG off")
    others = [size for pid, size in gpu.processes or () if pid != os.getpid()]
    if others:
        held = f"{sum(size or 0 for size in others) / GIB:.1f} GiB"
        symptom = f"{len(others)} other process(es) on the GPU hold {held}"
        yield Finding("other processes", "warning", symptom, OTHER_GPU)
    if gpu.utilization_pct is not None:
        symptom = f"{gpu.utilization_pct} % busy before this program launched work"
        yield _graded("busy", gpu.utilization_pct < BUSY_WARNING_PCT, symptom, OTHER_GPU)
    width, most = gpu.pcie_width, gpu.pcie_width_max
    if width is not None and most is not None and width < most:
        symptom = f"PCIe x{width} of x{most}: copies from the host are slower than the card allows"
        yield Finding("pcie", "warning", symptom, "reseat the card or use a wider slot")


def _graded(name: str, good: bool, symptom: str, remedy: str) -> Finding:
    """A fact that is fine where it is `good`, else a warning with what the user can do."""
    return Finding(name, "ok", symptom) if good else Finding(name, "warning", symptom, remedy)
