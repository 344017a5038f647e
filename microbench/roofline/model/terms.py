"""The physical terms of a case: seconds that follow from its shape and from measured peaks.

Power has no rate of its own here: the measured peak of a precision was taken at the clock that
the power limit sustains. Short launches run at a higher clock, which the fitted `boost` covers.

A GEMM is cut into tiles that are spread over the SMs in waves. The library's tile is not known
before it is run: the tile, and the number of parts that the reduction is cut into, are those that
make the estimate least, as a library's own heuristic would.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from kernels import OPS
from kernels.case import Case
from kernels.conv.shape import ConvShape
from kernels.precision import PRECISIONS
from microbench.results.types import Run

TRANSFORM_EDGE = 32  # pixels: the tile of cuDNN's 2-D FFT, as its kernels are named
COMPLEX_BYTES = 8
COMPLEX_FLOPS = 4  # real multiply-adds of a complex one
TENSOR_CORE_STEP = 32  # elements of the reduction: what a main loop takes at a time
SIMT_STEP = 8
SIMT_INDEXING = 1.5  # times longer: computing pixels' addresses alternates with the arithmetic
CONVERTED_TENSORS = 3  # both inputs and the output
CONVERT_KERNEL = 0.4  # of the launch latency: the least time of a kernel behind another one
TRANSFORMS = 4  # of each input and the output, and the filter's flip
TILE_EDGES = (32, 64, 96, 128, 192, 256)  # elements, of a work-group's tile of the output
FULL_TILE = (128, 256)  # of the largest GEMMs, so the one of the measured peak
LARGEST_TILE = 128 * 256  # elements: more accumulators do not fit an SM's registers
ON_CHIP = 4.0  # times the memory's bandwidth: what the L2 cache delivers to the SMs
FILL_STEPS = 4  # of the main loop: the cost of filling its pipeline and of writing the tile
MOST_SPLITS = 64  # parts that the reduction is cut into
LEAST_PART = 256  # elements of the reduction: a shorter part only fills the pipeline
PARTIAL_BYTES = 4  # partial sums are float32, whatever the precision


@dataclass(frozen=True)
class Terms:
    """Seconds of each part of one way to compute a case, at measured peaks.

    `way` is "direct" (the implicit GEMM), "simt" (the same without Tensor Cores) or "fft".
    `launch_s` is the launch latency of one kernel. `ideal_s` is its FLOPs at the measured rate,
    `compute_s` the same in whole waves of tiles, `memory_s` the least bytes at the measured
    bandwidth. `convert_s` is what kernels of their own read and write once more: tensors in another
    layout or with padded channels, or their spectra.
    """

    way: str
    launch_s: float
    ideal_s: float
    compute_s: float
    memory_s: float
    convert_s: float

    @property
    def total_s(self) -> float:
        """Seconds of the terms one after another (`ideal_s` is part of `compute_s`)."""
        return self.launch_s + self.compute_s + self.memory_s + self.convert_s


@dataclass(frozen=True)
class Machine:
    """A device as a GEMM uses it.

    Measured FLOP/s of the precision and bytes/s of the memory, number of SMs, bytes per element of
    an operand, and `step`: K is padded to a multiple of it, in elements.
    """

    flop_per_s: float
    byte_per_s: float
    sm_count: int
    element_bytes: int
    step: int

    @property
    def load_share(self) -> float:
        """Fraction of a full tile's time, at most 1, to load its operands from the L2 cache."""
        tile_m, tile_n = FULL_TILE
        flop_per_byte = 2 * tile_m * tile_n / ((tile_m + tile_n) * self.element_bytes)
        return min(1.0, self.flop_per_s / (ON_CHIP * self.byte_per_s * flop_per_byte))


@dataclass(frozen=True)
class Rates:
    """Measured peaks to predict with: FLOP/s by precision, bytes/s, launch latency in seconds."""

    flop_per_s: Mapping[str, float]
    byte_per_s: float
    floor_s: float
    sm_count: int

    @classmethod
    def of(cls, run: Run) -> Rates | None:
        """The measured peaks of a run; None without a bandwidth or a launch latency."""
        measured = [c for c in run.ceilings if c.source == "measured"]
        moved = [c.byte_per_s for c in measured if c.name == "memory" and c.byte_per_s]
        floors = [c.seconds for c in measured if c.name == "latency floor" and c.seconds]
        rates = {
            c.precision: c.flop_per_s
            for c in measured
            if c.name == "large GEMM" and c.precision and c.flop_per_s
        }
        if not moved or not floors:
            return None
        sm_count = int(run.device.get("sm_count") or 0) or 1
        return cls(rates, moved[0], min(floors), sm_count)

    def machine(self, name: str) -> Machine | None:
        """The device as a GEMM in this precision uses it; None without its measured peak."""
        rate, width = self.flop_per_s.get(name), PRECISIONS[name].bytes_per_element
        step = TENSOR_CORE_STEP if uses_tensor_cores(name) else SIMT_STEP
        return Machine(rate, self.byte_per_s, self.sm_count, width, step) if rate else None


def ways(case: Case, rates: Rates) -> tuple[Terms, ...]:
    """The terms of every way that a library may choose, the direct one first; () without a peak."""
    direct = _direct(case, rates)
    if direct is None:
        return ()
    if case.op != "conv" or not _by_library(case):
        return (direct,)
    others = (_simt(case, rates), _fft(case, rates))
    return (direct, *(way for way in others if way))


def _direct(case: Case, rates: Rates) -> Terms | None:
    machine = rates.machine(case.precision_name)
    if machine is None:
        return None
    op = OPS[case.op]
    memory_s = op.min_bytes(case) / rates.byte_per_s
    ideal_s = op.flops(case) / machine.flop_per_s
    if case.op != "conv":
        compute_s = tiled_seconds(*op.gemm(case), 1, machine)
        return Terms("direct", rates.floor_s, ideal_s, compute_s, memory_s, 0.0)
    padded = op.aligned(case) if uses_tensor_cores(case.precision_name) else case
    compute_s, convert_s = _conv_s(padded, machine), _convert_s(case, padded, rates)
    return Terms("direct", rates.floor_s, ideal_s, compute_s, memory_s, convert_s)


def _by_library(case: Case) -> bool:
    return case.backend == OPS[case.op].library_backend("cuda")


def uses_tensor_cores(name: str) -> bool:
    """Whether Tensor Cores multiply the precision (fp64 counts with fp32: its steps are short)."""
    return name not in ("fp32", "fp64")


def _conv_s(case: Case, machine: Machine) -> float:
    """Seconds of the implicit GEMM."""
    shape, which = ConvShape.of(case), case.dims["pass"]
    m, n, k = shape.gemm(str(which))
    if which != "wgrad" and machine.step == TENSOR_CORE_STEP:  # these cannot span two taps
        channels = (shape.c if which == "fprop" else shape.k) // shape.groups
        k = math.ceil(channels / machine.step) * machine.step * max(1, k // channels)
    indexing = SIMT_INDEXING if machine.step == SIMT_STEP and shape.r * shape.s > 1 else 1.0
    return indexing * tiled_seconds(m, n, k, shape.groups, machine)


def _convert_s(case: Case, padded: Case, rates: Rates) -> float:
    """Seconds that changing layout and padding channels reads and writes, of all three tensors."""
    wants = "nhwc" if uses_tensor_cores(case.precision_name) else "nchw"
    if not _by_library(case) or (case.layout == wants and padded == case):
        return 0.0  # other back ends take tensors as they are
    moved = OPS[case.op].min_bytes(case) + OPS[case.op].min_bytes(padded)
    return CONVERTED_TENSORS * CONVERT_KERNEL * rates.floor_s + moved / rates.byte_per_s


def _simt(case: Case, rates: Rates) -> Terms | None:
    """Without Tensor Cores, at the measured fp32 rate, in the layout and type as they are."""
    machine = rates.machine("fp32")
    if (
        machine is None
        or not uses_tensor_cores(case.precision_name)
        or OPS[case.op].misaligned(case) is None
    ):
        return None
    memory_s = OPS[case.op].min_bytes(case) / rates.byte_per_s
    ideal_s = OPS[case.op].flops(case) / machine.flop_per_s
    return Terms("simt", rates.floor_s, ideal_s, _conv_s(case, machine), memory_s, 0.0)


def _fft(case: Case, rates: Rates) -> Terms | None:
    """Products of spectra: one complex GEMM a frequency, over images, channels and filters.

    A tile of 32 x 32 pixels gives 33 - R outputs along an edge; its real FFT has 32 * 17 values.
    """
    machine, shape = rates.machine("fp32"), ConvShape.of(case)
    edge = TRANSFORM_EDGE + 1 - max(shape.r, shape.s)
    plain = shape.stride == shape.dilation == shape.groups == 1 and max(shape.r, shape.s) > 1
    if machine is None or case.precision_name != "fp32" or not plain or edge < 1:
        return None
    tiles = shape.n * math.ceil(shape.p / edge) * math.ceil(shape.q / edge)
    bins = TRANSFORM_EDGE * (TRANSFORM_EDGE // 2 + 1)
    m, n, k = {
        "fprop": (tiles, shape.k, shape.c),
        "dgrad": (tiles, shape.c, shape.k),
        "wgrad": (shape.k, shape.c, tiles),
    }[str(case.dims["pass"])]
    compute_s = COMPLEX_FLOPS * tiled_seconds(m, n, k, bins, machine)
    spectra = 2 * COMPLEX_BYTES * bins * (m * k + k * n + m * n) / rates.byte_per_s
    return Terms(
        "fft",
        rates.floor_s,
        COMPLEX_FLOPS * 2 * m * n * k * bins / machine.flop_per_s,
        compute_s,
        OPS[case.op].min_bytes(case) / rates.byte_per_s,
        TRANSFORMS * rates.floor_s + spectra + _convert_s(case, case, rates),
    )


@cache
def tiled_seconds(m: int, n: int, k: int, batch: int, machine: Machine) -> float:
    """Least seconds, over tiles and split-K factors, of `batch` GEMMs [m, k] x [k, n].

    Takes ceil(tiles / SMs) waves. Each lasts as long as one SM takes for a tile at its share of the
    measured FLOP/s, and longer where small tiles load operands more often.
    """
    return min(
        _seconds(m, n, k, batch, (tile_m, tile_n), splits, machine)
        for tile_m in TILE_EDGES
        for tile_n in TILE_EDGES
        if tile_m * tile_n <= LARGEST_TILE
        for splits in _splits(k)
    )


def _splits(k: int) -> tuple[int, ...]:
    most = min(MOST_SPLITS, k // LEAST_PART)
    return (1, *(2**i for i in range(1, most.bit_length()) if 2**i <= most))


def _seconds(
    m: int, n: int, k: int, batch: int, tile: tuple[int, int], splits: int, machine: Machine
) -> float:
    tile_m, tile_n = tile
    tiles = math.ceil(m / tile_m) * math.ceil(n / tile_n) * splits * batch
    rounds = math.ceil(tiles / machine.sm_count)
    steps = FILL_STEPS + math.ceil(math.ceil(k / splits) / machine.step)
    flops = 2 * tile_m * tile_n * steps * machine.step
    reload = (1 / tile_m + 1 / tile_n) / (1 / FULL_TILE[0] + 1 / FULL_TILE[1])
    slower = 1 + machine.load_share * max(0.0, reload - 1)
    one = flops * slower * machine.sm_count / machine.flop_per_s
    partial = 2 * splits * batch * m * n * PARTIAL_BYTES if splits > 1 else 0
    return rounds * one + partial / machine.byte_per_s
