"""The Triton kernels of depthwise convolutions, all passes, all tensors channels-last.

A channel meets its own filter alone, so there is nothing for Tensor Cores: a program has a tile of
pixels x channels in registers, and multiplies and adds in float32. A row of pixels is loaded once
for each kernel column and serves every tap of that column. Launched by depthwise_launch. Names in
capitals are compile-time constants.
"""

# Typed by Triton's compiler: to pyright tl.range has no iterator and 128 is no constexpr.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportAssignmentType=false
# ruff: noqa: RUF005 - Triton adds up tuples but knows no unpacking in a display

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _row(image, h, columns, channels, H, W, C):
    """Columns x channels of row h of an image [H, W, C], as float32; zeros outside."""
    inside = (h >= 0) & (h < H) & (columns >= 0) & (columns < W)
    start = (h.to(tl.int64) * W + columns) * C
    mask = inside[:, None] & (channels < C)[None, :]
    return tl.load(image + start[:, None] + channels[None, :], mask, other=0.0).to(tl.float32)


@triton.jit
def _product(total, row, factors, REACH: tl.constexpr, STEP: tl.constexpr, FACTORS: tl.constexpr):
    """total + row * factors[REACH / STEP], where there is such a factor."""
    if (REACH >= 0) & (REACH < FACTORS * STEP) & (REACH % STEP == 0):
        total += row * factors[REACH // STEP]
    return total


@triton.jit
def _add(
    totals, row, factors, TOTALS: tl.constexpr, FIRST: tl.constexpr, APART: tl.constexpr,
    STEP: tl.constexpr, FACTORS: tl.constexpr,
):  # fmt: skip
    """totals[i] + row * factors[(FIRST + i*APART) / STEP], for each i that has such a factor."""
    added = ()
    for i in tl.static_range(TOTALS):
        added = added + (_product(totals[i], row, factors, FIRST + i * APART, STEP, FACTORS),)
    return added


@triton.jit
def _zeros(COUNT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    zeros = ()
    for _ in tl.static_range(COUNT):
        zeros = zeros + (tl.zeros((ROWS, COLUMNS), tl.float32),)
    return zeros


@triton.jit
def _tile(
    x, w, y, row, column, channels, H, W, OUT_H, OUT_W, C, first_row, first_column,
    R: tl.constexpr, S: tl.constexpr, SPAN: tl.constexpr, DILATION: tl.constexpr,
    BH: tl.constexpr, BW: tl.constexpr, STEP: tl.constexpr, APART: tl.constexpr,
    ROWS: tl.constexpr, REACH: tl.constexpr, PER_ROW: tl.constexpr, PER_OUTPUT: tl.constexpr,
    COLUMN: tl.constexpr, TAP_STEP: tl.constexpr, DIVISOR: tl.constexpr,
):  # fmt: skip
    """BH x BW outputs of one image: (row + i, column + j) of those that lie APART pixels apart.

    The input's ROWS rows follow first_row. Its row j meets the output i by the tap whose row is
    REACH + j*PER_ROW + i*PER_OUTPUT pixels below the kernel's first. Output j meets kernel column s
    in column first_column + j*STEP + (COLUMN + s*TAP_STEP) / DIVISOR, where that is whole.
    """
    totals = _zeros(BH, BW, channels.shape[0])
    outputs = tl.arange(0, BW)
    for start in range(0, S, SPAN):
        for near in tl.static_range(SPAN):
            if (COLUMN + near * TAP_STEP) % DIVISOR == 0:
                s = start + near
                if s < S:
                    columns = first_column + outputs * STEP + (COLUMN + s * TAP_STEP) // DIVISOR
                    weights = ()
                    for r in tl.static_range(R):
                        at = w + (r * S + s) * C + channels[None, :]
                        weight = tl.load(at, (channels < C)[None, :], other=0.0)
                        weights = weights + (weight.to(tl.float32),)
                    for j in tl.static_range(ROWS):
                        pixels = _row(x, first_row + j, columns, channels, H, W, C)
                        totals = _add(
                            totals, pixels, weights, BH,
                            REACH + j * PER_ROW, PER_OUTPUT, DILATION, R,
                        )  # fmt: skip
    to = column + outputs * APART
    for i in tl.static_range(BH):
        h = row + i * APART
        start = (h.to(tl.int64) * OUT_W + to) * C
        mask = ((h < OUT_H) & (to < OUT_W))[:, None] & (channels < C)[None, :]
        where = y + start[:, None] + channels[None, :]
        tl.store(where, totals[i].to(y.dtype.element_ty), mask)


@triton.jit
def conv_depthwise(
    x, w, y, H, W, OUT_H, OUT_W, C, tiles_c, tiles_w, tiles_h,
    R: tl.constexpr, S: tl.constexpr, SPAN: tl.constexpr, STRIDE: tl.constexpr,
    DILATION: tl.constexpr, PAD: tl.constexpr,
    BH: tl.constexpr, BW: tl.constexpr, BC: tl.constexpr, DGRAD: tl.constexpr,
):  # fmt: skip
    """y[N, OUT_H, OUT_W, C] of x[N, H, W, C] and w[R, S, C]: fprop, or dgrad with dY for x.

    dgrad computes the outputs of one parity (those STRIDE pixels apart) in a tile: each meets the
    same taps. SPAN kernel columns are unrolled: S of them where a parity has taps of its own.
    """
    PARITIES: tl.constexpr = STRIDE * STRIDE if DGRAD else 1
    index = tl.program_id(0)
    channels = index % tiles_c * BC + tl.arange(0, BC)
    index = index // tiles_c
    parity = index % PARITIES
    index = index // PARITIES
    column = index % tiles_w * BW
    index = index // tiles_w
    row = index % tiles_h * BH
    image = (index // tiles_h).to(tl.int64)
    x += image * H * W * C
    y += image * OUT_H * OUT_W * C
    if DGRAD:
        # Row h meets dY's row (h + PAD - r*DILATION) / STRIDE, where that is whole.
        for of_row in tl.static_range(STRIDE):
            for of_column in tl.static_range(STRIDE):
                if parity == of_row * STRIDE + of_column:
                    _tile(
                        x, w, y, row * STRIDE + of_row, column * STRIDE + of_column, channels,
                        H, W, OUT_H, OUT_W, C,
                        row + (of_row + PAD - (R - 1) * DILATION) // STRIDE, column,
                        R, S, SPAN, DILATION, BH, BW, 1, STRIDE,
                        BH + (of_row + PAD) // STRIDE
                        - (of_row + PAD - (R - 1) * DILATION) // STRIDE,
                        of_row + PAD - (of_row + PAD - (R - 1) * DILATION) // STRIDE * STRIDE,
                        -STRIDE, STRIDE, of_column + PAD, -DILATION, STRIDE,
                    )  # fmt: skip
    else:
        _tile(
            x, w, y, row, column, channels, H, W, OUT_H, OUT_W, C,
            row * STRIDE - PAD, column * STRIDE - PAD,
            R, S, SPAN, DILATION, BH, BW, STRIDE, 1, (BH - 1) * STRIDE + (R - 1) * DILATION + 1,
            0, 1, -STRIDE, 0, DILATION, 1,
        )  # fmt: skip


@triton.jit
def wgrad_depthwise(
    x, dy, out, N, H, W, C, P, Q, R, S, splits, split_elements, pad, tiles_c, parts_s, parts_r,
    STRIDE: tl.constexpr, DILATION: tl.constexpr, BW: tl.constexpr, BC: tl.constexpr,
    ROWS: tl.constexpr, TAPS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """TAPS x COLUMNS taps of BC channels, over one of `splits` parts of the pixels.

    x: [N, H, W, C]; dy: [N, P, Q, C]; out: [splits][C][R][S], each part split_elements long. A
    step takes BW pixels of ROWS rows of dy. parts_r is R/TAPS, parts_s S/COLUMNS.
    """
    index = tl.program_id(0)
    channels = index % tiles_c * BC + tl.arange(0, BC)
    index = index // tiles_c
    s0 = index % parts_s * COLUMNS
    index = index // parts_s
    r0 = index % parts_r * TAPS
    split = (index // parts_r).to(tl.int64)

    blocks_q = tl.cdiv(Q, BW)
    blocks_p = tl.cdiv(P, ROWS)
    blocks = N * blocks_p * blocks_q
    first = (split * blocks // splits).to(tl.int32)
    last = ((split + 1) * blocks // splits).to(tl.int32)
    totals = _zeros(TAPS * COLUMNS, BW, BC)
    for block in range(first, last):
        q = block % blocks_q * BW + tl.arange(0, BW)
        p = block // blocks_q % blocks_p * ROWS
        image = (block // (blocks_q * blocks_p)).to(tl.int64)
        of_x = x + image * H * W * C
        of_dy = dy + image * P * Q * C
        gradients = ()
        for i in tl.static_range(ROWS):
            gradients = gradients + (_row(of_dy, p + i, q, channels, P, Q, C),)
        added = ()
        for column in tl.static_range(COLUMNS):
            sums = ()
            for r in tl.static_range(TAPS):
                sums = sums + (totals[column * TAPS + r],)
            columns = q * STRIDE - pad + (s0 + column) * DILATION
            for j in tl.static_range((ROWS - 1) * STRIDE + (TAPS - 1) * DILATION + 1):
                h = p * STRIDE - pad + r0 * DILATION + j
                pixels = _row(of_x, h, columns, channels, H, W, C)
                sums = _add(sums, pixels, gradients, TAPS, j, -DILATION, STRIDE, ROWS)
            added = added + sums
        totals = added
    out += split * split_elements + channels.to(tl.int64) * R * S
    for column in tl.static_range(COLUMNS):
        for r in tl.static_range(TAPS):
            total = tl.sum(totals[column * TAPS + r], axis=0).to(out.dtype.element_ty)
            tl.store(out + (r0 + r) * S + s0 + column, total, channels < C)
