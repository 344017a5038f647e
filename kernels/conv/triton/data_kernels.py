"""The Triton kernels of op conv, passes fprop and dgrad, all tensors channels-last.

Launched by data_launch. Both passes are one sum over taps: out[n, h, w, k] adds up, over the taps
(r, s) and the channels c, in[n, h', w', c] * weight[tap][k, c]. "in" is x and "k" a filter in
fprop; in dgrad "in" is dY and "k" a channel of x. N, H, W, C, K below are those of this sum.

A tile is BK output channels by BN x BH x BW pixels. The weights are operand A and are not
reshaped, or the compiler takes them through registers; windows of pixels are operand B. TMA reads
zeros outside the tensor, at negative coordinates too, so no tap needs a mask. conv_gather differs:
pixels are its operand A, and it masks each tap. Names in capitals are compile-time constants.
"""

# Typed by Triton's compiler: to pyright tl.range has no iterator and 128 is no constexpr.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

from kernels.gemm.triton.kernels import halves


@triton.jit
def _store(
    y, acc, n, h, w, k,
    BN: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr,
    SUBTILES: tl.constexpr,
):  # fmt: skip
    """Write a [BK, BN*BH*BW] accumulator to the box at (n, h, w, k), in SUBTILES parts of pixels.

    Every part passes through shared memory that is free again before the next.
    """
    if SUBTILES > 1:
        near, far = halves(acc, BK, BN * BH * BW)
        if BN > 1:
            _store(y, near, n, h, w, k, BN // 2, BH, BW, BK, SUBTILES // 2)
            _store(y, far, n + BN // 2, h, w, k, BN // 2, BH, BW, BK, SUBTILES // 2)
        elif BH > 1:
            _store(y, near, n, h, w, k, BN, BH // 2, BW, BK, SUBTILES // 2)
            _store(y, far, n, h + BH // 2, w, k, BN, BH // 2, BW, BK, SUBTILES // 2)
        else:
            _store(y, near, n, h, w, k, BN, BH, BW // 2, BK, SUBTILES // 2)
            _store(y, far, n, h, w + BW // 2, k, BN, BH, BW // 2, BK, SUBTILES // 2)
    else:
        y.store([n, h, w, k], tl.reshape(acc.to(y.dtype).T, (BN, BH, BW, BK)))


@triton.jit
def _corner(
    tile, tiles_k, tiles_w, tiles_h,
    BN: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Tile number -> its corner (n, h, w, k). Rasterised for L2: neighbours share
    pixels, then rows, then images.
    """
    pixels = tile // tiles_k
    rows = pixels // tiles_w
    k = tile % tiles_k * BK
    return rows // tiles_h * BN, rows % tiles_h * BH, pixels % tiles_w * BW, k


@triton.jit
def _weights(w, tap, k, c, C, K, K_MAJOR: tl.constexpr):
    """The [BK, BC] weights of a tap: stored [K, taps*C] (K_MAJOR) or [C, taps*K]."""
    return w.load([k, tap * C + c]) if K_MAJOR else w.load([c, tap * K + k]).T


@triton.jit
def _inside(
    start, image, TAPS: tl.constexpr, BOX: tl.constexpr, DILATION: tl.constexpr, PAD: tl.constexpr
):  # fmt: skip
    """(first, count) of the taps along one axis that meet the image from a box of outputs.

    At least one, which brings zeros if none meets it: ptxas serializes the products of a loop that
    may be empty.
    """
    near = start - PAD
    first = tl.maximum(0, tl.cdiv(-near - (BOX - 1), DILATION))
    first = tl.minimum(TAPS - 1, first)
    last = tl.minimum(TAPS - 1, (image - 1 - near) // DILATION)
    return first, tl.maximum(1, last - first + 1)


@triton.jit
def conv_persistent(
    x, weights, y, tiles_k, tiles_w, tiles_h, H, W, C, K,
    R: tl.constexpr, S: tl.constexpr, STEPS: tl.constexpr,
    DIL_H: tl.constexpr, DIL_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    BN: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr,
    K_MAJOR: tl.constexpr, FLIP: tl.constexpr, SKIP: tl.constexpr, SUBTILES: tl.constexpr,
    tiles, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """A convolution of stride 1, by at most PROGRAMS programs, each with several tiles.

    x: [N, H, W, C]; weights as in _weights; y: the output, [N, rows, columns, K]. STEPS blocks of
    BC channels cover C. FLIP turns the kernel by 180 degrees, as dgrad needs. SKIP leaves out the
    taps that see nothing but padding.

    One flattened pipeline loads the next tile while this one is stored. The store works out its
    corner from a counter of its own: sharing the load's would tie the two together.
    """
    stored = tl.program_id(0) - PROGRAMS
    for tile in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        n, h, w, k = _corner(tile, tiles_k, tiles_w, tiles_h, BN, BH, BW, BK)
        if SKIP:
            first_r, rows = _inside(h, H, R, BH, DIL_H, PAD_H)
            first_s, columns = _inside(w, W, S, BW, DIL_W, PAD_W)
        else:
            first_r, rows, first_s, columns = 0, R, 0, S
        acc = tl.zeros((BK, BN * BH * BW), tl.float32)
        for step in range(rows * columns * STEPS):
            index = step // STEPS
            c = step % STEPS * BC
            r = first_r + index // columns
            s = first_s + index % columns
            tap = r * S + s
            if FLIP:
                tap = R * S - 1 - tap
            a = _weights(weights, tap, k, c, C, K, K_MAJOR)
            window = x.load([n, h + r * DIL_H - PAD_H, w + s * DIL_W - PAD_W, c])
            b = tl.reshape(window, (BN * BH * BW, BC))
            acc = tl.dot(a, b.T, acc)
        stored += PROGRAMS
        n, h, w, k = _corner(stored, tiles_k, tiles_w, tiles_h, BN, BH, BW, BK)
        _store(y, acc, n, h, w, k, BN, BH, BW, BK, SUBTILES)


@triton.jit
def conv_gather(
    x, weights, y, pixels, H, W, OUT_H, OUT_W,
    K: tl.constexpr, C: tl.constexpr, R: tl.constexpr, S: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    DIL_H: tl.constexpr, DIL_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
    DGRAD: tl.constexpr, INDEX: tl.constexpr,
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
    AWAY_H: tl.constexpr = -DIL_H if DGRAD else DIL_H
    AWAY_W: tl.constexpr = -DIL_W if DGRAD else DIL_W
    tiles_k = tl.cdiv(K, BK)
    pixel = (tl.program_id(0) // tiles_k).to(INDEX) * BM + tl.arange(0, BM)[:, None]
    row = pixel // OUT_W
    image = row // OUT_H
    out_h, out_w = (row - image * OUT_H).to(tl.int32), (pixel - row * OUT_W).to(tl.int32)
    if DGRAD:
        first_h, first_w = out_h + PAD_H, out_w + PAD_W
    else:
        first_h, first_w = out_h * STRIDE_H - PAD_H, out_w * STRIDE_W - PAD_W
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
        down, right = tap // S * AWAY_H, tap % S * AWAY_W
        h, w = first_h + down, first_w + right
        if DGRAD and STRIDE_H * STRIDE_W > 1:
            met = real & (h % STRIDE_H == 0) & (w % STRIDE_W == 0)
            h, w = h // STRIDE_H, w // STRIDE_W
            at = ((image * H + h) * W + w) * C + c
        else:
            met = real
            at = first + ((down * W + right) * C + c)
        inside = (h >= 0) & (h < H) & (w >= 0) & (w < W) & met
        a = tl.load(x + at, inside & summed, other=0.0)
        in_w = k + (c.to(INDEX) * (R * S) + tap) * K if DGRAD else k.to(INDEX) * DEPTH + d
        b = tl.load(weights + in_w, summed & (k < K), other=0.0)
        acc = tl.dot(a, b.T, acc)
    k_row = tl.program_id(0) % tiles_k * BK + tl.arange(0, BK)[None, :]
    tl.store(y + pixel * K + k_row, acc.to(y.dtype.element_ty), real & (k_row < K))
