"""Kernels of your own beside the library: a GEMM and a forward convolution in Triton.

    cd examples/kernels
    halfway gemm --dtype fp16 --sizes 512..4096 --backend my_kernels:gemm
    halfway conv --dtype fp16 --channels 64..512 --layout nhwc --backend my_kernels:conv

halfway checks each product against float64, then times it interleaved with cuBLAS or cuDNN. Both
kernels are short rather than fast: what a first version reaches.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def gemm_kernel(
    a, b, c, M, N, K,
    a_row, a_column, b_row, b_column,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A [BM, BN] tile of C[M, N] = A[M, K] @ B[K, N]; operands with any strides."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = a + rows[:, None] * a_row + (k + inner)[None, :] * a_column
        right = b + (k + inner)[:, None] * b_row + columns[None, :] * b_column
        inside = k + inner < K
        tile_a = tl.load(left, (rows < M)[:, None] & inside[None, :], 0.0)
        tile_b = tl.load(right, inside[:, None] & (columns < N)[None, :], 0.0)
        acc = tl.dot(tile_a, tile_b, acc)
    corner = c + rows[:, None] * N + columns[None, :]
    tl.store(corner, acc.to(c.dtype.element_ty), (rows < M)[:, None] & (columns < N)[None, :])


def gemm(a, b):
    """C[M, N] of A[M, K] and B[K, N]: tensors on the GPU, strided as --layout says."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    tiles = (triton.cdiv(m, 128), triton.cdiv(n, 128))
    gemm_kernel[tiles](
        a, b, c, m, n, k, *a.stride(), *b.stride(), BM=128, BN=128, BK=64, num_warps=8, num_stages=3
    )
    return c


@triton.jit
def conv_kernel(
    x, w, y, H, W, C, K, P, Q, S, taps, pixels, stride, padding, dilation,
    BM: tl.constexpr, BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """BM output pixels by BN filters. x [N][H][W][C], w [K][R][S][C], y [N][P][Q][K]."""
    pixel = tl.program_id(0) * BM + tl.arange(0, BM)
    filters = tl.program_id(1) * BN + tl.arange(0, BN)
    image, place = pixel // (P * Q), pixel % (P * Q)
    top = place // Q * stride - padding
    left = place % Q * stride - padding
    acc = tl.zeros((BM, BN), tl.float32)
    for tap in range(taps):
        row, column = top + tap // S * dilation, left + tap % S * dilation
        there = (pixel < pixels) & (row >= 0) & (row < H) & (column >= 0) & (column < W)
        for first in range(0, C, BC):
            channel = first + tl.arange(0, BC)
            source = x + ((image * H + row) * W + column)[:, None] * C + channel[None, :]
            weight = w + (filters[None, :] * taps + tap) * C + channel[:, None]
            tile_x = tl.load(source, there[:, None] & (channel < C)[None, :], 0.0)
            tile_w = tl.load(weight, (channel < C)[:, None] & (filters < K)[None, :], 0.0)
            acc = tl.dot(tile_x, tile_w, acc)
    corner = y + pixel[:, None] * K + filters[None, :]
    tl.store(corner, acc.to(y.dtype.element_ty), (pixel < pixels)[:, None] & (filters < K)[None, :])


def conv(x, w, out, stride, padding, dilation, groups):
    """y[N, K, P, Q] of x[N, C, H, W] and w[K, C, R, S], all channels_last; written into `out`.

    A function that names `out` gets the output's memory; `stride`, `padding`, `dilation`, `groups`,
    `which` (the pass) and `shape` are there for those that ask. What it raises is the reason that
    the table shows.
    """
    if groups != 1 or not x.is_contiguous(memory_format=torch.channels_last):
        raise NotImplementedError("this kernel takes channels_last and one group")
    n, c, height, width = x.shape
    k, _, r, s = w.shape
    _, _, p, q = out.shape
    tiles = (triton.cdiv(n * p * q, 128), triton.cdiv(k, 128))
    conv_kernel[tiles](
        x, w, out, height, width, c, k, p, q, s, r * s, n * p * q, stride, padding, dilation,
        BM=128, BN=128, BC=32, num_warps=8, num_stages=3,
    )  # fmt: skip
    return out
