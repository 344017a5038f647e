"""A warp-specialised persistent GEMM in Gluon for Hopper, with tiles between powers of two.

One warp of a program does nothing but issue TMA loads: it runs ahead over all tiles of the program,
so the loads of a tile begin while the one before is still multiplied or stored. One or two
warpgroups (GROUPS) multiply by wgmma, each its own rows of the tile: they share B, meet at no
barrier but the buffers', and store by TMA while the next tile is loaded.

Gluon's blocks are powers of two wide, wgmma is not: a tile has HEAD + TAIL columns, as two
accumulators that read the same A, so that 144 = 128 + 16 and 192 = 128 + 64. Where such a width
fills the last wave of SMs, it wins over 128 and 256 columns.

Needs kernels.gluon.missing() to be None.
"""

# Typed by Gluon's compiler: to pyright a block has no methods and 128 is no constexpr.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportAssignmentType=false

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Triton 3.6 calls them otherwise.
sync = getattr(gl, "barrier", None) or gl.thread_barrier
tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def _tile(index, tiles_m, tiles_n, group):
    """Tile number -> (row, column), in bands of `group` rows walked down, then across."""
    band_tiles = group * tiles_n
    first_m = (index // band_tiles) * group
    rows = gl.minimum(tiles_m - first_m, group)
    inside = index % band_tiles
    return first_m + inside % rows, inside // rows


@gluon.jit
def _load(desc, row, k, ready, place, K_MAJOR: gl.constexpr):
    """Start a load of rows x BK values of a matrix stored [rows, K] (K_MAJOR) or [K, rows]."""
    if K_MAJOR:
        tma_load(desc, [row, k], ready, place)
    else:
        tma_load(desc, [k, row], ready, place)


@gluon.jit
def _loader(
    a, b, b_tail, buffers, barriers, M, N, K, group,
    BM: gl.constexpr, HEAD: gl.constexpr, TAIL: gl.constexpr, BK: gl.constexpr,
    STAGES: gl.constexpr, GROUPS: gl.constexpr,
    A_K_MAJOR: gl.constexpr, B_K_MAJOR: gl.constexpr,
):  # fmt: skip
    """The warp that loads: waits until a stage is empty, fills it, goes on to the next."""
    a_stages, b_stages, tail_stages = buffers
    ready, empty = barriers
    ROWS: gl.constexpr = BM // GROUPS
    tiles_m = gl.cdiv(M, BM)
    tiles_n = gl.cdiv(N, HEAD + TAIL)
    step = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        tile_m, tile_n = _tile(tile, tiles_m, tiles_n, group)
        m = tile_m * BM
        n = tile_n * (HEAD + TAIL)
        for k in range(0, K, BK):
            stage = step % STAGES
            mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
            full = ready.index(stage)
            if TAIL > 0:
                mbarrier.expect(
                    full,
                    GROUPS * a.block_type.nbytes + b.block_type.nbytes + b_tail.block_type.nbytes,
                )
                _load(b_tail, n + HEAD, k, full, tail_stages.index(stage), B_K_MAJOR)
            else:
                mbarrier.expect(full, GROUPS * a.block_type.nbytes + b.block_type.nbytes)
            _load(b, n, k, full, b_stages.index(stage), B_K_MAJOR)
            for g in gl.static_range(GROUPS):
                place = a_stages.index(stage * GROUPS + g)
                _load(a, m + g * ROWS, k, full, place, A_K_MAJOR)
            step += 1


@gluon.jit
def _multiply(a, b, acc, B_K_MAJOR: gl.constexpr):
    """Start acc += a @ b of one stage; b lies [columns, BK] (B_K_MAJOR) or [BK, columns]."""
    if B_K_MAJOR:
        b = b.permute((1, 0))
    return warpgroup_mma(a, b, acc, is_async=True)


@gluon.jit
def _store(
    c_desc, c, place, acc, m, n, M, words,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, PART: gl.constexpr, WORD: gl.constexpr,
):  # fmt: skip
    """Write a [ROWS, COLUMNS] accumulator to C at (m, n), PART columns at a time.

    By TMA, or (no descriptor: the rows of C, WORD * words elements long, do not start on 16 bytes)
    by coalesced masked stores.
    """
    if COLUMNS > PART:
        halves = acc.reshape([ROWS, 2, COLUMNS // 2]).permute((0, 2, 1))
        left, right = halves.split()
        _store(c_desc, c, place, left, m, n, M, words, ROWS, COLUMNS // 2, PART, WORD)
        right_n = n + COLUMNS // 2
        _store(c_desc, c, place, right, m, right_n, M, words, ROWS, COLUMNS // 2, PART, WORD)
    else:
        value = acc.to(c.dtype.element_ty)
        if c_desc is None:
            sync()
            place.store(value)
            sync()
            lanes: gl.constexpr = 32 if COLUMNS >= 32 * WORD else COLUMNS // WORD
            LAYOUT: gl.constexpr = gl.BlockedLayout(
                [1, WORD], [32 // lanes, lanes], [gl.num_warps(), 1], [1, 0]
            )
            rows = m + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
            columns = n + gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
            N = words * WORD
            where = c + rows.to(gl.int64)[:, None] * N + columns[None, :]
            gl.store(where, place.load(LAYOUT), (rows < M)[:, None] & (columns < N)[None, :])
        else:
            tma.store_wait(0)
            sync()
            place.store(value)
            fence_async_shared()
            sync()
            tma_store(c_desc, [m, n], place)


@gluon.jit
def _multiplier(
    c_desc, c_tail, c, buffers, places, barriers, M, N, K, group, words,
    BM: gl.constexpr, HEAD: gl.constexpr, TAIL: gl.constexpr, BK: gl.constexpr,
    STAGES: gl.constexpr, GROUPS: gl.constexpr, PART: gl.constexpr, WORD: gl.constexpr,
    A_K_MAJOR: gl.constexpr, B_K_MAJOR: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """A warpgroup: multiplies what is loaded, and stores its rows of the tile."""
    a_stages, b_stages, tail_stages = buffers
    head_place, tail_place = places
    ready, empty = barriers
    ROWS: gl.constexpr = BM // GROUPS
    SUM: gl.constexpr = gl.int32 if a_stages.dtype.is_int() else gl.float32
    DEPTH: gl.constexpr = 256 // a_stages.dtype.primitive_bitwidth  # of K, of one wgmma
    THIN: gl.constexpr = TAIL if TAIL > 0 else 16
    HEAD_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, HEAD, DEPTH]
    )
    TAIL_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, THIN, DEPTH]
    )
    tiles_m = gl.cdiv(M, BM)
    tiles_n = gl.cdiv(N, HEAD + TAIL)
    step = 0
    for tile in range(gl.program_id(0), tiles_m * tiles_n, gl.num_programs(0)):
        tile_m, tile_n = _tile(tile, tiles_m, tiles_n, group)
        acc = gl.zeros([ROWS, HEAD], SUM, HEAD_LAYOUT)
        tail = gl.zeros([ROWS, THIN], SUM, TAIL_LAYOUT)
        for k in range(0, K, BK):
            stage = step % STAGES
            mbarrier.wait(ready.index(stage), (step // STAGES) & 1)
            a = a_stages.index(stage * GROUPS + GROUP)
            if not A_K_MAJOR:
                a = a.permute((1, 0))
            acc = _multiply(a, b_stages.index(stage), acc, B_K_MAJOR)
            if TAIL > 0:
                tail = _multiply(a, tail_stages.index(stage), tail, B_K_MAJOR)
                acc, tail = warpgroup_mma_wait(2, deps=(acc, tail))
            else:
                acc = warpgroup_mma_wait(1, deps=(acc,))
            # The step before is done: its stage is empty.
            mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=k > 0)
            step += 1
        if TAIL > 0:
            acc, tail = warpgroup_mma_wait(0, deps=(acc, tail))
        else:
            acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1)
        m = tile_m * BM + GROUP * ROWS
        n = tile_n * (HEAD + TAIL)
        _store(c_desc, c, head_place.index(GROUP), acc, m, n, M, words, ROWS, HEAD, PART, WORD)
        if TAIL > 0:
            _store(
                c_tail, c, tail_place.index(GROUP), tail, m, n + HEAD, M, words,
                ROWS, TAIL, TAIL, WORD,
            )  # fmt: skip
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["group"])
def gemm_gluon(
    a, b, b_tail, c_desc, c_tail, c, M, N, K, group, words,
    BM: gl.constexpr, HEAD: gl.constexpr, TAIL: gl.constexpr, BK: gl.constexpr,
    STAGES: gl.constexpr, GROUPS: gl.constexpr, PART: gl.constexpr, WORD: gl.constexpr,
    A_K_MAJOR: gl.constexpr, B_K_MAJOR: gl.constexpr,
    PLACE: gl.constexpr, TAIL_PLACE: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """C[M, N] = A[M, K] @ B[K, N], GROUPS warpgroups of 4 warps and a loader; launch 4 warps."""
    ROWS: gl.constexpr = BM // GROUPS
    THIN: gl.constexpr = TAIL if TAIL > 0 else 16
    DTYPE: gl.constexpr = c.dtype.element_ty
    a_shape: gl.constexpr = a.block_shape
    b_shape: gl.constexpr = b.block_shape
    tail_shape: gl.constexpr = b_tail.block_shape
    tails: gl.constexpr = STAGES if TAIL > 0 else 1
    a_stages = gl.allocate_shared_memory(
        a.dtype, [STAGES * GROUPS, a_shape[0], a_shape[1]], a.layout
    )
    b_stages = gl.allocate_shared_memory(b.dtype, [STAGES, b_shape[0], b_shape[1]], b.layout)
    tail_stages = gl.allocate_shared_memory(
        b.dtype, [tails, tail_shape[0], tail_shape[1]], b_tail.layout
    )
    head_place = gl.allocate_shared_memory(DTYPE, [GROUPS, ROWS, PART], PLACE)
    tail_place = gl.allocate_shared_memory(DTYPE, [GROUPS, ROWS, THIN], TAIL_PLACE)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(empty.index(i), count=GROUPS)
    fence_async_shared()
    sync()
    buffers = (a_stages, b_stages, tail_stages)
    places = (head_place, tail_place)
    barriers = (ready, empty)
    # The arguments stand here in full: in a named tuple constants would become values.
    if GROUPS == 1:
        gl.warp_specialize([
            (_multiplier, (
                c_desc, c_tail, c, buffers, places, barriers, M, N, K, group, words,
                BM, HEAD, TAIL, BK, STAGES, GROUPS, PART, WORD, A_K_MAJOR, B_K_MAJOR, 0,
            )),
            (_loader, (
                a, b, b_tail, buffers, barriers, M, N, K, group,
                BM, HEAD, TAIL, BK, STAGES, GROUPS, A_K_MAJOR, B_K_MAJOR,
            )),
        ], [1], [24])  # fmt: skip
    else:
        gl.warp_specialize([
            (_multiplier, (
                c_desc, c_tail, c, buffers, places, barriers, M, N, K, group, words,
                BM, HEAD, TAIL, BK, STAGES, GROUPS, PART, WORD, A_K_MAJOR, B_K_MAJOR, 0,
            )),
            (_multiplier, (
                c_desc, c_tail, c, buffers, places, barriers, M, N, K, group, words,
                BM, HEAD, TAIL, BK, STAGES, GROUPS, PART, WORD, A_K_MAJOR, B_K_MAJOR, 1,
            )),
            (_loader, (
                a, b, b_tail, buffers, barriers, M, N, K, group,
                BM, HEAD, TAIL, BK, STAGES, GROUPS, A_K_MAJOR, B_K_MAJOR,
            )),
        ], [4, 1], [240, 24])  # fmt: skip


# ------------------------------------------------------------ launching

_BY_WIDTH = {1: gl.int8, 2: gl.float16, 4: gl.float32}  # all that a layout asks of a type


def block(tensor: Any, shape: list[int]) -> gl.NVMMASharedLayout:
    """How a block of a torch tensor's elements lies in shared memory."""
    return gl.NVMMASharedLayout.get_default_for(shape, _BY_WIDTH[tensor.element_size()])


def described(tensor: Any, sizes: list[int], ld: int, shape: list[int]) -> TensorDescriptor:
    """A TMA descriptor of a matrix at the tensor's address, rows `ld` elements apart, whose blocks
    have this shape.
    """
    return TensorDescriptor(tensor, sizes, [ld, 1], shape, block(tensor, shape))
