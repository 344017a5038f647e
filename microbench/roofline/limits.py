"""The peaks that apply to a result: of the datasheet, at its clock, as measured; and how the tiles
of a kernel fill the SMs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels import is_library
from kernels.gpus import architecture, flop_per_clock
from kernels.precision import Capability
from microbench.device.profiler import fewer_operations, stages_of, threads_of
from microbench.results.types import Ceiling, Result, Run


@dataclass(frozen=True)
class Limits:
    """The peaks that apply to one result; None where unknown.

    Rates are dense FLOP/s of its precision: of the datasheet, at its mean SM clock, as measured,
    and without Tensor Cores. `measured_flop_per_s` is what the fastest instruction reached, at the
    clock of the result; without such a measurement, the largest GEMM's rate. `roof_flop_per_s` is
    what causes are judged by, and `roof` says what it is: the instruction at the clock of the
    result, else what the SMs can do at this clock, else the largest GEMM, which is no bound but
    what a library reached. Seconds are the least time of its own arithmetic and memory traffic, and
    the launch latency (`floor_s`). `memory_s` is None for data that stay in the L2 (`in_l2`), whose
    bandwidth is not measured.
    """

    datasheet_flop_per_s: float | None
    clock_flop_per_s: float | None
    measured_flop_per_s: float | None
    simt_flop_per_s: float | None
    compute_s: float | None
    memory_s: float | None
    floor_s: float | None
    fp32_flop_per_s: float | None
    roof_flop_per_s: float | None
    roof: str
    in_l2: bool


INSTRUCTION = "instruction"  # the name of a ceiling that an instruction has reached, see below


def limits_for(result: Result, run: Run) -> Limits:
    """The peaks in `run` that apply to a result; none is of the very case itself.

    FLOP per clock and SM are those of `kernels.gpus`.
    """
    case, measurement = result.case, result.measurement
    name = case.precision_name

    def rate(ceiling: str, source: str, precision: str) -> float | None:
        found = run.ceiling(ceiling, source, precision)
        return found.flop_per_s if found else None

    fits = result.min_bytes <= int(run.device.get("l2_bytes") or 0)
    warm = measurement is not None and measurement.l2 == "warm"
    in_l2 = warm and run.device.get("kind") == "cuda" and fits
    memory = run.ceiling("memory", "measured")
    byte_per_s = None if in_l2 or memory is None else memory.byte_per_s
    # The quickest launch seen, in whatever precision: a library may take two kernels in another.
    floors = [
        c.seconds for c in run.ceilings
        if c.name == "latency floor" and c.seconds and c.reference != case.key
    ]  # fmt: skip
    instruction, large = (run.ceiling(c, "measured", name) for c in (INSTRUCTION, "large GEMM"))
    reached = _instruction_rate(instruction, result, run)
    rates = flop_per_clock(capability_of(run), str(run.device.get("name")))
    at_clock = _at_clock(rates.get(case.precision.rate_name), result, run)
    largest = large.flop_per_s if large else None
    said = instruction.reference.partition(",")[0] if instruction else ""  # "wgmma"
    roofs = (
        (reached, f"what {said} reaches at this clock"),
        (at_clock, "what the SMs can do at this clock"),
        (None if large and large.reference == case.key else largest, "the largest GEMM measured"),
    )
    highest, roof = next(((rate, said) for rate, said in roofs if rate), (None, ""))
    fp32 = _instruction_rate(run.ceiling(INSTRUCTION, "measured", "fp32"), result, run)
    twin, factor = case.precision.simt_twin or (name, 1)
    simt = rate("without Tensor Cores", "datasheet", twin)
    return Limits(
        datasheet_flop_per_s=rate("dense peak", "datasheet", name),
        clock_flop_per_s=at_clock,
        measured_flop_per_s=reached or largest,
        simt_flop_per_s=factor * simt if simt else None,
        compute_s=result.flops / highest if highest else None,
        memory_s=result.min_bytes / byte_per_s if byte_per_s else None,
        floor_s=min(floors, default=None),
        fp32_flop_per_s=fp32 or rate("large GEMM", "measured", "fp32"),
        roof_flop_per_s=highest,
        roof=roof,
        in_l2=in_l2,
    )


def _instruction_rate(ceiling: Ceiling | None, result: Result, run: Run) -> float | None:
    """FLOP/s that the instruction reaches at the clock of the result, else at its own."""
    if ceiling is None:
        return None
    return _at_clock(ceiling.flop_per_clock, result, run) or ceiling.flop_per_s


def _at_clock(per_clock: float | None, result: Result, run: Run) -> float | None:
    """FLOP/s of all SMs at the clock of the result, of `per_clock` FLOP each."""
    clock = result.measurement.sm_clock_mhz if result.measurement else None
    sms = run.device.get("sm_count")
    return per_clock * int(sms) * clock * 1e6 if per_clock and clock and sms else None


def capability_of(run: Run) -> Capability | None:
    """(9, 0) of the "9.0" that a run file holds; None for a CPU."""
    major, _, minor = str(run.device.get("capability") or "").partition(".")
    return (int(major), int(minor)) if minor.isdecimal() and major.isdecimal() else None


def tensor_core(result: Result, limits: Limits) -> bool | None:
    """Whether Tensor Cores ran: True where the FLOP/s exceed what the SMs reach without them.

    False for IEEE fp32, None where not proven. The FLOPs must have been done for that: a library's
    convolution may be FFT or Winograd, so its kernels must be known and none of them either.
    """
    if result.case.precision_name == "fp32":
        return False
    rate, simt = result.flop_per_s, limits.simt_flop_per_s
    fewer = fewer_operations(result.kernels) is not None
    unknown = result.case.op == "conv" and is_library(result.case) and not result.kernels
    if simt is None or rate is None or fewer or unknown:
        return None
    return True if rate > simt else None


# ---------------------------------------------------------------- waves of tiles


LEAST_THREADS = 128  # a warp group: the fewest that a kernel with a large tile has
MOST_ACCUMULATORS = 192  # registers of a thread: with more, the tile takes more threads


@dataclass(frozen=True)
class Waves:
    """How `tiles` fill the SMs, one each at a time.

    `waves` is how many rounds it takes, `efficiency` the share of their slots that hold a tile.
    """

    tiles: int
    sm_count: int
    waves: int
    efficiency: float


def waves(result: Result, run: Run) -> Waves | None:
    """The tiles of a result; None where the kernel's tile or their number is unknown, and on a CPU.

    Our convolutions' tiles are boxes of images, rows and columns, which cover more than M x N; how
    many are launched is what the back end says, and older files do not.
    """
    sm_count = int(run.device.get("sm_count") or 0)
    if result.tile is None or not sm_count or run.device.get("kind") != "cuda":
        return None
    tiles = result.tiles
    if tiles is None and result.case.op == "conv" and not is_library(result.case):
        return None
    tiles = tiles or result.case.problem.tiles(result.tile)
    if tiles is None:
        return None
    count = math.ceil(tiles / sm_count)
    return Waves(tiles, sm_count, count, tiles / (count * sm_count))


def most_per_sm(result: Result, run: Run) -> int:
    """The most tiles of the result's kernel that an SM may hold at once; it needs a tile.

    By registers and shared memory, as far as the names of kernel and variant state threads and
    pipeline stages. What they do not state counts as the least possible.
    """
    assert result.tile
    tile_m, tile_n, tile_k = result.tile
    precision = result.case.precision
    registers = tile_m * tile_n * precision.accumulator_bytes / 4
    least = LEAST_THREADS * math.ceil(registers / LEAST_THREADS / MOST_ACCUMULATORS)
    threads = threads_of(result) or least
    shared = (stages_of(result) or 1) * (tile_m + tile_n) * tile_k * precision.bytes_per_element
    sm = architecture(capability_of(run))
    return sm.blocks_per_sm(threads, registers / threads, shared)
