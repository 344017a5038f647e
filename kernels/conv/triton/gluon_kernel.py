"""The Gluon kernel of fprop and dgrad on Hopper: any number of channels, odd images, stride 2.

One implicit GEMM: pixels are operand A (a box of TMA, which lies in shared memory as the matrix
that wgmma reads), output channels are N. What makes it fit any shape:

- Gluon's blocks are powers of two wide, wgmma is not: a tile has N0 + N1 output channels, as
  two accumulators that read the same pixels (96 = 64 + 32, 144 = 128 + 16).
- Channels are added up BC at a time and the last ones LAST at a time, by wgmma on part of a buffer:
  130 channels cost 144.
- A stride is one descriptor for each parity of rows and columns, exact for odd images, and a table
  of taps (gluon_config) says which view a tap reads and where. dgrad of stride 2 is four
  sub-convolutions in one launch.
- Where a pixel's output does not start on 16 bytes, a tile leaves by masked stores, not by TMA.

One warp of a program only loads. It runs ahead over all tiles of the program, so that a tile's
loads begin while the one before is multiplied or stored. It runs where
`kernels.triton_util.gluon_missing` has nothing to say.
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
def _corner(
    tile, grid, BN: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr, BK: gl.constexpr
):  # fmt: skip
    """Tile number -> (parity, n, h, w, k). Parities come one after the other, the one of most taps
    first. Rasterised for L2: tiles that follow one another share pixels, then rows, then images.
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
def _load_weights(w, stage, ready, k, tap, c, K_MAJOR: gl.constexpr):
    if K_MAJOR:
        tma_load(w, [k, tap, c], ready, stage)
    else:
        tma_load(w, [c, tap, k], ready, stage)


@gluon.jit
def _loader(
    xs, ws, table, starts, buffers, barriers, tiles, grid,
    BN: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr, BC: gl.constexpr, STEPS: gl.constexpr,
    N0: gl.constexpr, N1: gl.constexpr, STAGES: gl.constexpr, VIEWS: gl.constexpr,
    K_MAJOR: gl.constexpr,
):  # fmt: skip
    """The warp that loads: waits until a stage is empty, fills it, goes on to the next."""
    x0, x1, x2, x3 = xs
    w0, w1 = ws
    x_stages, w0_stages, w1_stages = buffers
    ready, empty = barriers
    STAGE_BYTES: gl.constexpr = (
        (BN * BH * BW + N0 + N1) * BC * (x_stages.dtype.primitive_bitwidth // 8)
    )
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        parity, n, h, w, k = _corner(tile, grid, BN, BH, BW, N0 + N1)
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
                at = [n, row, column, c]
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
                _load_weights(w0, w0_stages.index(stage), full, k, tap, c, K_MAJOR)
                if N1 > 0:
                    _load_weights(w1, w1_stages.index(stage), full, k + N0, tap, c, K_MAJOR)
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
    acc0, acc1, stages, FIRST: gl.constexpr, DEPTH: gl.constexpr,
    BM: gl.constexpr, BC: gl.constexpr, N0: gl.constexpr, N1: gl.constexpr,
    K_MAJOR: gl.constexpr,
):  # fmt: skip
    """Start the products of channels FIRST to FIRST + DEPTH of a stage."""
    pixels, w0, w1 = stages
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BM, BC], pixels.dtype)
    a = pixels._reinterpret(pixels.dtype, [BM, BC], LAYOUT)
    if DEPTH < BC:
        a = a.slice(FIRST, DEPTH, dim=1)
    b = _weights(w0, FIRST, DEPTH, N0, BC, K_MAJOR)
    acc0 = warpgroup_mma(a, b, acc0, is_async=True)
    if N1 > 0:
        b = _weights(w1, FIRST, DEPTH, N1, BC, K_MAJOR)
        acc1 = warpgroup_mma(a, b, acc1, is_async=True)
    return acc0, acc1


@gluon.jit
def _wait(acc0, acc1, LEFT: gl.constexpr, N1: gl.constexpr):
    """Both sums, when at most LEFT products of each are still under way."""
    if N1 > 0:
        acc0, acc1 = warpgroup_mma_wait(2 * LEFT, deps=(acc0, acc1))
    else:
        acc0 = warpgroup_mma_wait(LEFT, deps=(acc0,))
    return acc0, acc1


@gluon.jit
def _step(
    acc0, acc1, step, first, buffers, barriers, CHANNELS: gl.constexpr, BM: gl.constexpr,
    BC: gl.constexpr, N0: gl.constexpr, N1: gl.constexpr, STAGES: gl.constexpr,
    K_MAJOR: gl.constexpr,
):  # fmt: skip
    """Multiply CHANNELS of the next stage, BC or what is left of them: 48 as 32 and 16."""
    x_stages, w0_stages, w1_stages = buffers
    ready, empty = barriers
    WIDE: gl.constexpr = CHANNELS if CHANNELS & (CHANNELS - 1) == 0 else BC // 2
    stage = step % STAGES
    mbarrier.wait(ready.index(stage), (step // STAGES) & 1)
    stages = (
        x_stages.index(stage), w0_stages.index(stage),
        w1_stages.index(stage if N1 > 0 else 0),
    )  # fmt: skip
    acc0, acc1 = _multiply(acc0, acc1, stages, 0, WIDE, BM, BC, N0, N1, K_MAJOR)
    if WIDE < CHANNELS:
        acc0, acc1 = _multiply(
            acc0, acc1, stages, WIDE, CHANNELS - WIDE, BM, BC, N0, N1, K_MAJOR
        )  # fmt: skip
        acc0, acc1 = _wait(acc0, acc1, 2, N1)
    else:
        acc0, acc1 = _wait(acc0, acc1, 1, N1)
    # The step before is multiplied: its stage is empty.
    mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=step > first)
    return acc0, acc1


@gluon.jit
def _store_rows(
    out, buffer, sizes, parity, n, h, w, k,
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
    gl.store(out + where[:, None] + channel[None, :], buffer.load(LAYOUT), mask)


@gluon.jit
def _store_box(y, buffer, at):
    tma_store(y, at, buffer._reinterpret(buffer.dtype, y.block_type.shape, y.layout))


@gluon.jit
def _store(
    ys, out, buffer, value, sizes, parity, start, n, h, w, k,
    BM: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr, WIDTH: gl.constexpr,
    PARITIES: gl.constexpr, WORD: gl.constexpr, FREE: gl.constexpr,
):  # fmt: skip
    """Write a [BM, WIDTH] block of sums to the output at (n, h, w, k), through shared memory.

    `parity` counts sub-convolutions, `start` is where their pixels start (_store_rows). FREE says
    that nothing reads `buffer` any more.
    """
    if not FREE:
        tma.store_wait(0)
        sync()
    buffer.store(value.to(buffer.dtype))
    if WORD > 0:
        STRIDE: gl.constexpr = 2 if PARITIES > 1 else 1
        sync()
        _store_rows(out, buffer, sizes, start, n, h, w, k, BM, BH, BW, WIDTH, STRIDE, WORD)
    else:
        y0, y1, y2, y3 = ys
        fence_async_shared()
        sync()
        at = [n, h, w, k]
        if PARITIES == 1:
            _store_box(y0, buffer, at)
        else:
            if parity == 0:
                _store_box(y0, buffer, at)
            if parity == 1:
                _store_box(y1, buffer, at)
        if PARITIES > 2:
            if parity == 2:
                _store_box(y2, buffer, at)
            if parity == 3:
                _store_box(y3, buffer, at)


@gluon.jit
def _consumer(
    ys, ys1, out, table, starts, sizes, buffers, staging, barriers, tiles, grid,
    BN: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr, BC: gl.constexpr, STEPS: gl.constexpr,
    LAST: gl.constexpr, N0: gl.constexpr, N1: gl.constexpr, STAGES: gl.constexpr,
    PARITIES: gl.constexpr, WORD: gl.constexpr, K_MAJOR: gl.constexpr,
):  # fmt: skip
    empty = barriers[1]
    BM: gl.constexpr = BN * BH * BW
    N1_BUFFER: gl.constexpr = N1 if N1 > 0 else 16
    DEPTH: gl.constexpr = 256 // buffers[0].dtype.primitive_bitwidth  # channels of one wgmma
    LAYOUT_0: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, N0, DEPTH])
    LAYOUT_1: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, N1_BUFFER, DEPTH]
    )
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        parity, n, h, w, k = _corner(tile, grid, BN, BH, BW, N0 + N1)
        taps = gl.load(starts + parity + 1) - gl.load(starts + parity)
        acc0 = gl.zeros([BM, N0], gl.float32, LAYOUT_0)
        acc1 = gl.zeros([BM, N1_BUFFER], gl.float32, LAYOUT_1)
        first = step
        if LAST == BC or STEPS == 1:
            for _ in range(taps * STEPS):
                acc0, acc1 = _step(
                    acc0, acc1, step, first, buffers, barriers, LAST, BM, BC, N0, N1, STAGES,
                    K_MAJOR,
                )  # fmt: skip
                step += 1
        else:
            for _ in range(taps):
                for _ in range(STEPS - 1):
                    acc0, acc1 = _step(
                        acc0, acc1, step, first, buffers, barriers, BC, BM, BC, N0, N1, STAGES,
                        K_MAJOR,
                    )  # fmt: skip
                    step += 1
                acc0, acc1 = _step(
                    acc0, acc1, step, first, buffers, barriers, LAST, BM, BC, N0, N1, STAGES,
                    K_MAJOR,
                )  # fmt: skip
                step += 1
        acc0, acc1 = _wait(acc0, acc1, 0, N1)
        mbarrier.arrive(empty.index((step + STAGES - 1) % STAGES), count=1, pred=step > first)
        start = gl.load(starts + 5 + parity)
        _store(
            ys, out, staging[0], acc0, sizes, parity, start, n, h, w, k,
            BM, BH, BW, N0, PARITIES, WORD, False,
        )  # fmt: skip
        if N1 > 0:
            _store(
                ys1, out, staging[1], acc1, sizes, parity, start, n, h, w, k + N0,
                BM, BH, BW, N1, PARITIES, WORD, True,
            )  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def conv_gluon(
    x0, x1, x2, x3, w0, w1, y0, y1, y2, y3, t0, t1, t2, t3, out, table, starts,
    N, H, W, words, tiles, of_parity, tiles_k, tiles_w, tiles_h,
    BN: gl.constexpr, BH: gl.constexpr, BW: gl.constexpr, BC: gl.constexpr, STEPS: gl.constexpr,
    LAST: gl.constexpr, N0: gl.constexpr, N1: gl.constexpr, STAGES: gl.constexpr,
    VIEWS: gl.constexpr, PARITIES: gl.constexpr, WORD: gl.constexpr, K_MAJOR: gl.constexpr,
):  # fmt: skip
    """out[N, H, W, K] of one pass, in `tiles` tiles of BN x BH x BW pixels; a program has several.

    x0 to x3: descriptors of VIEWS views of the input, [n, h, w, c] in boxes [BN, BH, BW, BC];
    w0, w1: the weights [K, taps, C] (K_MAJOR) or [C, taps, K], boxes of N0 and N1
    output channels by BC; y0 to y3, t0 to t3: PARITIES views of the output in boxes of N0 and N1
    channels, or None where WORD > 0: out is then written through pointers, K being words * WORD.
    table: int32 (view, row, column, tap) of each tap; starts: the first entry of each parity (five
    numbers), then 2 * row + column of each parity's first pixel. STEPS blocks of BC channels cover
    C, of the last only LAST channels are multiplied.
    """
    BM: gl.constexpr = BN * BH * BW
    N1_BUFFER: gl.constexpr = N1 if N1 > 0 else 16
    DTYPE: gl.constexpr = out.dtype.element_ty
    x_stages = gl.allocate_shared_memory(x0.dtype, [STAGES] + x0.block_shape, x0.layout)
    w0_stages = gl.allocate_shared_memory(x0.dtype, [STAGES] + w0.block_shape, w0.layout)
    w1_stages = gl.allocate_shared_memory(
        x0.dtype, [STAGES if N1 > 0 else 1] + w1.block_shape, w1.layout
    )
    staging_0 = gl.allocate_shared_memory(
        DTYPE, [BM, N0], gl.NVMMASharedLayout.get_default_for([BM, N0], DTYPE)
    )
    staging_1 = gl.allocate_shared_memory(
        DTYPE, [BM, N1_BUFFER], gl.NVMMASharedLayout.get_default_for([BM, N1_BUFFER], DTYPE)
    )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()
    sync()
    buffers = (x_stages, w0_stages, w1_stages)
    staging = (staging_0, staging_1)
    barriers = (ready, empty)
    grid = (of_parity, tiles_k, tiles_w, tiles_h)
    gl.warp_specialize([
        (_consumer, (
            (y0, y1, y2, y3), (t0, t1, t2, t3), out, table, starts, (N, H, W, words), buffers,
            staging, barriers, tiles, grid, BN, BH, BW, BC, STEPS, LAST, N0, N1, STAGES,
            PARITIES, WORD, K_MAJOR,
        )),
        (_loader, (
            (x0, x1, x2, x3), (w0, w1), table, starts, buffers, barriers, tiles, grid,
            BN, BH, BW, BC, STEPS, N0, N1, STAGES, VIEWS, K_MAJOR,
        )),
    ], [1], [24])  # fmt: skip
