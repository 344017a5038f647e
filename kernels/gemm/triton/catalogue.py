"""The configurations that the rules of the Triton GEMM choose from.

Nothing here imports torch or triton.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

from kernels.gemm.triton.tiles import (
    GLUON,
    PERSISTENT,
    POINTER,
    SKINNY,
    SLICED,
    SPLIT_K,
    TMA,
    Config,
    shared_memory,
)
from kernels.gpus import architecture
from kernels.precision import PRECISIONS, Capability, Precision

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
