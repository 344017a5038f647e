"""What bounds a case, with the number that says so.

A pure function of the run: measured ceilings, latency floor, bytes, strides, tiles, clocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernels.case import Case
from microbench.checks import warnings_for
from microbench.results import Result, Run

FLOOR_SHARE = 0.5  # of the time: from here on a case is bound by launch and latency
MEMORY_SHARE = 0.5
NEAR_CEILING = 0.85
AT_CLOCK_PCT = 80.0  # of what the SMs can do at their clock: below this more than power is lost
UNALIGNED_RATE = 0.6  # of the ceiling: below this, rows off 16 bytes are the likely cause
FULL_WAVES = 0.85
ONE_PER_SM = 128 * 128  # elements: accumulators of a tile this large leave no room for a second
CLOCK_HELD = 0.97  # of the maximum clock: below this, and with a reason, power decides
SLOW_HARDWARE = 0.2  # of the fp32 ceiling: a low precision this slow has no hardware here
ALIGNMENT_BYTES = 16  # what TMA and 128-bit loads ask of a row's stride

# FLOP a cycle an SM, dense: the architectures' whitepapers (GH100: 4,096 dense fp16 FLOP and 128
# fp32 FMA a cycle an SM; GA100: half the former; GV100: a quarter). fp64 is the Tensor Cores' rate.
_HOPPER = {"fp64": 256, "fp32": 256, "tf32": 2048, "fp16": 4096, "fp16-acc16": 4096, "bf16": 4096,
           "fp8-e4m3": 8192, "fp8-e4m3-precise": 8192, "fp8-e5m2": 8192, "int8": 8192}  # fmt: skip
FLOP_PER_CYCLE_PER_SM: Mapping[str, Mapping[str, int]] = {
    "9.0": _HOPPER,
    "8.0": {"fp64": 128, "fp32": 128, "tf32": 1024, "fp16": 2048, "fp16-acc16": 2048,
            "bf16": 2048, "int8": 4096},
    "7.0": {"fp64": 64, "fp32": 128, "fp16": 1024, "fp16-acc16": 1024},
}  # fmt: skip


# What the SMs can do without Tensor Cores in precisions that datasheets give no such rate for: tf32
# as fp32; fp8 no faster than the fp16 it would be widened to; int8 by DP4A, four products a lane.
SIMT_TWIN: Mapping[str, tuple[str, int]] = {
    "tf32": ("fp32", 1),
    "fp16-acc16": ("fp16", 1),
    "fp8-e4m3": ("fp16", 1),
    "fp8-e4m3-precise": ("fp16", 1),
    "fp8-e5m2": ("fp16", 1),
    "int8": ("fp32", 4),
}


@dataclass(frozen=True)
class Limits:
    """The ceilings that apply to one result; None where unknown. Seconds are for its own work."""

    datasheet_flop_per_s: float | None
    clock_flop_per_s: float | None
    measured_flop_per_s: float | None
    simt_flop_per_s: float | None
    compute_s: float | None
    memory_s: float | None
    floor_s: float | None
    fp32_flop_per_s: float | None


def annotate(run: Run) -> Run:
    """The run with efficiencies, Tensor Core proof, bound, reason and warnings in every result."""
    return replace(run, results=tuple(_annotate(result, run) for result in run.results))


def _annotate(result: Result, run: Run) -> Result:
    if result.measurement is None:
        return result
    limits = limits_for(result, run)
    rate = result.flop_per_s
    efficiency = {
        name: 100 * rate / limit
        for name, limit in (
            ("datasheet", limits.datasheet_flop_per_s),
            ("at_clock", limits.clock_flop_per_s),
            ("measured", limits.measured_flop_per_s),
        )
        if limit and rate
    }
    bound, why = explain(result, limits, run)
    explained = replace(
        result,
        efficiency_pct=efficiency,
        ceiling_pct=efficiency.get("datasheet", efficiency.get("measured")),
        tensor_core=tensor_core(result, limits),
        bound=bound,
        why=why,
    )
    return replace(explained, warnings=warnings_for(explained, run))


def limits_for(result: Result, run: Run) -> Limits:
    """The ceilings that apply to a result."""
    name = result.case.precision_name

    def rate(ceiling: str, source: str, precision: str) -> float | None:
        found = run.ceiling(ceiling, source, precision)
        return found.flop_per_s if found else None

    memory = run.ceiling("memory", "measured")
    # The quickest launch seen, in whatever precision: a library may take two kernels in another.
    floors = [c.seconds for c in run.ceilings if c.name == "latency floor" and c.seconds]
    measured = rate("large GEMM", "measured", name)
    twin, factor = SIMT_TWIN.get(name, (name, 1))
    simt = rate("without Tensor Cores", "datasheet", twin)
    return Limits(
        datasheet_flop_per_s=rate("dense peak", "datasheet", name),
        clock_flop_per_s=_at_clock(result, run),
        measured_flop_per_s=measured,
        simt_flop_per_s=factor * simt if simt else None,
        compute_s=result.flops / measured if measured else None,
        memory_s=result.min_bytes / memory.byte_per_s if memory and memory.byte_per_s else None,
        floor_s=min(floors, default=None),
        fp32_flop_per_s=rate("large GEMM", "measured", "fp32"),
    )


def _at_clock(result: Result, run: Run) -> float | None:
    """FLOP/s that the SMs can do at the clock that was measured."""
    table = FLOP_PER_CYCLE_PER_SM.get(str(run.device.get("capability")), {})
    per_cycle = table.get(result.case.precision_name)
    clock = result.measurement.sm_clock_mhz if result.measurement else None
    if per_cycle is None or clock is None:
        return None
    return per_cycle * int(run.device["sm_count"]) * clock * 1e6


def tensor_core(result: Result, limits: Limits) -> bool | None:
    """True when faster than the SMs could be without; False for IEEE fp32; None: not proved."""
    if result.case.precision_name == "fp32":
        return False
    if limits.simt_flop_per_s is None or result.flop_per_s is None:
        return None
    return True if result.flop_per_s > limits.simt_flop_per_s else None


# ---------------------------------------------------------------- the bound


def explain(result: Result, limits: Limits, run: Run) -> tuple[str, str]:
    """(bound, why) of a measured result; the first cause that the numbers bear out."""
    for cause in (_no_hardware, _launch, _memory, _alignment, _ceiling, _waves):
        why = cause(result, limits, run)
        if why:
            return why
    return _nothing(result, limits)


Cause = tuple[str, str] | None


def _launch(result: Result, limits: Limits, run: Run) -> Cause:
    time_s = result.median_s
    if not time_s or not limits.floor_s or limits.floor_s / time_s < FLOOR_SHARE:
        return None
    return "launch", (
        f"{_us(min(limits.floor_s, time_s))} of its {_us(time_s)} is what a 64x64x64 product takes "
        "too: launch and latency, not arithmetic"
    )


def _memory(result: Result, limits: Limits, run: Run) -> Cause:
    time_s, memory_s = result.median_s, limits.memory_s
    if not time_s or not memory_s or memory_s / time_s < MEMORY_SHARE:
        return None
    if limits.compute_s and limits.compute_s > memory_s:
        return None
    intensity = result.flops / result.min_bytes
    return "memory", (
        f"{intensity:.0f} FLOP a byte: moving {result.min_bytes / 1e6:.1f} MB takes at least "
        f"{_us(memory_s)} of its {_us(time_s)}"
    )


def _no_hardware(result: Result, limits: Limits, run: Run) -> Cause:
    own, fp32 = limits.measured_flop_per_s, limits.fp32_flop_per_s
    case = result.case
    if not own or not fp32 or case.precision.bytes_per_element >= 4 or own > SLOW_HARDWARE * fp32:
        return None
    return "no hardware", (
        f"{own / 1e9:.3g} GFLOP/s at best against {fp32 / 1e9:.3g} in fp32: "
        f"this device has no fast {case.precision_name} arithmetic"
    )


def _alignment(result: Result, limits: Limits, run: Run) -> Cause:
    off = misaligned(result.case)
    share = _share(result, limits)
    if run.device.get("kind") != "cuda" or not off or share is None or share > UNALIGNED_RATE:
        return None
    what, stride = off
    nearest = _aligned_neighbour(result, run)
    compared = f"; {nearest}" if nearest else ""
    return "alignment", (
        f"{what} makes rows of {stride} bytes, no multiple of {ALIGNMENT_BYTES}: "
        f"{100 * share:.0f} % of the measured ceiling{compared}"
    )


def misaligned(case: Case) -> tuple[str, int] | None:
    """("K=4095", 8190) when an operand's rows do not start on 16 bytes; None when they do."""
    kind = case.precision
    k_major = {"a": case.layout[0] == "n", "b": case.layout[1] == "t"}
    rows = [
        ("k" if k_major["a"] else "m", kind.bytes_per_element),
        ("k" if k_major["b"] else "n", kind.bytes_per_element),
        ("n", kind.output_bytes),
    ]
    for name, width in rows:
        stride = case.dim(name) * width
        if stride % ALIGNMENT_BYTES:
            return f"{name.upper()}={case.dim(name)}", stride
    return None


def _aligned_neighbour(result: Result, run: Run) -> str | None:
    """A sentence about the nearest aligned size of the same arm, when the run has one."""
    case = result.case
    best: tuple[float, Result] | None = None
    for other in run.results:
        same = (other.case.precision_name, other.case.backend, other.case.layout, other.case.data)
        if same != (case.precision_name, case.backend, case.layout, case.data):
            continue
        if other.flop_per_s is None or misaligned(other.case):
            continue
        distance = abs(math.log(other.flops / result.flops))
        if distance < 0.1 and (best is None or distance < best[0]):
            best = (distance, other)
    if best is None or not result.flop_per_s:
        return None
    gain = (best[1].flop_per_s or 0) / result.flop_per_s
    return f"{shape_text(best[1].case)} runs at {gain:.1f} times the rate (measured)"


def _ceiling(result: Result, limits: Limits, run: Run) -> Cause:
    share = _share(result, limits)
    if share is None or share < NEAR_CEILING or result.measurement is None:
        return None
    reached = f"{100 * share:.0f} % of the rate a large product reaches here"
    clock, top = result.measurement.sm_clock_mhz, run.device.get("sm_clock_max_mhz")
    held = [reason for reason in result.measurement.throttle if reason in ("power cap", "thermal")]
    at_clock = limits.clock_flop_per_s
    full = at_clock is None or 100 * (result.flop_per_s or 0) / at_clock >= AT_CLOCK_PCT
    if clock and top and held and full and clock < CLOCK_HELD * float(top):
        limit = run.device.get("power_limit_w")
        watts = f" of {float(limit):.0f} W" if limit and held[0] == "power cap" else ""
        return "power", (
            f"{reached}; the {held[0]}{watts} holds the clock at "
            f"{clock:.0f} of {float(top):.0f} MHz"
        )
    return "compute", reached


def _waves(result: Result, limits: Limits, run: Run) -> Cause:
    shape = waves(result, run)
    share = _share(result, limits)
    if shape is None or share is None or shape.efficiency >= FULL_WAVES:
        return None
    if shape.tiles >= shape.sm_count and shape.tile_m * shape.tile_n < ONE_PER_SM:
        return None  # several such tiles may share an SM: the waves cannot be counted
    return "waves", (
        f"{shape.tiles} tiles of {shape.tile_m}x{shape.tile_n} on {shape.sm_count} SMs: "
        f"{shape.waves} wave{'s' if shape.waves > 1 else ''}, {100 * shape.efficiency:.0f} % full; "
        f"{100 * share:.0f} % of the measured ceiling"
    )


@dataclass(frozen=True)
class Waves:
    """How tiles fill the device. `efficiency` is useful output over what the waves could hold."""

    tile_m: int
    tile_n: int
    tiles: int
    sm_count: int

    @property
    def waves(self) -> int:
        """Rounds of one tile an SM."""
        return math.ceil(self.tiles / self.sm_count)

    @property
    def efficiency(self) -> float:
        """Share of the tile slots of all waves that have a tile."""
        return self.tiles / (self.waves * self.sm_count)


def waves(result: Result, run: Run) -> Waves | None:
    """The tiles of a result whose kernel's tile is known, on this device."""
    sm_count = int(run.device.get("sm_count") or 0)
    if result.tile is None or not sm_count or run.device.get("kind") != "cuda":
        return None
    tile_m, tile_n = result.tile[:2]
    tiles = math.ceil(result.case.dim("m") / tile_m) * math.ceil(result.case.dim("n") / tile_n)
    return Waves(tile_m, tile_n, tiles, sm_count)


def _nothing(result: Result, limits: Limits) -> tuple[str, str]:
    share, time_s = _share(result, limits), result.median_s
    assert time_s is not None
    parts = [f"{100 * share:.0f} % of the measured ceiling"] if share else []
    if limits.floor_s:
        parts.append(f"{100 * limits.floor_s / time_s:.0f} % of the time is the latency floor")
    if limits.memory_s:
        parts.append(f"{100 * limits.memory_s / time_s:.0f} % the least time for its bytes")
    return "mixed", "no single limit: " + ", ".join(
        parts
    ) if parts else "no ceilings to compare with"


def _share(result: Result, limits: Limits) -> float | None:
    if not limits.measured_flop_per_s or not result.flop_per_s:
        return None
    return result.flop_per_s / limits.measured_flop_per_s


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.1f} us" if seconds < 1e-3 else f"{1e3 * seconds:.2f} ms"


def shape_text(case: Case) -> str:
    """ "4096" for a cube, "4096x11008x4096" otherwise."""
    m, n, k = (case.dim(d) for d in "mnk")
    return str(m) if m == n == k else f"{m}x{n}x{k}"
