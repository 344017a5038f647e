"""The Triton kernels of the weight gradient in NHWC. Launched by wgrad_launch.

dw[k, r, s, c] = sum over (n, p, q) of dy[n, p, q, k] * x[n, h, w, c], where
h = p*stride - pad + r*dil and w = q*stride - pad + s*dil: a product over pixels. Too few tiles of
dw fill a GPU, so the pixels are split among programs, which leave float32 partial sums to
`wgrad_reduce`. Names in capitals are compile-time constants.
"""

# Typed by Triton's compiler: to pyright tl.range has no iterator and 128 is no constexpr.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# ruff: noqa: RUF005 - Triton adds up tuples but knows no unpacking in a display

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _pixels(tensor, n, h, w, channel, BN: tl.constexpr, BW: tl.constexpr, WIDTH: tl.constexpr):
    """The [BN*BW, WIDTH] block at one row of BN images, BW columns each.

    A descriptor of single columns has the images third. Only where the first two dimensions of
    the box are 1 does the compiler drop them and let wgmma read the block transposed from shared
    memory; a reshaped one goes through registers.
    """
    if BW == 1:
        return tensor.load([h, w, n, channel]).reshape(BN, WIDTH)
    return tensor.load([n, h, w, channel]).reshape(BN * BW, WIDTH)


@triton.jit
def _store_taps(
    out, accs, k0, c0, r0, s, K, C, R, S,
    BK: tl.constexpr, BC: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """Write the sums of TAPS kernel rows from r0, at kernel column s, to out[K, R, S, C]."""
    k = k0 + tl.arange(0, BK)
    c = c0 + tl.arange(0, BC)
    mask = (k < K)[:, None] & (c < C)[None, :]
    for r in tl.static_range(TAPS):
        start = ((k.to(tl.int64) * R + r0 + r) * S + s) * C
        tl.store(out + start[:, None] + c[None, :], accs[r].to(out.dtype.element_ty), mask=mask)


@triton.jit
def wgrad_tma(
    x, x_odd, dy, out, N, P, Q, C, K, S, blocks_r, split_k, split_elements, pad_h, pad_w, apart,
    BN: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    ROWS: tl.constexpr, TAPS: tl.constexpr, STRIDE: tl.constexpr, DIL: tl.constexpr,
):  # fmt: skip
    """TAPS kernel rows r at one kernel column s, over one of `split_k` parts of the pixels.

    x: descriptor [N, H, W/STRIDE, STRIDE*apart], box [BN, 1, BW, BC], a pixel being `apart`
    elements long. For STRIDE 2 and odd W it has the even columns and x_odd the
    odd ones, else x_odd is None. dy: descriptor [N, P, Q, K], box [BN, 1, BW, BK]; out:
    [split_k][K][R][S][C] as a pointer, each part split_elements long. blocks_r is R/TAPS. A step
    takes ROWS rows of dy and every row of x that meets them, each loaded once for all the taps that
    use it. TMA fills what lies outside with zeros: the padding of x, and all of dy that is no
    pixel.
    """
    index = tl.program_id(0)
    tiles_k = tl.cdiv(K, BK)
    k0 = index % tiles_k * BK
    index = index // tiles_k
    tiles_c = tl.cdiv(C, BC)
    c0 = index % tiles_c * BC
    index = index // tiles_c
    s = index % S
    index = index // S
    r0 = index % blocks_r * TAPS
    split = (index // blocks_r).to(tl.int64)

    column = s * DIL - pad_w
    channel = c0
    if STRIDE > 1:
        phase = (column + pad_w * STRIDE) % STRIDE  # of a column that may be negative
        column = (column - phase) // STRIDE
        if x_odd is None:
            channel += phase * apart
        elif phase == 1:
            x = x_odd
    row = r0 * DIL - pad_h

    blocks_p = tl.cdiv(P, ROWS)
    blocks_q = tl.cdiv(Q, BW)
    blocks = tl.cdiv(N, BN) * blocks_p * blocks_q
    first = (split * blocks // split_k).to(tl.int32)
    last = ((split + 1) * blocks // split_k).to(tl.int32)
    accs = ()
    for _ in tl.static_range(TAPS):
        accs = accs + (tl.zeros((BK, BC), tl.float32),)
    for block in range(first, last):
        q0 = block % blocks_q * BW
        p0 = block // blocks_q % blocks_p * ROWS
        n0 = block // (blocks_q * blocks_p) * BN
        gradients = ()
        for j in tl.static_range(ROWS):
            gradients = gradients + (_pixels(dy, n0, p0 + j, q0, k0, BN, BW, BK).T,)
        images = ()
        for j in tl.static_range((ROWS - 1) * STRIDE + (TAPS - 1) * DIL + 1):
            h = p0 * STRIDE + row + j
            images = images + (_pixels(x, n0, h, q0 + column, channel, BN, BW, BC),)
        for j in tl.static_range(ROWS):
            sums = ()
            for r in tl.static_range(TAPS):
                image = images[j * STRIDE + r * DIL]
                sums = sums + (tl.dot(gradients[j], image, accs[r]),)
            accs = sums

    R = blocks_r * TAPS
    out += split * split_elements
    _store_taps(out, accs, k0, c0, r0, s, K, C, R, S, BK, BC, TAPS)


@triton.jit
def wgrad_gather(
    x, dy, out, pixels, H, W, split_k, split_elements,
    P: tl.constexpr, Q: tl.constexpr, K: tl.constexpr, C: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    DIL_H: tl.constexpr, DIL_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    BP: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    EXCHANGED: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """Any shape, any GPU, without a copy: masked loads through pointers, BP pixels a step.

    x: [N, H, W, C]; dy: [N, P, Q, K], `pixels` of them in all; out: [split_k][K][R*S*C], a tile
    of which has BC columns, so that few channels fill one too. K and C are constants: the compiler
    then sees that channels are adjacent, and moves several at once. EXCHANGED: x is the gradient
    and dy the input, so that out is [split_k][C][R*S][K], the last tap first. INDEX is an integer
    type that holds the offsets of x and dy.

    Where it runs (42 of the widths 1 to 72) 3x3 is 2.2 times as fast as cuDNN's in fp16 on an H200
    (results/nvidia-h200/conv-fine-wgrad.json, geometric mean).
    """
    COLUMNS: tl.constexpr = R * S * C
    index = tl.program_id(0)
    tiles_k = tl.cdiv(K, BK)
    tiles_c = tl.cdiv(COLUMNS, BC)
    first_k = index % tiles_k * BK
    k = first_k + tl.arange(0, BK)[None, :]
    start = index // tiles_k % tiles_c * BC
    split = (index // (tiles_k * tiles_c)).to(tl.int64)

    column = start + tl.arange(0, BC)[None, :]
    tap = start // C if C % BC == 0 else column // C
    down, right = tap // S * DIL_H - PAD_H, tap % S * DIL_W - PAD_W
    away = (down * W + right) * C + (column - tap * C)
    blocks = (pixels - 1) // BP + 1  # where tl.cdiv could overflow
    first = (split * blocks // split_k).to(INDEX)
    last = ((split + 1) * blocks // split_k).to(INDEX)
    acc = tl.zeros((BK, BC), tl.float32)
    for block in range(first, last):
        pixel = block * BP + tl.arange(0, BP)[:, None]
        real = pixel < pixels
        row = pixel // Q
        image = row // P
        top = (row - image * P).to(tl.int32) * STRIDE_H
        left = (pixel - row * Q).to(tl.int32) * STRIDE_W
        h, w = top + down, left + right
        inside = (h >= 0) & (h < H) & (w >= 0) & (w < W) & real & (column < COLUMNS)
        a = tl.load(dy + pixel * K + k, real & (k < K), other=0.0)
        b = tl.load(x + ((image * H + top) * W + left) * C + away, inside, other=0.0)
        acc = tl.dot(a.T, b, acc)
    k_row = first_k + tl.arange(0, BK)[:, None]
    if EXCHANGED:
        where = ((column - tap * C).to(tl.int64) * (R * S) + (R * S - 1 - tap)) * K + k_row
    else:
        where = k_row.to(tl.int64) * COLUMNS + column
    out += split * split_elements
    tl.store(out + where, acc.to(out.dtype.element_ty), (k_row < K) & (column < COLUMNS))


@triton.jit
def wgrad_reduce(
    parts, dw, elements, split_k, BS: tl.constexpr, BE: tl.constexpr
):  # fmt: skip
    """dw = the sum of split_k parts, in a fixed order: float32 sums, rounded once.

    parts: [split_k][elements]. A program adds up BE elements, BS parts at a time.
    """
    element = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE)
    inside = element < elements
    acc = tl.zeros((BS, BE), tl.float32)
    for first in range(0, split_k, BS):
        split = first + tl.arange(0, BS)
        mask = (split < split_k)[:, None] & inside[None, :]
        acc += tl.load(
            parts + split.to(tl.int64)[:, None] * elements + element[None, :],
            mask=mask,
            other=0.0,
        )
    tl.store(dw + element, tl.sum(acc, axis=0).to(dw.dtype.element_ty), mask=inside)
