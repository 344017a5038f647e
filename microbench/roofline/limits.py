"""The ceilings that apply to one result: of the datasheet, at its clock, as measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from microbench.results.types import Result, Run

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
