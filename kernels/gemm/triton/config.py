"""Configurations of the Triton GEMM: their labels, what a problem allows, and which to prefer.

Nothing here imports torch or triton: tables and rules can be checked on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import ceil

from kernels import gluon
from kernels.case import Case
from kernels.gpus import HOPPER, architecture, has_tma
from kernels.precision import PRECISIONS, Capability, Precision
from kernels.triton_config import TMA_ALIGNMENT, Grammar, power_of_two

POINTER, TMA, PERSISTENT = "pointer", "tma", "tma_persistent"
GLUON, SKINNY, SPLIT_K = "gluon", "skinny", "split_k"
KERNELS = (POINTER, TMA, PERSISTENT, GLUON, SKINNY, SPLIT_K)
REPLACED = "tma_192"  # tables of earlier versions name it: 128x192 tiles without a loading warp
LABELS = Grammar(
    "Triton GEMM", (*KERNELS, REPLACED), 3, ("s", "w", "g"), ("sub", "k"), "direct"
)  # fmt: skip

PRECISE_ACCUMULATORS = 64  # fp8's float32 sums come on top of wgmma's own: 128 each would spill
LARGE_ACCUMULATORS = 128
WGMMA_ROWS = 64  # of the first operand; narrower tiles use mma.sync
SLICED = (SKINNY, SPLIT_K)  # several programs may share the K of a tile
WGMMA_CAPABILITY: Capability = (9, 0)
# float16 sums in two accumulators make ptxas serialize wgmma; precise fp8 sums need registers of
# their own; float32 is rounded to TF32.
GLUON_PRECISIONS = ("fp16", "bf16", "tf32", "fp8-e4m3", "fp8-e5m2", "int8")


@dataclass(frozen=True)
class Config:
    """One way to run a kernel. A tile is `bm` x `bn` of C, added up `bk` of K at a time, by `warps`
    warps, with `stages` tiles of the operands buffered.

    `group` rows of tiles are walked together, for L2; `split` is the number of parts that a tile is
    stored in; `direct` stores registers to memory without TMA. `slices` programs share the K of a
    tile of SKINNY or SPLIT_K. `warps` of GLUON are those that multiply; one more loads.
    """

    kernel: str
    bm: int
    bn: int
    bk: int
    stages: int
    warps: int
    group: int = 8
    split: int = 1
    direct: bool = False
    slices: int = 1

    @property
    def label(self) -> str:
        """Compact name, which `parse` reads: "tma_persistent/128x256x64/s4/w8/g8/sub2"."""
        numbers = (self.stages, self.warps, self.group, self.split, self.slices)
        return LABELS.write(self.kernel, self.tile, numbers, self.direct)

    @property
    def tile(self) -> tuple[int, int, int]:
        """(M, N, K) of the tile: (bm, bn, bk)."""
        return self.bm, self.bn, self.bk

    @property
    def accumulators(self) -> int:
        """Elements of the tile, in the accumulator's dtype, that one thread adds up."""
        return self.bm * self.bn // (32 * self.warps)

    @property
    def parts(self) -> tuple[int, int]:
        """(head, tail): columns of the two accumulators of a GLUON tile, powers of two; the tail
        is 0 where one is enough.
        """
        head = power_of_two(self.bn + 1) // 2
        return head, self.bn - head


def parse(label: str) -> Config:
    """The configuration a label names. Raises ValueError for any other text."""
    kernel, (bm, bn, bk), (stages, warps, group, split, slices), direct = LABELS.read(label)
    if kernel == REPLACED:  # the same tile, with what fits beside a loading warp
        return Config(GLUON, bm, bn, bk, min(stages, 4), 8, group, 2, direct)
    return Config(kernel, bm, bn, bk, stages, warps, group, split, direct, slices)


@dataclass(frozen=True)
class Problem:
    """A GEMM as the kernels see it: C[m, n] = A[m, k] @ B[k, n], and whether K is contiguous."""

    m: int
    n: int
    k: int
    precision: Precision
    a_k_major: bool
    b_k_major: bool

    @classmethod
    def of(cls, case: Case) -> Problem:
        """The problem of a case: layout letter "n" of A and "t" of B keep K contiguous. KeyError
        for a missing dimension, ValueError for an unknown precision.
        """
        m, n, k = (case.dim(d) for d in "mnk")
        return cls(m, n, k, case.precision, case.layout[0] == "n", case.layout[1] == "t")

    @property
    def pack_a(self) -> bool:
        """Whether TMA needs a copy of A: rows on 16 bytes, or K-major."""
        return self._pack(self.a_k_major, self.m)

    @property
    def pack_b(self) -> bool:
        """Whether TMA needs a copy of B: rows on 16 bytes, or K-major."""
        return self._pack(self.b_k_major, self.n)

    def _pack(self, k_major: bool, rows: int) -> bool:
        return self.turned(k_major) or bool(
            (self.k if k_major else rows) * self.precision.bytes_per_element % TMA_ALIGNMENT
        )

    def turned(self, k_major: bool) -> bool:
        """Whether the copy for TMA is transposed: wgmma reads only 16-bit types with K outermost
        (PTX ISA, "Strides", wgmma descriptors).
        """
        return not k_major and self.precision.bytes_per_element != 2

    @property
    def c_misaligned(self) -> bool:
        """Whether the rows of C do not start on 16 bytes, which TMA cannot store."""
        return bool(self.n * self.precision.output_bytes % TMA_ALIGNMENT)

    @property
    def storage_class(self) -> tuple[bool, bool, bool]:
        """Problems that agree in these three can share a tuned configuration."""
        return self.pack_a, self.pack_b, self.c_misaligned

    def tiles(self, config: Config) -> int:
        """How many tiles cover C [m, n]."""
        return ceil(self.m / config.bm) * ceil(self.n / config.bn)


def shared_memory(config: Config, kind: Precision) -> int:
    """Estimated bytes of shared memory of one program, seldom too few: operands times stages, and
    the tile on its way to C. Only the compiler knows the exact number.
    """
    buffers = config.stages * (config.bm + config.bn) * config.bk * kind.bytes_per_element
    staged = config.bm * config.bn * kind.output_bytes // config.split
    if config.kernel == POINTER:
        return max(buffers, staged)
    barriers = 1024
    if config.kernel == GLUON:
        head, tail = config.parts
        return buffers + config.bm * (head // config.split + tail) * kind.output_bytes + barriers
    if config.kernel in SLICED:
        return max(buffers, config.bm * config.bn * kind.accumulator_bytes) + barriers
    if config.kernel == TMA and (kind.output_bytes == 2 or config.split > 1 or config.direct):
        return max(buffers, staged) + barriers
    return buffers + staged + barriers


def valid(config: Config, problem: Problem, capability: Capability) -> bool:
    """Whether a GPU of this capability can run it; `why_not` says what is in the way."""
    return why_not(config, problem, capability) is None


def why_not(config: Config, problem: Problem, capability: Capability) -> str | None:
    """Why a GPU of this capability cannot run it, or None: TMA, alignment of C, shared memory, and
    for GLUON a Triton that has it, Hopper, and a precision that it multiplies.
    """
    if config.kernel != POINTER and not has_tma(capability):
        return "this GPU has no TMA"
    if config.kernel not in (POINTER, *SLICED) and config.direct < problem.c_misaligned:
        return "the rows of C do not start on 16 bytes"
    if config.slices > ceil(problem.k / config.bk):
        return "it has more slices than steps over K"
    if config.kernel == GLUON and (reason := _no_gluon(problem.precision, capability)):
        return reason
    needed = shared_memory(config, problem.precision)
    if needed > (there := architecture(capability).block_shared_bytes):
        return f"it needs {needed} bytes of shared memory, a block has {there}"
    return None


def _no_gluon(kind: Precision, capability: Capability) -> str | None:
    if capability != WGMMA_CAPABILITY:
        return "this GPU has no wgmma"
    if kind.name not in GLUON_PRECISIONS:
        return f"it does not multiply {kind.name}"
    return gluon.missing()


# (M, N, K, stages, warps). No Tensor Core: operands go through registers, so tiles stay small in K.
_FP32_TILES = (
    (32, 32, 32, 3, 4), (32, 64, 32, 3, 4), (64, 64, 16, 3, 4), (128, 64, 16, 3, 4),
    (64, 128, 16, 3, 4), (128, 128, 16, 3, 8), (128, 128, 16, 2, 8),
)  # fmt: skip
# (M, N, 128-byte lines of K, stages, warps)
_POINTER_TILES = (
    (32, 32, 1, 4, 4), (32, 64, 1, 4, 4), (64, 64, 1, 4, 4), (64, 128, 1, 4, 4),
    (128, 64, 1, 4, 4), (128, 128, 1, 3, 8), (128, 256, 1, 3, 8),
)  # fmt: skip
_TMA_TILES = (
    (64, 32, 1, 6, 4), (64, 64, 1, 4, 4), (64, 64, 1, 6, 4), (64, 64, 2, 4, 4),
    (64, 128, 1, 4, 4), (64, 128, 1, 6, 4), (128, 64, 1, 4, 4), (128, 64, 1, 6, 4),
    (128, 64, 2, 4, 4), (64, 128, 2, 4, 4), (128, 128, 1, 3, 4), (128, 128, 1, 4, 4),
    (128, 128, 1, 5, 8), (64, 256, 1, 4, 4), (128, 256, 1, 3, 8), (128, 256, 1, 4, 8),
    (256, 128, 1, 3, 8), (256, 128, 1, 4, 8),
)  # fmt: skip
# (M, N, warps that multiply)
_GLUON_TILES = (
    (64, 96, 4), (64, 128, 4), (64, 160, 4), (64, 192, 4), (64, 256, 4),
    (128, 80, 8), (128, 96, 8), (128, 128, 8), (128, 144, 8), (128, 160, 8), (128, 192, 8),
    (128, 256, 8), (256, 128, 8),
)  # fmt: skip
LEAST_STAGES, MOST_STAGES = 4, 7
# (rows of the long matrix, 128-byte lines of K, stages)
_LONG_SIDES = ((32, 4, 4), (64, 2, 5), (64, 1, 8), (128, 2, 4))
NARROWEST = 16  # rows of a tile's narrow side
LEAST_STEPS = 2  # over K, of a program
# (M, N, 128-byte lines of K, stages, warps)
_SPLIT_TILES = ((64, 128, 1, 5, 4), (128, 128, 1, 4, 8))


@cache
def catalogue(precision_name: str) -> tuple[Config, ...]:
    """Every configuration that the rules choose from, for one precision. KeyError for no
    precision.
    """
    kind = PRECISIONS[precision_name]
    if precision_name == "fp32":
        return tuple(Config(POINTER, *tile) for tile in _FP32_TILES)
    line = 128 // kind.bytes_per_element  # elements of K in a 128-byte swizzled row
    found = [
        Config(kernel, bm, bn, lines * line, stages, warps)
        for kernel, tiles in ((POINTER, _POINTER_TILES), (TMA, _TMA_TILES))
        for bm, bn, lines, stages, warps in tiles
    ]
    found += _persistent(line, kind.output_bytes)
    found += _sliced(line)
    if kind.is_float8 and not kind.fast_accumulate:
        found = [config for config in found if config.accumulators <= PRECISE_ACCUMULATORS]
    if precision_name in GLUON_PRECISIONS:
        found += _gluon(kind)
    stored_by_tma = [config for config in found if config.kernel not in (POINTER, *SLICED)]
    return (*found, *(_direct(config) for config in stored_by_tma))


def _gluon(kind: Precision) -> Iterator[Config]:
    """Each tile with as many stages as fit, storing C in the fewest parts that leave room."""
    line = 128 // kind.bytes_per_element
    room = architecture(WGMMA_CAPABILITY).block_shared_bytes
    for bm, bn, warps in _GLUON_TILES:
        if bn == 256 and kind.accumulate == "int32":
            continue  # Triton 3.6 has no wgmma so wide
        for split in (1, 2, 4):
            config = Config(GLUON, bm, bn, line, 1, warps, split=split)
            stage = (bm + bn) * line * kind.bytes_per_element
            stages = 1 + (room - shared_memory(config, kind)) // stage
            if stages >= LEAST_STAGES:
                yield replace(config, stages=min(stages, MOST_STAGES))
                break


def _sliced(line: int) -> Iterator[Config]:
    kinds = product((16, 32, 64), _LONG_SIDES, (1, 2, 4, 8))
    for narrow, (long, lines, stages), slices in kinds:
        if long < narrow:
            continue
        yield Config(SKINNY, narrow, long, lines * line, stages, 4, slices=slices)
        yield Config(SPLIT_K, long, narrow, lines * line, stages, 4, slices=slices)
    for (bm, bn, lines, stages, warps), slices in product(_SPLIT_TILES, (2, 4, 8)):
        yield Config(SPLIT_K, bm, bn, lines * line, stages, warps, slices=slices)


def _direct(config: Config) -> Config:
    if config.kernel == GLUON:  # it stores through shared memory as with TMA
        return replace(config, direct=True)
    # Addresses take registers too: a large tile stored in one part spills.
    parts = 4 if config.accumulators >= LARGE_ACCUMULATORS else 2
    return replace(config, direct=True, split=max(config.split, parts))


def _persistent(line: int, output_bytes: int) -> Iterator[Config]:
    wide = output_bytes // 2  # parts for a 32-bit C, so that four stages still fit
    for warps in (4, 8):
        yield Config(PERSISTENT, 128, 128, line, 4, warps, split=wide)
    for bm, bn in ((128, 256), (256, 128)):
        yield Config(PERSISTENT, bm, bn, line, 3, 8, split=wide)
        yield Config(PERSISTENT, bm, bn, line, 4, 8, split=2 * wide)


def choices(problem: Problem, capability: Capability, sm_count: int) -> Sequence[Config]:
    """All valid configurations of the catalogue, the most promising first."""
    kind = problem.precision
    possible = [
        config
        for config in catalogue(kind.name)
        if valid(config, problem, capability)
        and (config.direct == problem.c_misaligned or config.kernel in (POINTER, *SLICED))
        and _suits(config, problem)
    ]
    return sorted(possible, key=lambda config: estimated_clocks(config, problem, sm_count))


def _suits(config: Config, problem: Problem) -> bool:
    """Whether a sliced kernel is made for the problem: one side so narrow, K so long."""
    if config.kernel not in SLICED:
        return True
    narrow, rows = (config.bm, problem.m) if config.kernel == SKINNY else (config.bn, problem.n)
    if config.slices * LEAST_STEPS > ceil(problem.k / config.bk):
        return False
    general = config.kernel == SPLIT_K and narrow >= WGMMA_ROWS
    return general or narrow == max(NARROWEST, power_of_two(rows))


L2_BYTES_PER_CLOCK = 42  # per SM: about 10 TB/s over 132 SMs; a model's constant, not a measurement
START_CLOCKS = 3000  # launch, first loads
POINTER_SLOWDOWN = 1.3  # address arithmetic and register pressure, against TMA
PACK_CLOCKS = 4000  # another launch
NARROW_SLOWDOWN = 1.15  # shared memory feeds wgmma too slowly
REDUCE_CLOCKS = 2500  # of the last program of a tile, before it adds the slices up
MOST_SHARED = 2  # blocks of an SM that count: more hide no more
HIDDEN_STORE = 0.3  # of a store that the next tile's multiply-adds hide


def estimated_clocks(config: Config, problem: Problem, sm_count: int) -> float:
    """A model's SM clocks for one launch: waves x (multiply-adds or loads), and the ends of a tile.

    It only ranks configurations. Rates are Hopper's per SM, whatever the GPU.
    """
    kind = problem.precision
    rate = HOPPER.flop_per_clock.get(kind.rate_name, max(HOPPER.flop_per_clock.values()))
    shared_blocks = min(MOST_SHARED, HOPPER.blocks_per_sm(
        32 * config.warps, config.accumulators, shared_memory(config, kind)
    ))  # fmt: skip
    if config.kernel == GLUON:
        shared_blocks = 1
    programs = problem.tiles(config) * config.slices
    waves = ceil(programs / (sm_count * shared_blocks)) * shared_blocks
    if programs <= sm_count:
        waves = 1
    area, edge = config.bm * config.bn, config.bm + config.bn
    narrow = 1.0 if min(config.bm, config.bn) >= 128 else NARROW_SLOWDOWN
    depth = ceil(problem.k / config.slices)
    products = 2 * area * depth / rate * narrow
    loads = edge * depth * kind.bytes_per_element / L2_BYTES_PER_CLOCK
    store = area * kind.output_bytes / L2_BYTES_PER_CLOCK
    store *= HIDDEN_STORE if config.kernel in (PERSISTENT, GLUON) else 1
    if config.slices > 1:
        store += REDUCE_CLOCKS + config.slices * area * 4 / L2_BYTES_PER_CLOCK
    clocks = START_CLOCKS + waves * (max(products, loads) + store)
    if config.kernel == POINTER:
        return clocks * POINTER_SLOWDOWN
    return clocks + max(problem.pack_a, problem.pack_b) * PACK_CLOCKS
