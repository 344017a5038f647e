"""The Triton kernels of op gemm: C[M, N] = A[M, K] @ B[K, N]. Launched by launch.

No autotune decorators here: the interpreter (TRITON_INTERPRET=1) and ahead-of-time compilation
take the kernels as they are. Names in capitals are compile-time constants:
BM, BN, BK the tile; INPUT_PRECISION and ACC the arithmetic.
Tiles are rasterised in bands of `group_m` rows, column by column, so that programs which run
together share operands in L2.
"""

# Typed by Triton's compiler: to pyright tl.range has no iterator and 128 is no constexpr.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportAssignmentType=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _tile(index, tiles_m, tiles_n, group_m):
    """Tile number -> (row, column), in bands of `group_m` rows, down and then across."""
    band_tiles = group_m * tiles_n
    first_m = (index // band_tiles) * group_m
    rows = min(tiles_m - first_m, group_m)
    inside = index % band_tiles
    return first_m + inside % rows, inside // rows


@triton.jit
def _load(descriptor, row, k, K_MAJOR: tl.constexpr):
    """The [rows, BK] tile of a matrix stored [rows, K] (K_MAJOR) or [K, rows]."""
    return descriptor.load([row, k]) if K_MAJOR else descriptor.load([k, row]).T


@triton.jit
def halves(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
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
def _store(c_desc, c, acc, m, n, M, N, BM: tl.constexpr, BN: tl.constexpr, SUBTILES: tl.constexpr):
    """Write a [BM, BN] accumulator to C at (m, n) in SUBTILES (1, 2 or 4) column parts.

    Every part passes through shared memory that is free again before the next: more parts leave
    room for another pipeline stage.
    """
    if SUBTILES == 1:
        _store_part(c_desc, c, acc.to(c.dtype.element_ty), m, n, M, N, BM, BN)
    else:
        left, right = halves(acc, BM, BN)
        _store(c_desc, c, left, m, n, M, N, BM, BN // 2, SUBTILES // 2)
        _store(c_desc, c, right, m, n + BN // 2, M, N, BM, BN // 2, SUBTILES // 2)


@triton.jit(do_not_specialize=["group_m"])
def gemm_tma(
    a, b, c_desc, c, M, N, K, group_m,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SUBTILES: tl.constexpr,
    A_K_MAJOR: tl.constexpr, B_K_MAJOR: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """One tile a program, operands by TMA descriptor: for problems of about one wave or less.

    a: [M, K] or [K, M]; b: [N, K] (B_K_MAJOR) or [K, N]; c_desc: [M, N] or None; c: the same
    matrix as a pointer. TMA fills tiles that hang over the edge with zeros and cuts the stores, so
    no size needs to be a multiple of the tile.
    """
    tile_m, tile_n = _tile(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), group_m)
    acc = tl.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        acc = tl.dot(
            _load(a, tile_m * BM, k, A_K_MAJOR),
            _load(b, tile_n * BN, k, B_K_MAJOR).T,
            acc,
            input_precision=INPUT_PRECISION,
            out_dtype=ACC,
        )
    _store(c_desc, c, acc, tile_m * BM, tile_n * BN, M, N, BM, BN, SUBTILES)


@triton.jit(do_not_specialize=["group_m"])
def gemm_tma_persistent(
    a, b, c_desc, c, M, N, K, group_m,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    SUBTILES: tl.constexpr,
    A_K_MAJOR: tl.constexpr, B_K_MAJOR: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, ACC: tl.constexpr,
    PROGRAMS: tl.constexpr,
):  # fmt: skip
    """At most PROGRAMS persistent programs; arguments as in gemm_tma.

    The loops over tiles and over K are flattened into one pipeline, so the loads of the next tile
    are under way while this one is stored. The store works out its tile from a counter of its own:
    sharing the load's would tie the two together across the pipeline. Warps are not specialized:
    on Triton 3.6 and an H200 a search that tried it came to a standstill.
    """
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    stored = tl.program_id(0) - PROGRAMS
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=True):
        tile_m, tile_n = _tile(tile, tiles_m, tiles_n, group_m)
        acc = tl.zeros((BM, BN), ACC)
        for step in range(tl.cdiv(K, BK)):
            acc = tl.dot(
                _load(a, tile_m * BM, step * BK, A_K_MAJOR),
                _load(b, tile_n * BN, step * BK, B_K_MAJOR).T,
                acc,
                input_precision=INPUT_PRECISION,
                out_dtype=ACC,
            )
        stored += PROGRAMS
        out_m, out_n = _tile(stored, tiles_m, tiles_n, group_m)
        _store(c_desc, c, acc, out_m * BM, out_n * BN, M, N, BM, BN, SUBTILES)


@triton.jit(do_not_specialize=["group_m"])
def gemm_pointer(
    a, b, c, M, N, K, group_m, stride_am, stride_ak, stride_bk, stride_bn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    EVEN_K: tl.constexpr, UNITS: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Any strides, any size, any GPU: loads through pointers, masked at the edges.

    a: [M, K], b: [K, N] with strides in elements; c: [M, N], rows contiguous. EVEN_K (K a multiple
    of BK) drops the mask along K. The tile's corner is a 64-bit offset, what lies inside it 32-bit.
    Of a size Triton knows whether it is a multiple of 16. Sizes and strides come as multiples of
    UNITS, in the order of the arguments, so that rows of 1000 elements are loaded by 16 bytes too.
    """
    M, N, K = M * UNITS[0], N * UNITS[1], K * UNITS[2]
    stride_am, stride_ak = stride_am * UNITS[3], stride_ak * UNITS[4]
    stride_bk, stride_bn = stride_bk * UNITS[5], stride_bn * UNITS[6]
    tile_m, tile_n = _tile(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), group_m)
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
            x, y, acc, input_precision=INPUT_PRECISION, out_dtype=ACC,
        )  # fmt: skip
        a_tile += BK * stride_ak
        b_tile += BK * stride_bk
    _store(None, c, acc, tile_m * BM, tile_n * BN, M, N, BM, BN, 1)


@triton.jit(do_not_specialize=["group_m"])
def gemm_odd_width(
    x, y, y_rest, c, X, Y, K, group_m, stride_x, stride_y,
    BX: tl.constexpr, B0: tl.constexpr, B1: tl.constexpr, BK: tl.constexpr,
    X_K_MAJOR: tl.constexpr, Y_K_MAJOR: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Tiles B0 + B1 wide, two sums beside each other: Triton's blocks are powers of two, and a tile
    of 272 = 256 + 16 takes 257 rows at once. Arguments as in gemm_sliced; y and y_rest are
    descriptors of one matrix, with blocks of B0 and B1.
    """
    WIDTH: tl.constexpr = B0 + B1
    tile_x, tile_y = _tile(tl.program_id(0), tl.cdiv(X, BX), tl.cdiv(Y, WIDTH), group_m)
    acc = tl.zeros((BX, B0), ACC)
    rest = tl.zeros((BX, B1), ACC)
    for k in range(0, K, BK):
        left = _load(x, tile_x * BX, k, X_K_MAJOR)
        right = _load(y, tile_y * WIDTH, k, Y_K_MAJOR).T
        right_rest = _load(y_rest, tile_y * WIDTH + B0, k, Y_K_MAJOR).T
        acc = tl.dot(left, right, acc, input_precision=INPUT_PRECISION, out_dtype=ACC)
        rest = tl.dot(left, right_rest, rest, input_precision=INPUT_PRECISION, out_dtype=ACC)
    rows = tile_x * BX + tl.arange(0, BX)
    first = tile_y * WIDTH
    _store_in(c, acc, rows, first + tl.arange(0, B0), X, Y, stride_x, stride_y)
    _store_in(c, rest, rows, first + B0 + tl.arange(0, B1), X, Y, stride_x, stride_y)


# ---------------------------------------------------------------- copies that TMA needs

# Of matrices whose rows do not start on 16 bytes, or lie the wrong way round. They are part of the
# time of a GEMM. Reading each operand once here costs far less than misaligned loads in every tile
# that uses it.
ALIGNMENT = tl.constexpr(16)  # bytes, of TMA's rows


@triton.jit
def _copy(source, packed, rows, words, sixteens, block, WORD, TYPE, BR, BYTES):
    """Copy block number `block` of a matrix; arguments as in `pack_rows`."""
    BW: tl.constexpr = BYTES // WORD
    source = source.to(tl.pointer_type(TYPE))
    packed = packed.to(tl.pointer_type(TYPE))
    across = tl.cdiv(words, BW)
    first_row = (block // across).to(tl.int64) * BR
    first = block % across * BW
    row = first_row + tl.arange(0, BR)
    word = first + tl.arange(0, BW)
    mask = (row < rows)[:, None] & (word < words)[None, :]
    x = tl.load(source + row[:, None] * words + word[None, :], mask, other=0)
    # Flat, the block gets another layout: neighbours load a word each, and store 16 bytes each.
    flat = tl.arange(0, BR * BW)
    ld = sixteens * (ALIGNMENT // WORD)
    row = first_row + flat // BW
    word = first + flat % BW
    where = packed + row * ld + word
    tl.store(where, tl.reshape(x, (BR * BW,)), (row < rows) & (word < ld))


@triton.jit
def pack_rows(
    a, a_packed, a_rows, a_words, a_sixteens, a_blocks,
    b, b_packed, b_rows, b_words, b_sixteens,
    A_WORD: tl.constexpr, A_TYPE: tl.constexpr, B_WORD: tl.constexpr, B_TYPE: tl.constexpr,
    BR: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    """Copy two matrices to rows of whole 16 bytes, in one launch; the first `a_blocks` programs
    copy a. A program copies BR rows x BYTES bytes.

    A_WORD and B_WORD are bytes, the widest of 1, 2, 4 and 8 that divide a row; A_TYPE and B_TYPE
    integers so wide. A row is `words` such words long, its copy `sixteens` times 16 bytes. What
    lies between is set to zero.
    """
    block = tl.program_id(0)
    if block < a_blocks:
        _copy(a, a_packed, a_rows, a_words, a_sixteens, block, A_WORD, A_TYPE, BR, BYTES)
    else:
        block -= a_blocks
        _copy(b, b_packed, b_rows, b_words, b_sixteens, block, B_WORD, B_TYPE, BR, BYTES)


@triton.jit
def pack_k_major(
    source, packed, ROWS, K, stride_row, stride_k, ld_packed,
    BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Copy a [ROWS, K] matrix of any strides to one stored [ROWS, ld_packed], rows aligned for TMA.

    What lies between K and ld_packed is left as it is: the descriptor ends at K.
    """
    rows = tl.program_id(1).to(tl.int64) * BR + tl.arange(0, BR)
    inner = tl.program_id(0) * BK + tl.arange(0, BK)
    mask = (rows < ROWS)[:, None] & (inner < K)[None, :]
    x = tl.load(source + rows[:, None] * stride_row + inner.to(tl.int64)[None, :] * stride_k, mask)
    tl.store(packed + rows[:, None] * ld_packed + inner[None, :], x, mask=mask)


# ---------------------------------------------------------------- few tiles

# A narrow side, or a small C under a long K. Such a product moves more than it multiplies, so what
# counts is how many programs load at once.
# - With M narrow the operands are swapped: the long matrix is wgmma's first operand, whose rows
#   come in 64s, and the narrow one its second, whose columns come in 8s: M = 17 costs 32 columns
#   instead of 64 rows.
# - SPLIT_K programs share the K of a tile. Each writes its sum to scratch and counts up; the last
#   one adds the sums in their order, so that the result is bitwise the same every time, and sets
#   the count back to 0. No second launch, no atomic additions of values.


@triton.jit(do_not_specialize=["group_m"])
def gemm_sliced(
    x, y, c, sums, counts, X, Y, K, group_m, stride_x, stride_y,
    BX: tl.constexpr, BY: tl.constexpr, BK: tl.constexpr,
    SPLIT_K: tl.constexpr,
    X_K_MAJOR: tl.constexpr, Y_K_MAJOR: tl.constexpr,
    INPUT_PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """x @ y of [X, K] and [K, Y] to c[i * stride_x + j * stride_y]; x and y are TMA descriptors.

    x: [X, K] or [K, X]; y: [Y, K] (Y_K_MAJOR) or [K, Y]. `sums`: BX * BY * SPLIT_K values a tile;
    `counts`: one a tile, 0 before and after. C is stored by masked pointers: its rows need no
    alignment.
    """
    tile = tl.program_id(0) // SPLIT_K
    part = tl.program_id(0) % SPLIT_K
    tile_x, tile_y = _tile(tile, tl.cdiv(X, BX), tl.cdiv(Y, BY), group_m)
    steps = tl.cdiv(K, BK)
    acc = tl.zeros((BX, BY), ACC)
    first = part * steps // SPLIT_K
    last = (part + 1) * steps // SPLIT_K
    tl.assume(last > first)  # the launcher has no more programs than steps
    for step in range(first, last):
        left = _load(x, tile_x * BX, step * BK, X_K_MAJOR)
        right = _load(y, tile_y * BY, step * BK, Y_K_MAJOR).T
        if left.dtype.primitive_bitwidth < right.dtype.primitive_bitwidth:
            left = left.to(right.dtype)  # FP8 weights
        acc = tl.dot(left, right, acc, input_precision=INPUT_PRECISION, out_dtype=ACC)
    rows = tl.arange(0, BX)
    columns = tl.arange(0, BY)
    if SPLIT_K == 1:
        _store_in(c, acc, tile_x * BX + rows, tile_y * BY + columns, X, Y, stride_x, stride_y)
    else:
        # Loads under way together: more than 4 do not fit the registers.
        EVEN: tl.constexpr = 4 if SPLIT_K % 4 == 0 else 2 if SPLIT_K % 2 == 0 else 1
        AT_ONCE: tl.constexpr = 3 if SPLIT_K % 3 == 0 and SPLIT_K % 4 else EVEN
        inside = rows[:, None] * BY + columns[None, :]
        mine = sums + tile.to(tl.int64) * (SPLIT_K * BX * BY)
        tl.store(mine + part * (BX * BY) + inside, acc, cache_modifier=".cg")
        tl.debug_barrier()  # all of this program's values are written before it counts
        if tl.atomic_add(counts + tile, 1, sem="acq_rel", scope="gpu") == SPLIT_K - 1:
            total = tl.zeros((BX, BY), ACC)
            for base in range(0, SPLIT_K, AT_ONCE):
                for i in tl.static_range(AT_ONCE):
                    other = mine + (base + i) * (BX * BY) + inside
                    total += tl.load(other, cache_modifier=".cg")
            _store_in(c, total, tile_x * BX + rows, tile_y * BY + columns, X, Y, stride_x, stride_y)
            tl.store(counts + tile, 0)


@triton.jit
def _store_in(c, value, rows, columns, X, Y, stride_x, stride_y):
    """Write a block to c at [rows, columns], as far as it lies inside [X, Y]."""
    where = c + rows.to(tl.int64)[:, None] * stride_x + columns.to(tl.int64)[None, :] * stride_y
    tl.store(where, value.to(c.dtype.element_ty), (rows < X)[:, None] & (columns < Y)[None, :])
