"""Launches of the Triton GEMM: binds a configuration to matrices. Descriptors, scratch, grids.

Whatever can be done beforehand is done here, so that a launch does nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.gemm.triton import config as cfg
from kernels.gemm.triton import kernels as jit
from kernels.gemm.triton.config import GemmConfig, GemmProblem, Stored
from kernels.gemm.triton.kernels import gemm_odd_width, gemm_sliced, pack_k_major, pack_rows
from kernels.gpus import LINE_BYTES
from kernels.triton_util import TMA_ALIGNMENT, Step, input_precision, options, split_n

TRANSPOSED_ROWS, TRANSPOSED_K = 64, 64  # of a block
PACK_ROWS, PACK_BYTES = 16, 512  # of a block that is copied
PACK_WARPS = 4
WORDS = {8: tl.int64, 4: tl.int32, 2: tl.int16, 1: tl.int8}  # by bytes

_ACCUMULATE = {"float32": tl.float32, "int32": tl.int32}
_TMA_KERNELS = {cfg.TMA: jit.gemm_tma, cfg.PERSISTENT: jit.gemm_tma_persistent}


@dataclass(frozen=True)
class Matrix:
    """Where an operand starts, and how many elements its rows lie apart."""

    base: torch.Tensor
    stored: Stored
    ld: int

    @property
    def strides(self) -> tuple[int, int]:
        """Strides in elements along the rows and along K."""
        return (self.ld, 1) if self.stored.k_major else (1, self.ld)

    def descriptor(self, rows: int, k: int) -> TensorDescriptor:
        """A TMA descriptor whose blocks are `rows` x `k`."""
        box = [rows, k] if self.stored.k_major else [k, rows]
        return TensorDescriptor(self.base, list(self.stored.sizes), [self.ld, 1], box)


class Launcher:
    """Binds configurations to the matrices of one problem.

    `a`, `b` and `c` give addresses and dtypes; sizes and strides come from the problem. Copies that
    TMA needs are allocated at the first use and shared by all configurations.
    """

    def __init__(
        self, problem: GemmProblem, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, sm_count: int
    ) -> None:
        p = problem
        self.problem, self.c, self.sm_count = problem, c, sm_count
        self.a, self.b = Matrix(a, p.a, p.a.sizes[1]), Matrix(b, p.b, p.b.sizes[1])

    def bind(self, config: GemmConfig) -> tuple[Step, ...]:
        """The launches of one GEMM, in order. torch.OutOfMemoryError if a copy for TMA does not
        fit.
        """
        if config.kernel == cfg.POINTER:
            return (self._pointer_step(config),)
        a, b, packs = self._packed
        if config.kernel in cfg.EITHER_WAY:
            return (*packs, self._either_way_step(config, a, b))
        return (*packs, self._tma_step(config, a, b))

    @cached_property
    def _packed(self) -> tuple[Matrix, Matrix, Sequence[Step]]:
        """A and B as TMA reads them, or copies whose rows start on 16 bytes, and the launches that
        copy: one for all that stay as they lie, one for each that is transposed.
        """
        matrices, rows, steps = [self.a, self.b], [], []
        for i, source in enumerate((self.a, self.b)):
            if not source.stored.packed:
                continue
            matrices[i] = _place(source)
            if source.stored.copy.k_major == source.stored.k_major:
                rows.append((source, matrices[i]))
            else:
                steps.append(_transpose_step(source, matrices[i]))
        if rows:
            steps.append(_rows_step(rows))
        return matrices[0], matrices[1], steps

    @property
    def _arithmetic(self) -> tuple[object, object]:
        precision = self.problem.precision
        return input_precision(precision), _ACCUMULATE[precision.accumulate]

    def _pointer_step(self, config: GemmConfig) -> Step:
        p = self.problem
        sizes = (p.m, p.n, p.k, *self.a.strides, *reversed(self.b.strides))
        units = tuple(p.unit(size) for size in sizes)
        m, n, k, *strides = (size // unit for size, unit in zip(sizes, units, strict=True))
        args = (
            self.a.base, self.b.base, self.c, m, n, k, config.group_m, *strides,
            *config.tile, p.k % config.bk == 0, units, *self._arithmetic,
        )  # fmt: skip
        step_options = options(config.stages, config.warps)
        return Step(jit.gemm_pointer, (p.tiles(config),), args, step_options)

    def _tma_step(self, config: GemmConfig, a: Matrix, b: Matrix) -> Step:
        p, tiles = self.problem, self.problem.tiles(config)
        boxes = (a.descriptor(config.bm, config.bk), b.descriptor(config.bn, config.bk))
        tile = (config.bm, config.bn, config.bk, config.epilogue_subtiles)
        c_box = [config.bm, config.bn // config.epilogue_subtiles]
        box = None if config.direct else TensorDescriptor(self.c, [p.m, p.n], [p.n, 1], c_box)
        args = (
            *boxes, box, self.c, p.m, p.n, p.k, config.group_m,
            *tile, a.stored.k_major, b.stored.k_major, *self._arithmetic,
        )  # fmt: skip
        grid = (tiles,)
        if config.kernel == cfg.PERSISTENT:
            args, grid = (*args, self.sm_count), (min(self.sm_count, tiles),)
        return Step(_TMA_KERNELS[config.kernel], grid, args, options(config.stages, config.warps))

    def _either_way_step(self, config: GemmConfig, a: Matrix, b: Matrix) -> Step:
        p, tiles, split_k = self.problem, self.problem.tiles(config), config.split_k
        precision, device, kernel = p.precision, self.c.device, gemm_odd_width
        sides = [(a, config.bm, p.n), (b, config.bn, 1)]  # matrix, block, stride of C
        if config.swapped:
            sides.reverse()
        (x, block_x, stride_x), (y, block_y, stride_y) = sides
        blocks, scratch, constants = split_n(block_y), (), ()
        if config.kernel == cfg.SPLIT_K:
            kernel, blocks, constants = gemm_sliced, (block_y,), (split_k,)
            values = tiles * split_k * config.bm * config.bn if split_k > 1 else 1
            sums = torch.empty(values, dtype=precision.torch_dtype("accumulate"), device=device)
            counts = torch.zeros(tiles if split_k > 1 else 1, dtype=torch.int32, device=device)
            scratch = (sums, counts)
        args = (
            x.descriptor(block_x, config.bk), *(y.descriptor(b, config.bk) for b in blocks),
            self.c, *scratch, x.stored.rows, y.stored.rows, p.k, config.group_m, stride_x, stride_y,
            block_x, *blocks, config.bk, *constants, x.stored.k_major, y.stored.k_major,
            *self._arithmetic,
        )  # fmt: skip
        return Step(kernel, (tiles * split_k,), args, options(config.stages, config.warps))


# ------------------------------------------------------------ copies


def _place(matrix: Matrix) -> Matrix:
    """Memory for a copy. Its rows start on cache lines: TMA asks for 16 bytes, but a row that
    straddles lines costs an L2 sector more for every 128 bytes.
    """
    stored, line = matrix.stored.copy, LINE_BYTES // matrix.base.element_size()
    outer, inner = stored.sizes
    ld = ceil(inner / line) * line
    base = torch.empty((outer, ld), dtype=matrix.base.dtype, device=matrix.base.device)
    return Matrix(base, stored, ld)


def _transpose_step(source: Matrix, copy: Matrix) -> Step:
    rows, k = source.stored.rows, source.stored.k
    args = (
        source.base, copy.base, rows, k, *source.strides, copy.ld, TRANSPOSED_ROWS, TRANSPOSED_K,
    )  # fmt: skip
    grid = (ceil(k / TRANSPOSED_K), ceil(rows / TRANSPOSED_ROWS))
    return Step(pack_k_major, grid, args, {"num_warps": PACK_WARPS})


def _rows_step(copies: Sequence[tuple[Matrix, Matrix]]) -> Step:
    bound, words, blocks = [], [], []
    for source, copy in copies:
        size = source.base.element_size()
        outer, inner = source.stored.sizes
        row = inner * size
        word = min(row & -row, max(WORDS))  # the largest power of two that divides a row
        length, ld = row // word, copy.ld * size
        bound.append((source.base, copy.base, outer, length, ld // TMA_ALIGNMENT))
        words += [word, WORDS[word]]
        blocks.append(ceil(outer / PACK_ROWS) * ceil(ld / PACK_BYTES))
    if len(copies) == 1:  # the second is not reached
        bound, words = 2 * bound, 2 * words
    args = (*bound[0], blocks[0], *bound[1], *words, PACK_ROWS, PACK_BYTES)
    return Step(pack_rows, (sum(blocks),), args, {"num_warps": PACK_WARPS})
