"""Doctor's checks of everything around the GPU: software, switches, environment, the computer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from microbench.device.device import ASSUMED_CACHE_BYTES
from microbench.device.doctor.facts import GIB, Check, Facts, Finding, Level, graded

LOAD_WARNING = 0.5  # runnable processes per core of the computer
HOST_MEMORY_WARNING_BYTES = 2 * GIB
DISK_WARNING_BYTES = 1 * GIB
OFF = ("", "0")


def device(facts: Facts) -> Finding:
    """The device that will be measured, and why it is not a GPU."""
    info = facts.device
    memory = "unknown" if info.memory_bytes is None else f"{info.memory_bytes / GIB:.0f} GiB"
    if info.kind == "cuda":
        capability = "{}.{}".format(*info.capability or (0, 0))
        what = f"{info.name}: compute capability {capability}, {info.sm_count} SMs, {memory}"
        return Finding("device", "ok", what)
    what = f"{info.name}: {info.sm_count} usable cores, {memory}"
    if facts.no_cuda is None:
        return Finding(
            "device", "note", f"{what}; this machine also has a GPU", "use --device cuda"
        )
    if facts.driver_present:
        what += f"; an NVIDIA driver is installed, but {facts.no_cuda}"
        remedy = "install torch for CUDA; check nvidia-smi and CUDA_VISIBLE_DEVICES"
        return Finding("device", "warning", what, remedy)
    what += f"; CPU only ({facts.no_cuda}), so GPU back ends are skipped"
    return Finding("device", "note", what, "run on a computer with an NVIDIA GPU and driver")


def libraries(facts: Facts) -> Finding:
    """Versions, and whether Triton and CuPy can be imported."""
    versions = ", ".join(f"{name} {version}" for name, version in facts.software.items() if version)
    if not facts.unimportable:
        return Finding("libraries", "ok", versions)
    errors = "; ".join(
        f"{name} cannot be imported ({why})" for name, why in facts.unimportable.items()
    )
    level: Level = "problem" if facts.device.kind == "cuda" else "note"
    remedy = f"reinstall {', '.join(facts.unimportable)} for CUDA {facts.software.get('cuda')}"
    return Finding("libraries", level, f"{errors}; has {versions}", remedy)


def driver(facts: Facts) -> Finding | None:
    """Whether the driver is new enough for the CUDA that torch brings."""
    newest = facts.gpu and facts.gpu.driver_cuda
    cuda = facts.software.get("cuda")
    if not newest or not cuda:
        return None
    what = f"driver {facts.device.driver} supports CUDA {newest[0]}.{newest[1]}, torch has {cuda}"
    major, minor = (int(part) for part in cuda.split(".")[:2])
    if newest[0] < major:
        return Finding("driver", "problem", what, f"install a driver for CUDA {cuda} or newer")
    if newest < (major, minor):
        what += ": runs by minor-version compatibility, but newer PTX cannot be compiled"
        return Finding("driver", "note", what, f"install a driver for CUDA {cuda} or newer")
    return Finding("driver", "ok", what)


def torch_kernels(facts: Facts) -> Finding | None:
    """Whether torch was compiled for this GPU."""
    capability, built = facts.device.capability, facts.torch_architectures
    if capability is None or not built:
        return None
    major, minor = capability
    wanted = f"sm_{major}{minor}"
    if any(_runs_on(name, major, minor) for name in built):
        return Finding("torch kernels", "ok", f"torch has kernels that run on {wanted}")
    what = f"torch has no kernels for {wanted}, only for {', '.join(built)}"
    return Finding("torch kernels", "problem", what, f"install a torch built for {wanted}")


def _runs_on(name: str, major: int, minor: int) -> bool:
    """Machine code ("sm_80") runs on its major version from its minor on, PTX on all newer GPUs."""
    kind, _, digits = name.partition("_")
    digits = digits.rstrip("af")
    if not digits.isdigit():
        return False
    built = (int(digits[:-1]), int(digits[-1]))
    return built <= (major, minor) and (kind == "compute" or built[0] == major)


def tf32_switches(facts: Facts) -> Finding | None:
    """PyTorch's two TF32 switches, which every variant sets for itself."""
    if facts.matmul_fp32 is None or facts.conv_fp32 is None:
        return None
    matmul, conv = (
        "TF32" if switch == "tf32" else "IEEE" for switch in (facts.matmul_fp32, facts.conv_fp32)
    )
    what = f"float32 GEMMs are {matmul}, convolutions {conv} by default; each variant sets both"
    if facts.device.kind == "cuda" and facts.matmul_fp32 == "tf32":
        what += " (PyTorch's default for matrix multiplication is IEEE: something changed it)"
        return Finding("tf32 switches", "note", what, "find what sets fp32_precision at startup")
    return Finding("tf32 switches", "ok", what)


@dataclass(frozen=True)
class Variable:
    """The effect of an environment variable. `applies` says for which value and machine."""

    level: Level
    effect: str
    applies: Callable[[str, Facts], bool]
    remedy: str = "unset it"


def _on_gpu(_: str, facts: Facts) -> bool:
    return facts.device.kind == "cuda"


def _on_gpu_and_on(value: str, facts: Facts) -> bool:
    return _on_gpu(value, facts) and value not in OFF


def _is_fewer_threads(value: str, facts: Facts) -> bool:
    return value.isdigit() and 0 < int(value) < facts.cores_usable


VARIABLES: dict[str, Variable] = {
    "CUDA_LAUNCH_BLOCKING": Variable(
        "problem", "every launch waits for its kernel, so the timer cannot work", _on_gpu_and_on
    ),
    "NVIDIA_TF32_OVERRIDE": Variable(
        "problem",
        "silently overrides the TF32 setting: at 0, tf32 is measured as fp32",
        lambda value, facts: value != "" and _on_gpu(value, facts),
    ),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": Variable(
        "warning",
        "float32 GEMMs start as TF32, and torch refuses to read the setting",
        _on_gpu_and_on,
    ),
    "CUBLAS_WORKSPACE_CONFIG": Variable(
        "warning",
        "limits the workspace, so cuBLAS may choose slower algorithms",
        lambda value, facts: value != "" and _on_gpu(value, facts),
    ),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": Variable(
        "warning",
        "every allocation calls cudaMalloc, which waits for the GPU: steps are slow",
        _on_gpu,
    ),
    "TRITON_INTERPRET": Variable(
        "problem", "Triton kernels run in Python, so their times mean nothing", _on_gpu_and_on
    ),
    "OMP_NUM_THREADS": Variable(
        "note",
        "fewer threads than usable cores for CPU kernels and for data loading",
        _is_fewer_threads,
        "unset it, unless intended",
    ),
}


def environment_variable(name: str, facts: Facts) -> Finding | None:
    """A variable that is set and changes results; None otherwise."""
    rule, value = VARIABLES[name], facts.environment.get(name)
    if value is None or not rule.applies(value, facts):
        return None
    return Finding(name, rule.level, f"{name}={value}: {rule.effect}", rule.remedy)


def environment(facts: Facts) -> Finding | None:
    """Says so when no watched variable changes anything."""
    if any(environment_variable(name, facts) for name in VARIABLES):
        return None
    what = f"none of {len(VARIABLES)} variables that change results is in effect"
    return Finding("environment", "ok", what)


def packages(facts: Facts) -> Finding:
    """Whether another package has a name of ours: installed beside it, one replaces the other."""
    if not facts.shadowed:
        return Finding("packages", "ok", "kernels, microbench and e2e are halfway's")
    what = f"other packages have names of halfway's: {', '.join(facts.shadowed)}"
    return Finding("packages", "warning", what, "install halfway in an environment of its own")


def cores(facts: Facts) -> Finding:
    """Cores this process may use, and a quota on their time."""
    what = f"{facts.cores_usable} of {facts.cores_total} cores usable"
    quota = facts.quota_cores
    if quota is not None and quota < facts.cores_usable:
        what += f", but a CPU quota of {quota:g} cores stalls all threads when it is used up"
        level: Level = "warning"
        remedy = f"raise the container's CPU quota, or use at most {max(1, int(quota))} threads"
        return Finding("cores", level, what, remedy)
    if facts.cores_usable < facts.cores_total:
        return Finding(
            "cores", "note", what, "widen the CPU affinity (taskset, --cpuset-cpus), if unintended"
        )
    return Finding("cores", "ok", what)


def load(facts: Facts) -> Finding | None:
    """Load average of the last minute against the number of cores."""
    if facts.load_1min is None:
        return None
    what = f"load average {facts.load_1min:.1f} on {facts.cores_total} cores"
    idle = facts.load_1min < LOAD_WARNING * facts.cores_total
    return graded("load", idle, what, "stop other programs, or wait until the load falls")


def governor(facts: Facts) -> Finding | None:
    """The CPU's frequency governor; launch times and CPU kernels follow it."""
    if facts.governor is None:
        return None
    if facts.governor == "performance":
        return Finding("cpu governor", "ok", "performance")
    level: Level = "warning" if facts.device.kind == "cpu" else "note"
    what = f"{facts.governor}: the CPU clock varies, and launch times with it"
    return Finding("cpu governor", level, what, "sudo cpupower frequency-set -g performance")


def virtual_machine(facts: Facts) -> Finding | None:
    """Whether the CPU is that of a virtual machine."""
    if not facts.virtual_machine:
        return None
    what = "virtual machine: other guests may use CPU time, and clocks are hidden"
    return Finding("virtual machine", "note", what, "repeat the run and compare, or use bare metal")


def cache_size(facts: Facts) -> Finding | None:
    """Whether the size of a CPU's last-level cache is known, which --l2 cold overwrites."""
    if facts.device.kind != "cpu":
        return None
    if facts.cache_bytes is not None:
        return Finding("cache", "ok", f"last-level cache {facts.cache_bytes / 2**20:.1f} MiB")
    what = f"cache size unknown: {ASSUMED_CACHE_BYTES // 2**20} MiB assumed for --l2 cold"
    return Finding("cache", "note", what, "use --l2 warm, if the real cache is larger")


def host_memory(facts: Facts) -> Finding | None:
    """Free memory of the host, in GiB, for operands, references and data loading."""
    free, total = facts.host_free_bytes, facts.host_total_bytes
    if free is None or total is None:
        return None
    what = f"{free / GIB:.1f} of {total / GIB:.1f} GiB of host memory available"
    enough = free >= HOST_MEMORY_WARNING_BYTES
    return graded("host memory", enough, what, "end other programs, or raise the memory limit")


def disk(facts: Facts) -> Finding | None:
    """Free disk space, in GiB, for compiled kernels."""
    if facts.disk_free_bytes is None:
        return None
    what = f"{facts.disk_free_bytes / GIB:.1f} GiB free for Triton's cache"
    enough = facts.disk_free_bytes >= DISK_WARNING_BYTES
    return graded("disk", enough, what, "free some space, or set TRITON_CACHE_DIR to another disk")


SOFTWARE_CHECKS: tuple[Check, ...] = (
    libraries, packages, driver, torch_kernels, tf32_switches,
    *(partial(environment_variable, name) for name in VARIABLES), environment,
)  # fmt: skip
HOST_CHECKS: tuple[Check, ...] = (
    cores, load, governor, virtual_machine, cache_size, host_memory, disk,
)  # fmt: skip
