"""The Triton kernels of op conv, passes fprop and dgrad, all tensors channels-last.

Launched by data_launch. Both passes are one sum over taps: out[n, h, w, k] adds up, over the taps
(r, s) and the channels c, in[n, h', w', c] * weight[tap][k, c]. "in" is x and "k" a filter in
fprop; in dgrad "in" is dY and "k" a channel of x. N, H, W, C, K below are those of this sum.

A tile is BK output channels by BN x BH x BW pixels. The weights are operand A and are not
reshaped, or the compiler takes them through registers; windows of pixels are operand B. TMA reads
zeros outside the tensor, at negative coordinates too, so no tap needs a mask. conv_gather and the
1x1 kernels differ: pixels are their operand A, and conv_gather masks each tap.

A stride is a view of rank five, [N, H/STRIDE, STRIDE, W/STRIDE, STRIDE*C]: of the input in fprop,
of the output in dgrad. Names in capitals are compile-time constants.
"""

# Typed by Triton's compiler: to pyright tl.range has no iterator and 128 is no constexpr.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _halves(x, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Left and right half of a [ROWS, COLUMNS] block."""
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))


@triton.jit
def _store(
    y, acc, n, h, w, k, row_parity, column_parity, K,
    BN: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr,
    SPLIT: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """Write a [BK, BN*BH*BW] accumulator to the box at (n, h, w, k), in SPLIT parts of pixels.

    Every part passes through shared memory that is free again before the next.
    """
    if SPLIT > 1:
        near, far = _halves(acc, BK, BN * BH * BW)
        if BN > 1:
            _store(y, near, n, h, w, k, row_parity, column_parity, K,
                   BN // 2, BH, BW, BK, SPLIT // 2, STRIDE)  # fmt: skip
            _store(y, far, n + BN // 2, h, w, k, row_parity, column_parity, K,
                   BN // 2, BH, BW, BK, SPLIT // 2, STRIDE)  # fmt: skip
        elif BH > 1:
            _store(y, near, n, h, w, k, row_parity, column_parity, K,
                   BN, BH // 2, BW, BK, SPLIT // 2, STRIDE)  # fmt: skip
            _store(y, far, n, h + BH // 2, w, k, row_parity, column_parity, K,
                   BN, BH // 2, BW, BK, SPLIT // 2, STRIDE)  # fmt: skip
        else:
            _store(y, near, n, h, w, k, row_parity, column_parity, K,
                   BN, BH, BW // 2, BK, SPLIT // 2, STRIDE)  # fmt: skip
            _store(y, far, n, h, w + BW // 2, k, row_parity, column_parity, K,
                   BN, BH, BW // 2, BK, SPLIT // 2, STRIDE)  # fmt: skip
    elif STRIDE == 1:
        y.store([n, h, w, k], tl.reshape(acc.to(y.dtype).T, (BN, BH, BW, BK)))
    else:
        box = tl.reshape(acc.to(y.dtype).T, (BN, BH, 1, BW, BK))
        y.store([n, h, row_parity, w, column_parity * K + k], box)


@triton.jit
def _place(
    tile, tiles_k, tiles_w, tiles_h,
    BN: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Tile number -> its corner (n, h, w, k). Neighbours share pixels, then rows, then images."""
    pixels = tile // tiles_k
    rows = pixels // tiles_w
    k = tile % tiles_k * BK
    return rows // tiles_h * BN, rows % tiles_h * BH, pixels % tiles_w * BW, k


@triton.jit
def _weights(w, tap, k, c, C, K, K_MAJOR: tl.constexpr):
    """The [BK, BC] weights of a tap: stored [K, taps*C] (K_MAJOR) or [C, taps*K]."""
    return w.load([k, tap * C + c]) if K_MAJOR else w.load([c, tap * K + k]).T


@triton.jit
def _window(
    x, n, h, w, c, r, s, C,
    PIXELS: tl.constexpr, BC: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr,
):  # fmt: skip
    """The [PIXELS, BC] inputs that tap (r, s) brings to the box of outputs at (n, h, w)."""
    if STRIDE == 1:
        tile = x.load([n, h + r * DILATION - PAD_H, w + s * DILATION - PAD_W, c])
    else:
        # Whole strides that make the dividend positive: division rounds towards zero here.
        UP: tl.constexpr = (PAD_H + STRIDE - 1) // STRIDE
        LEFT: tl.constexpr = (PAD_W + STRIDE - 1) // STRIDE
        row = r * DILATION + (UP * STRIDE - PAD_H)
        column = s * DILATION + (LEFT * STRIDE - PAD_W)
        tile = x.load([
            n, h + row // STRIDE - UP, row % STRIDE,
            w + column // STRIDE - LEFT, column % STRIDE * C + c,
        ])  # fmt: skip
    return tl.reshape(tile, (PIXELS, BC))


@triton.jit
def _inside(
    start, image, TAPS: tl.constexpr, BOX: tl.constexpr,
    STRIDE: tl.constexpr, DILATION: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """(first, count) of the taps along one axis that meet the image from a box of outputs.

    At least one, which brings zeros if none meets it: ptxas serializes the products of a loop that
    may be empty.
    """
    near = start * STRIDE - PAD
    first = tl.maximum(0, tl.cdiv(-near - (BOX - 1) * STRIDE, DILATION))
    first = tl.minimum(TAPS - 1, first)
    last = tl.minimum(TAPS - 1, (image - 1 - near) // DILATION)
    return first, tl.maximum(1, last - first + 1)


@triton.jit
def _sum_over_taps(
    x, weights, n, h, w, k, H, W, C, K,
    R: tl.constexpr, S: tl.constexpr, STEPS: tl.constexpr,
    STRIDE: tl.constexpr, DILATION: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    BN: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    K_MAJOR: tl.constexpr, FLIP: tl.constexpr, SKIP: tl.constexpr, INPUT_PRECISION: tl.constexpr,
    ASSUME: tl.constexpr,
):  # fmt: skip
    """The [BK, BN*BH*BW] sum at (n, h, w, k), in one loop over taps and channels.

    ASSUME tells the compiler that the loop is not empty; Triton 3.6 fails on that in a flattened
    loop, which does not need it.
    """
    if SKIP:
        first_r, rows = _inside(h, H, R, BH, STRIDE, DILATION, PAD_H)
        first_s, columns = _inside(w, W, S, BW, STRIDE, DILATION, PAD_W)
    else:
        first_r, rows, first_s, columns = 0, R, 0, S
    steps = rows * columns * STEPS
    if ASSUME:
        tl.assume(steps > 0)
    acc = tl.zeros((BK, BN * BH * BW), tl.float32)
    for step in range(steps):
        index = step // STEPS
        c = step % STEPS * BC
        r = first_r + index // columns
        s = first_s + index % columns
        tap = r * S + s
        if FLIP:
            tap = R * S - 1 - tap
        a = _weights(weights, tap, k, c, C, K, K_MAJOR)
        b = _window(x, n, h, w, c, r, s, C, BN * BH * BW, BC, STRIDE, DILATION, PAD_H, PAD_W)
        acc = tl.dot(a, b.T, acc, input_precision=INPUT_PRECISION)
    return acc


@triton.jit
def conv_tma(
    x, weights, y, tiles_k, tiles_w, tiles_h, H, W, C, K,
    R: tl.constexpr, S: tl.constexpr, STEPS: tl.constexpr,
    STRIDE: tl.constexpr, DILATION: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    BN: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    K_MAJOR: tl.constexpr, FLIP: tl.constexpr, SKIP: tl.constexpr, INPUT_PRECISION: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """One tile a program.

    x: [N, H, W, C], or its view of rank five where STRIDE > 1; weights as in _weights; y: the
    output, [N, rows, columns, K]. STEPS blocks of BC channels cover C. FLIP turns the kernel by
    180 degrees, as dgrad needs. SKIP leaves out the taps that see nothing but padding.
    """
    n, h, w, k = _place(tl.program_id(0), tiles_k, tiles_w, tiles_h, BN, BH, BW, BK)
    acc = _sum_over_taps(
        x, weights, n, h, w, k, H, W, C, K, R, S, STEPS, STRIDE, DILATION, PAD_H, PAD_W,
        BN, BH, BW, BK, BC, K_MAJOR, FLIP, SKIP, INPUT_PRECISION, SKIP,
    )  # fmt: skip
    _store(y, acc, n, h, w, k, 0, 0, K, BN, BH, BW, BK, SPLIT, 1)


@triton.jit
def conv_persistent(
    x, weights, y, tiles_k, tiles_w, tiles_h, H, W, C, K,
    R: tl.constexpr, S: tl.constexpr, STEPS: tl.constexpr,
    STRIDE: tl.constexpr, DILATION: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    BN: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    K_MAJOR: tl.constexpr, FLIP: tl.constexpr, SKIP: tl.constexpr, INPUT_PRECISION: tl.constexpr,
    SPLIT: tl.constexpr,
    tiles, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """At most PROGRAMS programs, each walking over tiles; otherwise as conv_tma.

    One flattened pipeline loads the next tile while this one is stored. The store works out its
    place from a counter of its own: sharing the load's would tie the two together.
    """
    stored = tl.program_id(0) - PROGRAMS
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        n, h, w, k = _place(tile, tiles_k, tiles_w, tiles_h, BN, BH, BW, BK)
        acc = _sum_over_taps(
            x, weights, n, h, w, k, H, W, C, K, R, S, STEPS, STRIDE, DILATION, PAD_H, PAD_W,
            BN, BH, BW, BK, BC, K_MAJOR, FLIP, SKIP, INPUT_PRECISION, False,
        )  # fmt: skip
        stored += PROGRAMS
        n, h, w, k = _place(stored, tiles_k, tiles_w, tiles_h, BN, BH, BW, BK)
        _store(y, acc, n, h, w, k, 0, 0, K, BN, BH, BW, BK, SPLIT, 1)


@triton.jit
def conv_strided_dgrad(
    dy, weights, dx, tiles_k, tiles_w, tiles_h, C, K,
    R: tl.constexpr, S: tl.constexpr, STEPS: tl.constexpr, STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    BN: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    K_MAJOR: tl.constexpr, INPUT_PRECISION: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """dgrad of a strided convolution without dilation, one tile a program.

    dy: [N, P, Q, C]; dx: the rank-five view of [N, H, W, K]. Only every STRIDE-th tap meets a pixel
    of dx: those at (r0, s0), (r0 + STRIDE, s0), ... meet the pixels of one parity. A tile has one
    parity; the STRIDE**2 tiles that read the same dy follow one another. A parity that no tap meets
    is stored as zeros.
    """
    parity = tl.program_id(0) % (STRIDE * STRIDE)
    tile = tl.program_id(0) // (STRIDE * STRIDE)
    n, h, w, k = _place(tile, tiles_k, tiles_w, tiles_h, BN, BH, BW, BK)
    r0 = parity // STRIDE
    s0 = parity % STRIDE
    SHIFT: tl.constexpr = (STRIDE - PAD % STRIDE) % STRIDE
    row_parity = (r0 + SHIFT) % STRIDE
    column_parity = (s0 + SHIFT) % STRIDE
    row = h + (row_parity + PAD - r0) // STRIDE
    column = w + (column_parity + PAD - s0) // STRIDE
    rows = (R - r0 + STRIDE - 1) // STRIDE
    columns = (S - s0 + STRIDE - 1) // STRIDE
    acc = tl.zeros((BK, BN * BH * BW), tl.float32)
    for step in range(rows * columns * STEPS):
        index = step // STEPS
        c = step % STEPS * BC
        i = index // columns
        j = index % columns
        tap = (r0 + i * STRIDE) * S + s0 + j * STRIDE
        a = _weights(weights, tap, k, c, C, K, K_MAJOR)
        b = tl.reshape(dy.load([n, row - i, column - j, c]), (BN * BH * BW, BC))
        acc = tl.dot(a, b.T, acc, input_precision=INPUT_PRECISION)
    _store(dx, acc, n, h, w, k, row_parity, column_parity, K, BN, BH, BW, BK, SPLIT, STRIDE)


@triton.jit
def _store_columns(
    y, acc, row, k, ROWS: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr
):  # fmt: skip
    """Write a [ROWS, BK] accumulator to y[rows, K] at (row, k) in SPLIT parts of columns."""
    if SPLIT == 1:
        y.store([row, k], acc.to(y.dtype))
    else:
        left, right = _halves(acc, ROWS, BK)
        _store_columns(y, left, row, k, ROWS, BK // 2, SPLIT // 2)
        _store_columns(y, right, row, k + BK // 2, ROWS, BK // 2, SPLIT // 2)


@triton.jit
def conv_resident(
    x, weights, y, tiles_k, tiles,
    PIXELS: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
    K_MAJOR: tl.constexpr, INPUT_PRECISION: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """A 1x1 convolution of few channels: the weights stay in shared memory, pixels stream by.

    x: [pixels, C] in boxes of all channels; weights: [K, C] (K_MAJOR) or [C, K], in boxes of BK by
    all channels; y: [pixels, K]. Each program keeps one of tiles_k blocks of weights and walks over
    the `tiles` blocks of PIXELS.
    """
    k = tl.program_id(0) % tiles_k * BK
    w = weights.load([k, 0]).T if K_MAJOR else weights.load([0, k])
    walkers = tl.num_programs(0) // tiles_k
    for tile in tl.range(tl.program_id(0) // tiles_k, tiles, walkers, num_stages=STAGES):
        acc = tl.dot(x.load([tile * PIXELS, 0]), w, input_precision=INPUT_PRECISION)
        _store_columns(y, acc, tile * PIXELS, k, PIXELS, BK, SPLIT)


@triton.jit
def conv_gather(
    x, weights, y, pixels, H, W, OUT_H, OUT_W,
    K: tl.constexpr, C: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STRIDE: tl.constexpr, DILATION: tl.constexpr, PAD: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
    DGRAD: tl.constexpr, INDEX: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    """Any shape on any GPU, without a copy: loads through pointers, masked.

    x: [N, H, W, C]; weights: [K, R, S, C], or [C, R, S, K] for DGRAD; y: [N, OUT_H, OUT_W, K],
    `pixels` of them in all. Taps and channels are one sum, BD of them at a time, so that few
    channels fill a step too. K and C are constants: the compiler then sees that channels are
    adjacent, and moves several at once. Except in a strided DGRAD, an element's address is that of
    a pixel's first tap, plus what depends on tap and channel alone: that has 32 bits, and INDEX is
    an integer type that holds the rest.

    Where it runs (33 of the widths 1 to 72 forward, 36 in dgrad) 3x3 is 2.1 and 2.6 times as fast
    as cuDNN's in fp16 on an H200 (results/nvidia-h200/conv-fine-*.json, geometric means).
    """
    DEPTH: tl.constexpr = R * S * C
    AWAY: tl.constexpr = -DILATION if DGRAD else DILATION
    tiles_k = tl.cdiv(K, BK)
    pixel = (tl.program_id(0) // tiles_k).to(INDEX) * BM + tl.arange(0, BM)[:, None]
    row = pixel // OUT_W
    image = row // OUT_H
    out_h, out_w = (row - image * OUT_H).to(tl.int32), (pixel - row * OUT_W).to(tl.int32)
    if DGRAD:
        first_h, first_w = out_h + PAD, out_w + PAD
    else:
        first_h, first_w = out_h * STRIDE - PAD, out_w * STRIDE - PAD
    first = ((image * H + first_h) * W + first_w) * C
    real = pixel < pixels
    k = tl.program_id(0) % tiles_k * BK + tl.arange(0, BK)[:, None]
    lanes = tl.arange(0, BD)[None, :]
    acc = tl.zeros((BM, BK), tl.float32)
    for start in range(0, DEPTH, BD):
        d = start + lanes
        summed = d < DEPTH
        tap = start // C if C % BD == 0 else d // C
        c = d - tap * C
        down, right = tap // S * AWAY, tap % S * AWAY
        h, w = first_h + down, first_w + right
        if DGRAD and STRIDE > 1:
            met = real & (h % STRIDE == 0) & (w % STRIDE == 0)
            h, w = h // STRIDE, w // STRIDE
            at = ((image * H + h) * W + w) * C + c
        else:
            met = real
            at = first + ((down * W + right) * C + c)
        inside = (h >= 0) & (h < H) & (w >= 0) & (w < W) & met
        a = tl.load(x + at, inside & summed, other=0.0)
        in_w = k + (c.to(INDEX) * (R * S) + tap) * K if DGRAD else k.to(INDEX) * DEPTH + d
        b = tl.load(weights + in_w, summed & (k < K), other=0.0)
        acc = tl.dot(a, b.T, acc, input_precision=INPUT_PRECISION)
    k_row = tl.program_id(0) % tiles_k * BK + tl.arange(0, BK)[None, :]
    tl.store(y + pixel * K + k_row, acc.to(y.dtype.element_ty), real & (k_row < K))


@triton.jit
def pack_rows(
    source, packed, rows, H, W, C, PACKED_H, packed_row, left,
    CHANNELS: tl.constexpr, BR: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """Copy x[N, H, W, C] to packed[N, PACKED_H, packed_row/CHANNELS, CHANNELS], zeros around it.

    Columns move right by `left`; rows is N*PACKED_H; packed_row is in elements. Also packs
    w[K, R, S, C] as K*R rows of one tap row each (H = PACKED_H = 1).
    """
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    element = tl.program_id(1) * BE + tl.arange(0, BE)
    column = element // CHANNELS - left
    channel = element % CHANNELS
    h = row % PACKED_H
    from_row = (row // PACKED_H * H + h) * W * C
    inside_row = (row < rows) & (h < H)
    inside = (column >= 0) & (column < W) & (channel < C)
    value = tl.load(
        source + from_row[:, None] + (column * C + channel)[None, :],
        inside_row[:, None] & inside[None, :], other=0.0,
    )  # fmt: skip
    where = packed + row[:, None] * packed_row + element[None, :]
    tl.store(where, value, (row < rows)[:, None] & (element < packed_row)[None, :])


@triton.jit
def swap_filters(w, swapped, K, TAPS, C, BK: tl.constexpr, BC: tl.constexpr):
    """w[K, TAPS, C] -> swapped[C, TAPS, K]: tf32's and fp8's wgmma want K-major operands."""
    k = tl.program_id(0).to(tl.int64) * BK + tl.arange(0, BK)
    c = tl.program_id(1).to(tl.int64) * BC + tl.arange(0, BC)
    tap = tl.program_id(2)
    mask = (k < K)[:, None] & (c < C)[None, :]
    block = tl.load(w + (k[:, None] * TAPS + tap) * C + c[None, :], mask)
    tl.store(swapped + (c[:, None] * TAPS + tap) * K + k[None, :], block.T, mask.T)


@triton.jit
def pack_groups(
    w, packed, elements, taps, rows, columns, row_apart, column_apart, group_apart, tap_apart,
    MERGED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Weights of groups -> packed[groups*rows, taps, MERGED*columns], zeros from group to group.

    rows and columns are those of a group; w has its rows, columns, taps and groups so many
    elements apart. MERGED groups that follow one another share their columns.
    """
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = element % (MERGED * columns)
    tap = element // (MERGED * columns) % taps
    row = element // (MERGED * columns) // taps
    group = row // rows
    own = column // columns == group % MERGED
    source = group * group_apart + row % rows * row_apart + tap * tap_apart
    source += column % columns * column_apart
    value = tl.load(w + source, (element < elements) & own, other=0.0)
    tl.store(packed + element, value, element < elements)
