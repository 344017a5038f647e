"""Doctor's checks of the GPU: limits, clocks, throttling, sharing, its link to the host."""

from __future__ import annotations

from microbench.device.doctor.facts import GIB, Check, Facts, Finding, Level, graded
from microbench.device.nvml import GpuState
from microbench.device.telemetry import throttle_words

MARGIN_WARNING_C = 10
POWER_LIMIT_TOLERANCE = 0.99
BUSY_WARNING_PCT = 10
FREE_MEMORY_WARNING = 0.8  # of the whole; a CUDA context of our own takes about half a GiB

_THROTTLE: dict[str, tuple[Level, str]] = {
    "power cap": ("warning", "another program draws power: stop it, or wait until the GPU is idle"),
    "thermal": ("warning", "let the GPU cool; check fans and air flow"),
    "power brake": ("warning", "the server's power supply limits the GPU: ask the administrator"),
    "hw slowdown": ("warning", "heat or the power supply limits the GPU: check cooling and cables"),
    "application clocks": ("warning", "reset the clocks: sudo nvidia-smi -rgc, then -rac"),
    "sync boost": ("note", "take the GPU out of its sync boost group (dcgmi config)"),
    "display": ("note", "measure on a GPU that drives no display"),
    "board limit": ("note", "the board limits the clock: there is no setting for it"),
    "reliability": ("note", "the voltage limits the clock: there is no setting for it"),
}


def _gpu(facts: Facts) -> GpuState:
    return facts.gpu or GpuState()


def sensors(facts: Facts) -> Finding | None:
    """Whether NVML answers, and which readings it refuses."""
    if facts.device.kind != "cuda":
        return None
    name = "sensors"
    if facts.gpu is None:
        what = "NVML is missing: clock, power and throttling are unknown"
        return Finding(name, "warning", what, "pip install nvidia-ml-py, and check nvidia-smi")
    readings = {
        "power": facts.gpu.power_w,
        "SM clock": facts.gpu.sm_clock_mhz,
        "temperature": facts.gpu.temperature_c,
        "throttle reasons": facts.gpu.event_reasons,
    }
    silent = [reading for reading, value in readings.items() if value is None]
    if silent:
        what = f"NVML does not answer for {', '.join(silent)} ({len(silent)} of {len(readings)})"
        return Finding(name, "note", what, "run outside the virtual machine or MIG slice, if any")
    return Finding(name, "ok", f"NVML answers for {', '.join(readings)}")


def power_limit(facts: Facts) -> Finding | None:
    """The power limit in force, in watts, against the card's default."""
    limit, default = _gpu(facts).power_limit_w, _gpu(facts).power_limit_default_w
    if limit is None:
        return None
    if default is None or limit >= default * POWER_LIMIT_TOLERANCE:
        return Finding("power limit", "ok", f"{limit:.0f} W")
    under_pct = 100 * (1 - limit / default)
    what = f"{limit:.0f} W, {under_pct:.0f} % below the card's default of {default:.0f} W"
    return Finding("power limit", "warning", what, f"sudo nvidia-smi -i GPU -pl {default:.0f}")


def clocks(facts: Facts) -> Finding | None:
    """SM clock in MHz, and application clocks that differ from the default."""
    gpu = _gpu(facts)
    if gpu.sm_clock_max_mhz is None:
        return None
    now = "unknown" if gpu.sm_clock_mhz is None else f"{gpu.sm_clock_mhz} MHz"
    what = f"SM clock now {now}, at most {gpu.sm_clock_max_mhz} MHz"
    setting, default = gpu.application_clock_mhz, gpu.application_clock_default_mhz
    if setting is None or default is None or setting == default:
        return Finding("clocks", "ok", what)
    what += f"; application clock set to {setting} MHz, default {default} MHz"
    return Finding("clocks", "warning", what, "sudo nvidia-smi -i GPU -rac")


def throttling(facts: Facts) -> Finding | None:
    """Why the clock is held down at this moment."""
    reasons = _gpu(facts).event_reasons
    if reasons is None:
        return None
    words = throttle_words(reasons)
    if not words:
        return Finding("throttling", "ok", "nothing limits the clock now")
    level: Level = "warning" if any(_THROTTLE[word][0] == "warning" for word in words) else "note"
    what = f"the clock is limited now by {', '.join(words)} (NVML reasons {reasons:#x})"
    return Finding("throttling", level, what, "; ".join(_THROTTLE[word][1] for word in words))


def temperature(facts: Facts) -> Finding | None:
    """Degrees Celsius between the chip and the threshold at which it slows itself down."""
    now, margin = _gpu(facts).temperature_c, _gpu(facts).temperature_margin_c
    if now is None or margin is None:
        return None
    what = f"{now} °C, {margin} °C below the slowdown threshold"
    cool = margin >= MARGIN_WARNING_C
    return graded("temperature", cool, what, "let the GPU cool; check fans and air flow")


def ecc(facts: Facts) -> Finding | None:
    """Error correction of the memory: it costs bandwidth with GDDR, hardly any with HBM."""
    now, pending = _gpu(facts).ecc, _gpu(facts).ecc_pending
    if now is None:
        return None
    state = "on" if now else "off"
    if pending is not None and pending != now:
        what = f"ECC is {state} and changes at the next reset: later runs will not be comparable"
        return Finding(
            "ecc", "warning", what, "reset the GPU first, or undo the change with nvidia-smi -e"
        )
    if now:
        return Finding("ecc", "ok", "ECC is on; on GDDR memory it costs some bandwidth")
    what = "ECC is off; data-centre cards ship with ECC on, so results may not be comparable"
    return Finding("ecc", "note", what, "sudo nvidia-smi -i GPU -e 1, then reset the GPU")


def mig(facts: Facts) -> Finding | None:
    """Whether the GPU is cut into slices."""
    if _gpu(facts).mig is not True:
        return None
    what = (
        f"MIG is on: this slice has {facts.device.sm_count} SMs; power, clock and throttling are "
        "the whole card's, and so is the datasheet"
    )
    return Finding("mig", "warning", what, "measure on a GPU with MIG off")


def persistence(facts: Facts) -> Finding | None:
    """Whether the driver stays loaded between processes."""
    state = _gpu(facts).persistence
    if state is None:
        return None
    if state:
        return Finding("persistence", "ok", "persistence mode is on")
    what = "persistence mode is off: the first CUDA call may take seconds (not timed)"
    return Finding("persistence", "note", what, "sudo nvidia-smi -pm 1")


def pcie(facts: Facts) -> Finding | None:
    """The link to the host: width, and generation (which falls when the GPU idles)."""
    gpu = _gpu(facts)
    if gpu.pcie_width is None or gpu.pcie_width_max is None:
        return None
    what = f"PCIe x{gpu.pcie_width} of x{gpu.pcie_width_max}"
    now, most = gpu.pcie_generation, gpu.pcie_generation_max
    if now is not None and most is not None:
        what += f", generation {now} of {most}"
    if gpu.pcie_width < gpu.pcie_width_max:
        what += ": copies from the host are slower than the card allows"
        return Finding("pcie", "warning", what, "reseat the card or use a wider slot")
    if now is not None and most is not None and now < most:
        what += " (lower when the GPU is idle)"
        return Finding("pcie", "note", what, "check under load: nvidia-smi -q -d PERFORMANCE")
    return Finding("pcie", "ok", what)


def virtualization(facts: Facts) -> Finding | None:
    """Whether the GPU is shared with, or passed through to, a virtual machine."""
    mode = _gpu(facts).virtualization
    if mode is None or mode == "none":
        return None
    if mode == "passthrough":
        what = "the GPU is passed through to a virtual machine: host settings are hidden"
        return Finding(
            "virtualization", "note", what, "ask the provider about power limits and clocks"
        )
    what = f"virtual GPU ({mode}): other virtual machines may share it"
    return Finding("virtualization", "warning", what, "measure on a whole or passed-through GPU")


def other_processes(facts: Facts) -> Finding | None:
    """Other processes on the GPU. In a container pids differ: one unknown may be this process."""
    processes = _gpu(facts).processes
    if processes is None:
        return None
    others = [size for pid, size in processes if pid != facts.own_pid]
    seen = len(others) < len(processes)
    if not others:
        return Finding("other processes", "ok", "no other process uses the GPU")
    held = f"{sum(size or 0 for size in others) / GIB:.1f} GiB"
    stop = "stop them, or choose another GPU with --device cuda:N"
    if not seen and len(others) == 1:
        what = f"one process holds {held} on the GPU, maybe this one (containers hide process ids)"
        return Finding("other processes", "note", what, "if it is another process, stop it")
    what = f"{len(others)} other process(es) on the GPU hold {held}"
    return Finding("other processes", "warning", what, stop)


def busy(facts: Facts) -> Finding | None:
    """Whether the GPU computes, in per cent, although doctor launches nothing."""
    utilization = _gpu(facts).utilization_pct
    if utilization is None:
        return None
    what = f"{utilization} % busy before this program launched work"
    remedy = "wait until the GPU is idle, or choose another: --device cuda:N"
    return graded("busy", utilization < BUSY_WARNING_PCT, what, remedy)


def device_memory(facts: Facts) -> Finding | None:
    """Free memory of the GPU, in GiB."""
    free, total = facts.device_free_bytes, facts.device.memory_bytes
    if free is None or not total:
        return None
    what = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free on the GPU"
    enough = free >= FREE_MEMORY_WARNING * total
    return graded("gpu memory", enough, what, "end the processes that hold it; see nvidia-smi")


GPU_CHECKS: tuple[Check, ...] = (
    sensors, power_limit, clocks, throttling, temperature, ecc, mig, persistence, pcie,
    virtualization, other_processes, busy, device_memory,
)  # fmt: skip
