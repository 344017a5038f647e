"""One configuration of the Triton GEMM, its label and memory; and those that its rules choose from.

Nothing here imports torch or triton.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from kernels.gpus import architecture
from kernels.precision import PRECISIONS, Capability, Precision
from kernels.triton_config import Grammar, power_of_two

POINTER, TMA, PERSISTENT = "pointer", "tma", "tma_persistent"
GLUON, SKINNY, SPLIT_K = "gluon", "skinny", "split_k"
KERNELS = (POINTER, TMA, PERSISTENT, GLUON, SKINNY, SPLIT_K)
WALKING = (PERSISTENT, GLUON)  # one program an SM, which walks over tiles
REPLACED = "tma_192"  # tables of earlier versions name it: 128x192 tiles without a loading warp
LABELS = Grammar(
    "Triton GEMM", (*KERNELS, REPLACED), 3, ("s", "w", "g"), ("sub", "k"), "direct"
)  # fmt: skip
SLICED = (SKINNY, SPLIT_K)  # several programs may share the K of a tile


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
    narrowed = kind.output_bytes == 2 and kind.accumulate != "float16"  # C is made after the loop
    if config.kernel == TMA and (narrowed or config.split > 1 or config.direct):
        return max(buffers, staged) + barriers
    return buffers + staged + barriers


# ---------------------------------------------------------------- the catalogue

WGMMA_CAPABILITY: Capability = (9, 0)
# float16 sums in two accumulators make ptxas serialize wgmma; precise fp8 sums need registers of
# their own; float32 is rounded to TF32.
GLUON_PRECISIONS = ("fp16", "bf16", "tf32", "fp8-e4m3", "fp8-e5m2", "int8")
PRECISE_ACCUMULATORS = 64  # fp8's float32 sums come on top of wgmma's own: 128 each would spill
LARGE_ACCUMULATORS = 128

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
# (M, N, warps that multiply)
_GLUON_TILES = (
    (64, 96, 4), (64, 128, 4), (64, 160, 4), (64, 192, 4), (64, 256, 4),
    (128, 80, 8), (128, 96, 8), (128, 128, 8), (128, 144, 8), (128, 160, 8), (128, 192, 8),
    (128, 256, 8), (256, 128, 8),
)  # fmt: skip
LEAST_STAGES, MOST_STAGES = 4, 7
# (rows of the long matrix, 128-byte lines of K, stages)
_LONG_SIDES = ((32, 4, 4), (64, 2, 5), (64, 1, 8), (128, 2, 4))
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
    kinds = product((16, 32, 64), _LONG_SIDES, (1, 2, 4, 8, 16))
    for narrow, (long, lines, stages), slices in kinds:
        if long < narrow:
            continue
        yield Config(SKINNY, narrow, long, lines * line, stages, 4, slices=slices)
        yield Config(SPLIT_K, long, narrow, lines * line, stages, 4, slices=slices)
    for (bm, bn, lines, stages, warps), slices in product(_SPLIT_TILES, (2, 4, 8, 16)):
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
