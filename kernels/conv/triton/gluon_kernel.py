"""The Gluon kernel of fprop and dgrad on Hopper: any number of channels, odd images, stride 2.

One implicit GEMM: pixels are operand A (a box of TMA, which lies in shared memory as the matrix
that wgmma reads), output channels are N. What makes it fit any shape:

- Gluon's blocks are powers of two wide, wgmma is not: a tile has HEAD + TAIL output channels, as
  two accumulators that read the same pixels (96 = 64 + 32, 144 = 128 + 16).
- Channels are added up BC at a time and the last ones LAST at a time, by wgmma on part of a buffer:
  130 channels cost 144.
- A stride is one descriptor for each parity of rows and columns, exact for odd images, and a table
  of taps (gluon_config) says which view a tap reads and where. dgrad of stride 2 is four
  sub-convolutions in one launch.
- Where a pixel's output does not start on 16 bytes, a tile leaves by masked stores, not by TMA.

One warp of a program only loads. It runs ahead over all tiles of the program, so that a tile's
loads begin while the one before is multiplied or stored. Needs
`gluon_missing()` of kernels.triton_util to be None.
"""

# Typed by Gluon's compiler: to pyright a block has no methods and 128 is no constexpr.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportAssignmentType=false, reportPossiblyUnboundVariable=false
# ruff: noqa: RUF005 - Triton adds up tuples but knows no unpacking in a display

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# Triton 3.6 calls them otherwise.
sync = getattr(gl, "barrier", None) or gl.thread_barrier
tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def _place(
    tile, grid, BN: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr, BK: gl.constexpr
):  # fmt: skip
    """Tile number -> (parity, n, h, w, k). Parities come one after the other, the one of most taps
    first; neighbours share pixels, then rows, then images.
    """
    of_parity, tiles_k, tiles_w, tiles_h = grid
    parity = tile // of_parity
    tile = tile % of_parity
    k = tile % tiles_k * BK
    tile = tile // tiles_k
    w = tile % tiles_w * BW
    tile = tile // tiles_w
    return parity, tile // tiles_h * BN, tile % tiles_h * BH, w, k


@gluon.jit
def _load_weights(w, stage, ready, k, tap, c, group, groups, K_MAJOR: gl.constexpr):
    """k counts all output channels, c those of the group's inputs."""
    if K_MAJOR:
        tma_load(w, [k, tap, c], ready, stage)
    else:
        group_k, group_c = groups
        tma_load(w, [group * group_c + c, tap, k - group * group_k], ready, stage)


@gluon.jit
def _loader(
    xs, ws, table, starts, buffers, barriers, tiles, grid, groups,
    BN: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr, BC: gl.constexpr, STEPS: gl.constexpr,
    HEAD: gl.constexpr, TAIL: gl.constexpr, STAGES: gl.constexpr, VIEWS: gl.constexpr,
    K_MAJOR: gl.constexpr,
):  # fmt: skip
    """The warp that loads: waits until a stage is empty, fills it, goes on to the next."""
    x0, x1, x2, x3 = xs
    w_head, w_tail = ws
    group_k, group_c = groups
    x_stages, head_stages, tail_stages = buffers
    ready, empty = barriers
    STAGE_BYTES: gl.constexpr = (
        (BN * BH * BW + HEAD + TAIL) * BC * (x_stages.dtype.primitive_bitwidth // 8)
    )
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        parity, n, h, w, k = _place(tile, grid, BN, BH, BW, HEAD + TAIL)
        group = k // group_k
        for entry in range(gl.load(starts + parity), gl.load(starts + parity + 1)):
            view = gl.load(table + 4 * entry)
            row = h + gl.load(table + 4 * entry + 1)
            column = w + gl.load(table + 4 * entry + 2)
            tap = gl.load(table + 4 * entry + 3)
            for block in range(STEPS):
                stage = step % STAGES
                mbarrier.wait(empty.index(stage), ((step // STAGES) & 1) ^ 1)
                full = ready.index(stage)
                mbarrier.expect(full, STAGE_BYTES)
                c = block * BC
                at = [n, row, column, group * group_c + c]
                pixels = x_stages.index(stage)
                if VIEWS == 1:
                    tma_load(x0, at, full, pixels)
                else:
                    tma_load(x0, at, full, pixels, pred=view == 0)
                    tma_load(x1, at, full, pixels, pred=view == 1)
                if VIEWS > 2:
                    tma_load(x2, at, full, pixels, pred=view == 2)
                if VIEWS > 3:
                    tma_load(x3, at, full, pixels, pred=view == 3)
                head = head_stages.index(stage)
                _load_weights(w_head, head, full, k, tap, c, group, groups, K_MAJOR)
                if TAIL > 0:
                    thin = tail_stages.index(stage)
                    _load_weights(w_tail, thin, full, k + HEAD, tap, c, group, groups, K_MAJOR)
                step += 1


@gluon.jit
def _weights(stage, FIRST: gl.constexpr, DEPTH: gl.constexpr, WIDTH: gl.constexpr,
             BC: gl.constexpr, K_MAJOR: gl.constexpr):  # fmt: skip
    """Channels FIRST to FIRST + DEPTH of a stage's weights, as operand B [DEPTH, WIDTH]."""
    if K_MAJOR:
        LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([WIDTH, BC], stage.dtype)
        matrix = stage._reinterpret(stage.dtype, [WIDTH, BC], LAYOUT)
        if DEPTH < BC:
            matrix = matrix.slice(FIRST, DEPTH, dim=1)
        return matrix.permute((1, 0))
    else:
        FLAT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BC, WIDTH], stage.dtype)
        matrix = stage._reinterpret(stage.dtype, [BC, WIDTH], FLAT)
        if DEPTH < BC:
            matrix = matrix.slice(FIRST, DEPTH, dim=0)
        return matrix


@gluon.jit
def _multiply(
    acc, tail, stages, FIRST: gl.constexpr, DEPTH: gl.constexpr,
    BM: gl.constexpr, BC: gl.constexpr, HEAD: gl.constexpr, TAIL: gl.constexpr,
    K_MAJOR: gl.constexpr,
):  # fmt: skip
    """Start the products of channels FIRST to FIRST + DEPTH of a stage."""
    pixels, head, thin = stages
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, BC], pixels.dtype)
    a = pixels._reinterpret(pixels.dtype, [BM, BC], LAYOUT)
    if DEPTH < BC:
        a = a.slice(FIRST, DEPTH, dim=1)
    b = _weights(head, FIRST, DEPTH, HEAD, BC, K_MAJOR)
    acc = warpgroup_mma(a, b, acc, is_async=True)
    if TAIL > 0:
        b = _weights(thin, FIRST, DEPTH, TAIL, BC, K_MAJOR)
        tail = warpgroup_mma(a, b, tail, is_async=True)
    return acc, tail


@gluon.jit
def _wait(acc, tail, LEFT: gl.constexpr, TAIL: gl.constexpr):
    """Both sums, when at most LEFT products of each are still under way."""
    if TAIL > 0:
        acc, tail = warpgroup_mma_wait(2 * LEFT, deps=(acc, tail))
    else:
        acc = warpgroup_mma_wait(LEFT, deps=(acc,))
    return acc, tail


@gluon.jit
def _step(
    acc, tail, step, first, buffers, barriers, CHANNELS: gl.constexpr, BM: gl.constexpr,
    BC: gl.constexpr, HEAD: gl.constexpr, TAIL: gl.constexpr, STAGES: gl.constexpr,
    K_MAJOR: gl.constexpr,
):  # fmt: skip
    """Multiply CHANNELS of the next stage, BC or what is left of them: 48 as 32 and 16."""
    x_stages, head_stages, tail_stages = buffers
    ready, empty = barriers
    WIDE: gl.constexpr = CHANNELS if CHANNELS & (CHANNELS - 1) == 0 else BC // 2
    stage = step % STAGES
    mbarrier.wait(ready.index(stage), (step // STAGES) & 1)
    stages = (
        x_stages.index(stage), head_stages.index(stage),
        tail_stages.index(stage if TAIL > 0 else 0),
    )  # fmt: skip
    acc, tail = _multiply(
        acc, tail, stages, 0, WIDE, BM, BC, HEAD, TAIL, K_MAJOR
    )  # fmt: skip
    if WIDE < CHANNELS:
        acc, tail = _multiply(
            acc, tail, stages, WIDE, CHANNELS - WIDE, BM, BC, HEAD, TAIL, K_MAJOR
        )  # fmt: skip
        acc, tail = _wait(acc, tail, 2, TAIL)
    else:
        acc, tail = _wait(acc, tail, 1, TAIL)
    # The step before is multiplied: its stage is empty.
    mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=step > first)
    return acc, tail


@gluon.jit
def _store_rows(
    out, place, sizes, parity, n, h, w, k,
    BM: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr, WIDTH: gl.constexpr,
    STRIDE: gl.constexpr, WORD: gl.constexpr,
):  # fmt: skip
    """Write the staged [BM, WIDTH] block to out[N, H, W, K] by coalesced masked stores.

    parity: row and column of the first pixel of the sub-convolution, as 2 * row + column. K is a
    multiple of WORD, which is what makes the stores that wide.
    """
    N, H, W, words = sizes
    LANES: gl.constexpr = 32 if WIDTH >= 32 * WORD else WIDTH // WORD
    LAYOUT: gl.constexpr = gl.BlockedLayout(
        [1, WORD], [32 // LANES, LANES], [gl.num_warps(), 1], [1, 0]
    )
    pixel = gl.arange(0, BM, gl.SliceLayout(1, LAYOUT))
    image = n + pixel // (BH * BW)
    row = (h + pixel // BW % BH) * STRIDE + parity // 2
    column = (w + pixel % BW) * STRIDE + parity % 2
    channel = k + gl.arange(0, WIDTH, gl.SliceLayout(0, LAYOUT))
    K = words * WORD
    inside = (image < N) & (row < H) & (column < W)
    where = ((image.to(gl.int64) * H + row) * W + column) * K
    mask = inside[:, None] & (channel < K)[None, :]
    gl.store(out + where[:, None] + channel[None, :], place.load(LAYOUT), mask)


@gluon.jit
def _store_box(y, place, at):
    tma_store(y, at, place._reinterpret(place.dtype, y.block_type.shape, y.layout))


@gluon.jit
def _store(
    ys, out, place, value, sizes, parity, start, n, h, w, k,
    BM: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr, WIDTH: gl.constexpr,
    PARITIES: gl.constexpr, WORD: gl.constexpr, FREE: gl.constexpr,
):  # fmt: skip
    """Write a [BM, WIDTH] block of sums to the output at (n, h, w, k), through shared memory.

    `parity` counts sub-convolutions, `start` is where their pixels start (_store_rows). FREE says
    that nothing reads `place` any more.
    """
    if not FREE:
        tma.store_wait(0)
        sync()
    place.store(value.to(place.dtype))
    if WORD > 0:
        STRIDE: gl.constexpr = 2 if PARITIES > 1 else 1
        sync()
        _store_rows(out, place, sizes, start, n, h, w, k, BM, BH, BW, WIDTH, STRIDE, WORD)
    else:
        y0, y1, y2, y3 = ys
        fence_async_shared()
        sync()
        at = [n, h, w, k]
        if PARITIES == 1:
            _store_box(y0, place, at)
        else:
            if parity == 0:
                _store_box(y0, place, at)
            if parity == 1:
                _store_box(y1, place, at)
        if PARITIES > 2:
            if parity == 2:
                _store_box(y2, place, at)
            if parity == 3:
                _store_box(y3, place, at)


@gluon.jit
def _store_tile(
    ys, tails, out, places, acc, tail, sizes, parity, start, n, h, w, k,
    BM: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr, HEAD: gl.constexpr, TAIL: gl.constexpr,
    SPLIT: gl.constexpr, PARITIES: gl.constexpr, WORD: gl.constexpr,
):  # fmt: skip
    """Write both sums of a tile. In two halves (SPLIT) the first takes half the shared memory."""
    head_place, tail_place = places
    HALF: gl.constexpr = HEAD // SPLIT
    if SPLIT > 1:
        left, right = acc.reshape([BM, 2, HALF]).permute((0, 2, 1)).split()
        _store(
            ys, out, head_place, left, sizes, parity, start, n, h, w, k,
            BM, BH, BW, HALF, PARITIES, WORD, False,
        )  # fmt: skip
    else:
        _store(
            ys, out, head_place, acc, sizes, parity, start, n, h, w, k,
            BM, BH, BW, HEAD, PARITIES, WORD, False,
        )  # fmt: skip
    if TAIL > 0:
        _store(
            tails, out, tail_place, tail, sizes, parity, start, n, h, w, k + HEAD,
            BM, BH, BW, TAIL, PARITIES, WORD, True,
        )  # fmt: skip
    if SPLIT > 1:
        _store(
            ys, out, head_place, right, sizes, parity, start, n, h, w, k + HALF,
            BM, BH, BW, HALF, PARITIES, WORD, False,
        )  # fmt: skip


@gluon.jit
def _consumer(
    ys, tails, out, table, starts, sizes, buffers, places, barriers, tiles, grid,
    BN: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr, BC: gl.constexpr, STEPS: gl.constexpr,
    LAST: gl.constexpr, HEAD: gl.constexpr, TAIL: gl.constexpr, STAGES: gl.constexpr,
    SPLIT: gl.constexpr, PARITIES: gl.constexpr, WORD: gl.constexpr, K_MAJOR: gl.constexpr,
):  # fmt: skip
    """The warps that multiply what is loaded, and store."""
    empty = barriers[1]
    BM: gl.constexpr = BN * BH * BW
    THIN: gl.constexpr = TAIL if TAIL > 0 else 16
    DEPTH: gl.constexpr = 256 // buffers[0].dtype.primitive_bitwidth  # channels of one wgmma
    HEAD_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, HEAD, DEPTH]
    )
    TAIL_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, THIN, DEPTH]
    )
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        parity, n, h, w, k = _place(tile, grid, BN, BH, BW, HEAD + TAIL)
        taps = gl.load(starts + parity + 1) - gl.load(starts + parity)
        acc = gl.zeros([BM, HEAD], gl.float32, HEAD_LAYOUT)
        tail = gl.zeros([BM, THIN], gl.float32, TAIL_LAYOUT)
        first = step
        if LAST == BC or STEPS == 1:
            for _ in range(taps * STEPS):
                acc, tail = _step(
                    acc, tail, step, first, buffers, barriers, LAST, BM, BC, HEAD, TAIL, STAGES,
                    K_MAJOR,
                )  # fmt: skip
                step += 1
        else:
            for _ in range(taps):
                for _ in range(STEPS - 1):
                    acc, tail = _step(
                        acc, tail, step, first, buffers, barriers, BC, BM, BC, HEAD, TAIL, STAGES,
                        K_MAJOR,
                    )  # fmt: skip
                    step += 1
                acc, tail = _step(
                    acc, tail, step, first, buffers, barriers, LAST, BM, BC, HEAD, TAIL, STAGES,
                    K_MAJOR,
                )  # fmt: skip
                step += 1
        acc, tail = _wait(acc, tail, 0, TAIL)
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=step > first)
        _store_tile(
            ys, tails, out, places, acc, tail, sizes, parity, gl.load(starts + 5 + parity),
            n, h, w, k, BM, BH, BW, HEAD, TAIL, SPLIT, PARITIES, WORD,
        )  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def conv_gluon(
    x0, x1, x2, x3, w_head, w_tail, y0, y1, y2, y3, t0, t1, t2, t3, out, table, starts,
    N, H, W, words, tiles, of_parity, tiles_k, tiles_w, tiles_h, group_k, group_c,
    BN: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr, BC: gl.constexpr, STEPS: gl.constexpr,
    LAST: gl.constexpr, HEAD: gl.constexpr, TAIL: gl.constexpr, STAGES: gl.constexpr,
    SPLIT: gl.constexpr, VIEWS: gl.constexpr, PARITIES: gl.constexpr, WORD: gl.constexpr,
    K_MAJOR: gl.constexpr,
):  # fmt: skip
    """out[N, H, W, K] of one pass; programs walk over `tiles` tiles of BN x BH x BW pixels.

    x0 to x3: descriptors of VIEWS views of the input, [n, h, w, c] in boxes [BN, BH, BW, BC];
    w_head, w_tail: the weights [K, taps, C] (K_MAJOR) or [C, taps, K], boxes of HEAD and TAIL
    output channels by BC; y0 to y3, t0 to t3: PARITIES views of the output in boxes of HEAD/SPLIT
    and TAIL channels, or None where WORD > 0: out is then written through pointers, K being
    words * WORD.
    table: int32 (view, row, column, tap) of each tap; starts: the first entry of each parity (five
    numbers), then 2 * row + column of each parity's first pixel. STEPS blocks of BC channels cover
    C, of the last only LAST channels are multiplied. In a grouped convolution C is group_c, that of
    a block of groups with zeros between their weights; it has group_k output channels, whole tiles.
    """
    BM: gl.constexpr = BN * BH * BW
    THIN: gl.constexpr = TAIL if TAIL > 0 else 16
    DTYPE: gl.constexpr = out.dtype.element_ty
    x_stages = gl.allocate_shared_memory(x0.dtype, [STAGES] + x0.block_shape, x0.layout)
    head_stages = gl.allocate_shared_memory(
        x0.dtype, [STAGES] + w_head.block_shape, w_head.layout
    )  # fmt: skip
    tail_stages = gl.allocate_shared_memory(
        x0.dtype, [STAGES if TAIL > 0 else 1] + w_tail.block_shape, w_tail.layout
    )
    head_place = gl.allocate_shared_memory(
        DTYPE,
        [BM, HEAD // SPLIT],
        gl.NVMMASharedLayout.get_default_for([BM, HEAD // SPLIT], DTYPE),
    )
    tail_place = gl.allocate_shared_memory(
        DTYPE, [BM, THIN], gl.NVMMASharedLayout.get_default_for([BM, THIN], DTYPE)
    )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()
    sync()
    buffers = (x_stages, head_stages, tail_stages)
    places = (head_place, tail_place)
    barriers = (ready, empty)
    grid = (of_parity, tiles_k, tiles_w, tiles_h)
    gl.warp_specialize([
        (_consumer, (
            (y0, y1, y2, y3), (t0, t1, t2, t3), out, table, starts, (N, H, W, words), buffers,
            places, barriers, tiles, grid, BN, BH, BW, BC, STEPS, LAST, HEAD, TAIL, STAGES,
            SPLIT, PARITIES, WORD, K_MAJOR,
        )),
        (_loader, (
            (x0, x1, x2, x3), (w_head, w_tail), table, starts, buffers, barriers, tiles, grid,
            (group_k, group_c),
            BN, BH, BW, BC, STEPS, HEAD, TAIL, STAGES, VIEWS, K_MAJOR,
        )),
    ], [1], [24])  # fmt: skip
