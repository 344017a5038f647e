"""The Triton kernels of op gemm: C[M, N] = A[M, K] @ B[K, N]. Launched by launch.

No autotune decorators here: the interpreter (TRITON_INTERPRET=1) and ahead-of-time compilation
take the kernels as they are. Names in capitals are compile-time constants:
BM, BN, BK the tile; INPUT_PRECISION and ACC the arithmetic; IMPRECISE after how many products an
fp8 sum moves to a float32 register (None: the hardware's short accumulator holds it throughout).
`group` is how many tile rows are walked before the next tile column, so that programs which run
together share operands in L2.
"""

# Typed by Triton's compiler: to pyright tl.range has no iterator and 128 is no constexpr.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(index, tiles_m, tiles_n, group):
    """Tile number -> (row, column), in bands of `group` rows walked down, then across."""
    band_tiles = group * tiles_n
    first_m = (index // band_tiles) * group
    rows = min(tiles_m - first_m, group)
    inside = index % band_tiles
    return first_m + inside % rows, inside // rows


@triton.jit
def _load(descriptor, row, k, K_MAJOR: tl.constexpr):
    """The [rows, BK] tile of a matrix stored [rows, K] (K_MAJOR) or [K, rows]."""
    return descriptor.load([row, k]) if K_MAJOR else descriptor.load([k, row]).T


@triton.jit
def _halves(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Left and right half of a [ROWS, COLUMNS] block."""
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))


@triton.jit
def _store_part(c_desc, c, value, m, n, M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Write a [BM, BN] block of C at (m, n), by TMA or (no descriptor) through masked pointers."""
    if c_desc is None:
        rows = m + tl.arange(0, BM)
        columns = n + tl.arange(0, BN)
        corner = c + rows.to(tl.int64)[:, None] * N
        tl.store(corner + columns[None, :], value, (rows < M)[:, None] & (columns < N)[None, :])
    else:
        c_desc.store([m, n], value)


@triton.jit
def _store(c_desc, c, acc, m, n, M, N, BM: tl.constexpr, BN: tl.constexpr, SPLIT: tl.constexpr):
    """Write a [BM, BN] accumulator to C at (m, n) in SPLIT (1, 2 or 4) column parts.

    Every part passes through shared memory that is free again before the next: more parts leave
    room for another pipeline stage.
    """
    if SPLIT == 1:
        _store_part(c_desc, c, acc.to(c.dtype.element_ty), m, n, M, N, BM, BN)
    else:
        left, right = _halves(acc, BM, BN)
        _store(c_desc, c, left, m, n, M, N, BM, BN // 2, SPLIT // 2)
        _store(c_desc, c, right, m, n + BN // 2, M, N, BM, BN // 2, SPLIT // 2)


@triton.jit(do_not_specialize=["group"])
def gemm_tma(
    a, b, c_desc, c, M, N, K, group,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SPLIT: tl.constexpr,
    A_K_MAJOR: tl.constexpr, B_K_MAJOR: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, ACC: tl.constexpr, IMPRECISE: tl.constexpr,
):  # fmt: skip
    """One tile a program, operands by TMA descriptor: for problems of about one wave or less.

    a: [M, K] or [K, M]; b: [N, K] (B_K_MAJOR) or [K, N]; c_desc: [M, N] or None; c: the same
    matrix as a pointer. TMA fills tiles that hang over the edge with zeros and cuts the stores, so
    no size needs to be a multiple of the tile.
    """
    tile_m, tile_n = _tile(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), group)
    acc = tl.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        acc = tl.dot(
            _load(a, tile_m * BM, k, A_K_MAJOR),
            _load(b, tile_n * BN, k, B_K_MAJOR).T,
            acc,
            input_precision=INPUT_PRECISION,
            max_num_imprecise_acc=IMPRECISE,
            out_dtype=ACC,
        )
    _store(c_desc, c, acc, tile_m * BM, tile_n * BN, M, N, BM, BN, SPLIT)


@triton.jit(do_not_specialize=["group"])
def gemm_tma_persistent(
    a, b, c_desc, c, M, N, K, group,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SPLIT: tl.constexpr,
    A_K_MAJOR: tl.constexpr, B_K_MAJOR: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, ACC: tl.constexpr, IMPRECISE: tl.constexpr,
    PROGRAMS: tl.constexpr,
):  # fmt: skip
    """At most PROGRAMS programs, each walking over tiles; arguments as in gemm_tma.

    The loops over tiles and over K are flattened into one pipeline, so the loads of the next tile
    are under way while this one is stored. The store works out its tile from a counter of its own:
    sharing the load's would tie the two together across the pipeline. Warps are not specialized:
    on Triton 3.6 and an H200 a search that tried it came to a standstill.
    """
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    stored = tl.program_id(0) - PROGRAMS
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=True):
        tile_m, tile_n = _tile(tile, tiles_m, tiles_n, group)
        acc = tl.zeros((BM, BN), ACC)
        for step in range(tl.cdiv(K, BK)):
            acc = tl.dot(
                _load(a, tile_m * BM, step * BK, A_K_MAJOR),
                _load(b, tile_n * BN, step * BK, B_K_MAJOR).T,
                acc,
                input_precision=INPUT_PRECISION,
                max_num_imprecise_acc=IMPRECISE,
                out_dtype=ACC,
            )
        stored += PROGRAMS
        out_m, out_n = _tile(stored, tiles_m, tiles_n, group)
        _store(c_desc, c, acc, out_m * BM, out_n * BN, M, N, BM, BN, SPLIT)


@triton.jit(do_not_specialize=["group"])
def gemm_pointer(
    a, b, c, M, N, K, group, stride_am, stride_ak, stride_bk, stride_bn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    EVEN_K: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, ACC: tl.constexpr, IMPRECISE: tl.constexpr,
):  # fmt: skip
    """Any strides, any size, any GPU: loads through pointers, masked at the edges.

    a: [M, K], b: [K, N] with strides in elements; c: [M, N], rows contiguous. EVEN_K (K a multiple
    of BK) drops the mask along K. The tile's corner is a 64-bit offset, what lies inside it 32-bit.
    """
    tile_m, tile_n = _tile(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), group)
    rows = tl.arange(0, BM)
    columns = tl.arange(0, BN)
    inner = tl.arange(0, BK)
    left_m = M - tile_m * BM
    left_n = N - tile_n * BN
    a += (tile_m * BM).to(tl.int64) * stride_am
    b += (tile_n * BN).to(tl.int64) * stride_bn
    a_tile = a + (rows[:, None] * stride_am + inner[None, :] * stride_ak)
    b_tile = b + (inner[:, None] * stride_bk + columns[None, :] * stride_bn)
    a_mask = (rows < left_m)[:, None]
    b_mask = (columns < left_n)[None, :]
    acc = tl.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        if EVEN_K:
            x = tl.load(a_tile, mask=a_mask, other=0.0)
            y = tl.load(b_tile, mask=b_mask, other=0.0)
        else:
            x = tl.load(a_tile, mask=a_mask & (inner < K - k)[None, :], other=0.0)
            y = tl.load(b_tile, mask=b_mask & (inner < K - k)[:, None], other=0.0)
        acc = tl.dot(
            x, y, acc,
            input_precision=INPUT_PRECISION, max_num_imprecise_acc=IMPRECISE, out_dtype=ACC,
        )  # fmt: skip
        a_tile += BK * stride_ak
        b_tile += BK * stride_bk
    _store(None, c, acc, tile_m * BM, tile_n * BN, M, N, BM, BN, 1)
