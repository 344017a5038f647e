"""GEMMs with few tiles: a narrow side, or a small C under a long K. C[M, N] = A[M, K] @ B[K, N].

Such a product moves more than it multiplies, so what counts is how many programs load at once.

- With M narrow the operands are swapped: the long matrix is wgmma's first operand, whose rows come
  in 64s, and the narrow one its second, whose columns come in 8s: M = 17 costs 32 columns instead
  of 64 rows.
- SLICES programs share the K of a tile. Each writes its sum to scratch and counts up; the last one
  adds the slices in their order, so that the result is bitwise the same every time, and sets the
  count back to 0. No second launch, no atomic additions of values.
"""

# Typed by Triton's compiler: to pyright tl.range has no iterator and 128 is no constexpr.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportAssignmentType=false

from __future__ import annotations

import triton
import triton.language as tl

from kernels.gemm.triton.kernels import _load, _tile


@triton.jit(do_not_specialize=["group"])
def gemm_sliced(
    x, y, c, sums, counts, X, Y, K, group, stride_x, stride_y,
    BX: tl.constexpr, BY: tl.constexpr, BK: tl.constexpr,
    SLICES: tl.constexpr,
    X_K_MAJOR: tl.constexpr, Y_K_MAJOR: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, ACC: tl.constexpr, IMPRECISE: tl.constexpr,
):  # fmt: skip
    """x @ y of [X, K] and [K, Y] to c[i * stride_x + j * stride_y]; x and y are TMA descriptors.

    x: [X, K] or [K, X]; y: [Y, K] (Y_K_MAJOR) or [K, Y]. `sums`: BX * BY * SLICES values a tile;
    `counts`: one a tile, 0 before and after. C is stored by masked pointers: its rows need no
    alignment.
    """
    tile = tl.program_id(0) // SLICES
    part = tl.program_id(0) % SLICES
    tile_x, tile_y = _tile(tile, tl.cdiv(X, BX), tl.cdiv(Y, BY), group)
    steps = tl.cdiv(K, BK)
    acc = tl.zeros((BX, BY), ACC)
    first = part * steps // SLICES
    last = (part + 1) * steps // SLICES
    tl.assume(last > first)  # the launcher has no more slices than steps
    for step in range(first, last):
        acc = tl.dot(
            _load(x, tile_x * BX, step * BK, X_K_MAJOR),
            _load(y, tile_y * BY, step * BK, Y_K_MAJOR).T,
            acc,
            input_precision=INPUT_PRECISION,
            max_num_imprecise_acc=IMPRECISE,
            out_dtype=ACC,
        )
    rows = tl.arange(0, BX)
    columns = tl.arange(0, BY)
    if SLICES == 1:
        _store(c, acc, tile_x * BX + rows, tile_y * BY + columns, X, Y, stride_x, stride_y)
    else:
        AT_ONCE: tl.constexpr = 4 if SLICES % 4 == 0 else SLICES  # loads under way together
        inside = rows[:, None] * BY + columns[None, :]
        mine = sums + tile.to(tl.int64) * (SLICES * BX * BY)
        tl.store(mine + part * (BX * BY) + inside, acc, cache_modifier=".cg")
        tl.debug_barrier()  # all of this program's values are written before it counts
        if tl.atomic_add(counts + tile, 1, sem="acq_rel", scope="gpu") == SLICES - 1:
            total = tl.zeros((BX, BY), ACC)
            for base in range(0, SLICES, AT_ONCE):
                for i in tl.static_range(AT_ONCE):
                    other = mine + (base + i) * (BX * BY) + inside
                    total += tl.load(other, cache_modifier=".cg")
            _store(c, total, tile_x * BX + rows, tile_y * BY + columns, X, Y, stride_x, stride_y)
            tl.store(counts + tile, 0)


@triton.jit
def _store(c, value, rows, columns, X, Y, stride_x, stride_y):
    """Write a block to c at [rows, columns], as far as it lies inside [X, Y]."""
    where = c + rows.to(tl.int64)[:, None] * stride_x + columns.to(tl.int64)[None, :] * stride_y
    tl.store(where, value.to(c.dtype.element_ty), (rows < X)[:, None] & (columns < Y)[None, :])
