"""One configuration of the Triton GEMM: a kernel, a tile, their label, the memory that they take.

Nothing here imports torch or triton.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.precision import Precision
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
