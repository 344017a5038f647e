"""The peaks that apply to one result: of the datasheet, at its clock, as measured."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.gpus import architecture
from kernels.precision import Capability
from microbench.results.types import Ceiling, Result, Run


@dataclass(frozen=True)
class Limits:
    """The peaks that apply to one result; None where unknown.

    Rates are dense FLOP/s of its precision: of the datasheet, at its mean SM clock, as measured,
    and without Tensor Cores. `measured_flop_per_s` is what the fastest instruction reached, at the
    clock of the result; without such a measurement, the largest GEMM's rate: `roof` says which.
    Seconds are the least time of its own arithmetic and memory traffic, and the launch latency
    (`floor_s`).
    """

    datasheet_flop_per_s: float | None
    clock_flop_per_s: float | None
    measured_flop_per_s: float | None
    simt_flop_per_s: float | None
    compute_s: float | None
    memory_s: float | None
    floor_s: float | None
    fp32_flop_per_s: float | None
    roof: str = "the measured peak"


INSTRUCTION = "instruction"  # the name of a ceiling that an instruction has reached, see below


def limits_for(result: Result, run: Run) -> Limits:
    """The peaks in `run` that apply to a result.

    FLOP per clock and SM are those of `kernels.gpus`.
    """
    name = result.case.precision_name

    def rate(ceiling: str, source: str, precision: str) -> float | None:
        found = run.ceiling(ceiling, source, precision)
        return found.flop_per_s if found else None

    byte_per_s = _byte_per_s(result, run)
    # The quickest launch seen, in whatever precision: a library may take two kernels in another.
    floors = [c.seconds for c in run.ceilings if c.name == "latency floor" and c.seconds]
    instruction = run.ceiling(INSTRUCTION, "measured", name)
    measured = _instruction_rate(instruction, result, run) or rate("large GEMM", "measured", name)
    fp32 = _instruction_rate(run.ceiling(INSTRUCTION, "measured", "fp32"), result, run)
    twin, factor = result.case.precision.simt_twin or (name, 1)
    simt = rate("without Tensor Cores", "datasheet", twin)
    return Limits(
        datasheet_flop_per_s=rate("dense peak", "datasheet", name),
        clock_flop_per_s=_at_clock(result, run),
        measured_flop_per_s=measured,
        simt_flop_per_s=factor * simt if simt else None,
        compute_s=result.flops / measured if measured else None,
        memory_s=result.min_bytes / byte_per_s if byte_per_s else None,
        floor_s=min(floors, default=None),
        fp32_flop_per_s=fp32 or rate("large GEMM", "measured", "fp32"),
        **({"roof": f"what {_instruction(instruction)} reaches at this clock"}
           if instruction else {}),
    )  # fmt: skip


def _instruction(ceiling: Ceiling) -> str:
    """ "wgmma" of "wgmma, m64n256k16, ..."."""
    return ceiling.reference.partition(",")[0]


def _instruction_rate(ceiling: Ceiling | None, result: Result, run: Run) -> float | None:
    """FLOP/s that the instruction reaches at the clock of the result, else at its own."""
    clock = result.measurement.sm_clock_mhz if result.measurement else None
    if ceiling is None or not ceiling.flop_per_clock or not clock:
        return ceiling.flop_per_s if ceiling else None
    return ceiling.flop_per_clock * int(run.device["sm_count"]) * clock * 1e6


def _byte_per_s(result: Result, run: Run) -> float | None:
    """Of device memory, or of the L2 for what stays in it between launches, by size."""
    memory = run.ceiling("memory", "measured")
    if result.measurement and result.measurement.l2 == "warm":
        holding = [
            c for c in run.ceilings
            if c.byte_per_s and c.working_set and c.working_set >= result.min_bytes
        ]  # fmt: skip
        if holding:
            return min(holding, key=lambda c: c.working_set or 0).byte_per_s
    return memory.byte_per_s if memory else None


def _at_clock(result: Result, run: Run) -> float | None:
    """Peak FLOP/s of the SMs at the measured clock."""
    rates = architecture(capability_of(run)).flop_per_clock
    per_clock = rates.get(result.case.precision.rate_name)
    clock = result.measurement.sm_clock_mhz if result.measurement else None
    if per_clock is None or clock is None:
        return None
    return per_clock * int(run.device["sm_count"]) * clock * 1e6


def capability_of(run: Run) -> Capability | None:
    """(9, 0) of the "9.0" that a run file holds; None for a CPU."""
    major, _, minor = str(run.device.get("capability") or "").partition(".")
    return (int(major), int(minor)) if minor.isdecimal() and major.isdecimal() else None


def tensor_core(result: Result, limits: Limits) -> bool | None:
    """Whether Tensor Cores ran: True where the FLOP/s exceed what the SMs reach without them.

    False for IEEE fp32, None where not proven.
    """
    if result.case.precision_name == "fp32":
        return False
    if limits.simt_flop_per_s is None or result.flop_per_s is None:
        return None
    return True if result.flop_per_s > limits.simt_flop_per_s else None
