"""Configurations of the Triton GEMM: their labels, what a problem allows, and which to prefer.

Nothing here imports torch or triton: tables and rules can be checked on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from kernels import tile_model
from kernels.case import Case
from kernels.gpus import HOPPER, architecture, has_tma
from kernels.precision import PRECISIONS, Capability, Precision
from kernels.tile_model import Fit, Kernel, Work, pieces
from kernels.triton_config import LINE_BYTES, TMA_ALIGNMENT, Grammar

POINTER, TMA, PERSISTENT, WIDE = "pointer", "tma", "tma_persistent", "tma_192"
KERNELS = (POINTER, TMA, PERSISTENT, WIDE)
WALKING = (PERSISTENT, WIDE)  # one program an SM, which walks over tiles
LABELS = Grammar("Triton GEMM", KERNELS, 3, ("s", "w", "g"), ("sub",), "direct")

PRECISE_ACCUMULATORS = 64  # fp8's float32 sums come on top of wgmma's own: 128 each would spill
LARGE_ACCUMULATORS = 128
MOST_FLOP_PER_CLOCK = max(HOPPER.flop_per_clock.values())


@dataclass(frozen=True)
class Config:
    """One way to run a kernel. A tile is `bm` x `bn` of C, added up `bk` of K at a time, by `warps`
    warps, with `stages` tiles of the operands buffered.

    `group` rows of tiles are walked together, for L2; `split` is the number of parts that a tile is
    stored in; `direct` stores registers to memory without TMA.
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

    @property
    def label(self) -> str:
        """Compact name, which `parse` reads: "tma_persistent/128x256x64/s4/w8/g8/sub2"."""
        numbers = (self.stages, self.warps, self.group, self.split)
        return LABELS.write(self.kernel, self.tile, numbers, self.direct)

    @property
    def tile(self) -> tuple[int, int, int]:
        """(M, N, K) of the tile: (bm, bn, bk)."""
        return self.bm, self.bn, self.bk

    @property
    def accumulators(self) -> int:
        """Elements of the tile, in the accumulator's dtype, that one thread adds up."""
        return self.bm * self.bn // (32 * self.warps)


def parse(label: str) -> Config:
    """The configuration a label names. Raises ValueError for any other text."""
    kernel, (bm, bn, bk), (stages, warps, group, split), direct = LABELS.read(label)
    return Config(kernel, bm, bn, bk, stages, warps, group, split, direct)


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
        """Whether TMA needs a K-major copy of A, with rows on 16 bytes."""
        return self._pack(self.a_k_major, self.m)

    @property
    def pack_b(self) -> bool:
        """Whether TMA needs a K-major copy of B, with rows on 16 bytes."""
        return self._pack(self.b_k_major, self.n)

    def _pack(self, k_major: bool, rows: int) -> bool:
        # wgmma reads only 16-bit types with K outermost; PTX ISA, "Strides", wgmma descriptors.
        if not k_major and self.precision.bytes_per_element != 2:
            return True
        return bool(
            (self.k if k_major else rows) * self.precision.bytes_per_element % TMA_ALIGNMENT
        )

    @property
    def c_misaligned(self) -> bool:
        """Whether the rows of C do not start on 16 bytes, which TMA cannot store."""
        return bool(self.n * self.precision.output_bytes % TMA_ALIGNMENT)

    @property
    def misaligned(self) -> bool:
        """Whether rows of A or B do not start on 16 bytes."""
        return any(row % TMA_ALIGNMENT for row in self._row_bytes)

    @property
    def straddles(self) -> bool:
        """Whether rows of A or B do not start on the 128 bytes of a cache line."""
        return any(row % LINE_BYTES for row in self._row_bytes)

    @property
    def _row_bytes(self) -> tuple[int, int]:
        a = self.k if self.a_k_major else self.m
        b = self.k if self.b_k_major else self.n
        return a * self.precision.bytes_per_element, b * self.precision.bytes_per_element

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
    narrowed = kind.output_bytes == 2 and kind.accumulate != "float16"  # C is made after the loop
    if config.kernel == TMA and (narrowed or config.split > 1 or config.direct):
        return max(buffers, staged) + barriers
    return buffers + staged + barriers


def valid(config: Config, problem: Problem, capability: Capability) -> bool:
    """Whether a GPU of this capability can run it: TMA, alignment of C, shared memory."""
    if config.kernel != POINTER and (
        not has_tma(capability) or config.direct < problem.c_misaligned
    ):
        return False
    return shared_memory(config, problem.precision) <= architecture(capability).block_shared_bytes


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
    (64, 32, 1, 6, 4), (64, 32, 2, 4, 4), (64, 64, 1, 4, 4), (64, 64, 1, 6, 4), (64, 64, 2, 4, 4),
    (64, 128, 1, 4, 4), (64, 128, 1, 6, 4), (128, 64, 1, 4, 4), (128, 64, 1, 6, 4),
    (128, 64, 2, 4, 4), (64, 128, 2, 4, 4), (128, 128, 1, 3, 4), (128, 128, 1, 4, 4),
    (128, 128, 1, 5, 8), (64, 256, 1, 4, 4), (128, 256, 1, 3, 8), (128, 256, 1, 4, 8),
    (256, 128, 1, 3, 8), (256, 128, 1, 4, 8),
)  # fmt: skip


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
    found += [Config(WIDE, 128, 192, line, 4, warps, split=2) for warps in (8, 4)]
    if kind.is_float8 and not kind.fast_accumulate:
        found = [config for config in found if config.accumulators <= PRECISE_ACCUMULATORS]
    return (*found, *(_direct(config) for config in found if config.kernel != POINTER))


def _direct(config: Config) -> Config:
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
        and (config.direct == problem.c_misaligned or config.kernel == POINTER)
    ]
    return sorted(possible, key=lambda config: estimated_clocks(config, problem, sm_count))


FACTS: Mapping[str, Kernel] = {
    POINTER: Kernel(slowdown=1.3),  # address arithmetic and register pressure
    TMA: Kernel(),
    PERSISTENT: Kernel(stored=0.5),  # the next tile's loads are under way
    WIDE: Kernel(slowdown=1.1),  # its loads stop at every tile
}
MISALIGNED_SLOWDOWN = 2.0  # of POINTER, where elements are loaded one by one


def estimated_clocks(config: Config, problem: Problem, sm_count: int) -> float:
    """The tile model's clocks for one launch; see `kernels.tile_model`. It only ranks."""
    kernel = FACTS.get(config.kernel, Kernel())
    if config.kernel == POINTER and problem.misaligned:
        kernel = replace(kernel, slowdown=MISALIGNED_SLOWDOWN * kernel.slowdown)
    return tile_model.estimated_clocks(_work(config, problem), kernel, sm_count)


def tile_kind(config: Config) -> tuple[int, int, int]:
    """What a short list holds few of: the tile, or the same one turned."""
    return min(config.bm, config.bn), max(config.bm, config.bn), config.bk


def fit(config: Config, problem: Problem) -> Fit:
    """How the configuration's tiles fit C."""
    tiles = problem.tiles(config)
    return Fit(tiles, tiles * config.bm * config.bn / (problem.m * problem.n))


def _work(config: Config, problem: Problem) -> Work:
    p, kind = problem, problem.precision
    shared = shared_memory(config, kind)
    packed = p.k * (p.m * p.pack_a + p.n * p.pack_b) if config.kernel != POINTER else 0
    return Work(
        tiles=p.tiles(config),
        rows=config.bm,
        columns=config.bn,
        depth=ceil(p.k / config.bk) * config.bk,
        step=config.bk,
        element_bytes=kind.bytes_per_element,
        output_bytes=kind.output_bytes,
        flop_per_clock=HOPPER.flop_per_clock.get(kind.rate_name, MOST_FLOP_PER_CLOCK),
        pieces=pieces(config.bn),
        resident=1
        if config.kernel in WALKING
        else HOPPER.blocks_per_sm(32 * config.warps, config.accumulators, shared),
        straddles=p.straddles,
        moved=p.k * (p.m + p.n) * kind.bytes_per_element + p.m * p.n * kind.output_bytes,
        launches=(p.pack_a + p.pack_b) * (config.kernel != POINTER),
        extra_moved=2 * packed * kind.bytes_per_element,
    )
