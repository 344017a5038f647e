"""A slow-down of known size: a Triton GEMM that multiplies 1 or 2 of its K-blocks once more.

    cd examples/kernels
    python -m microbench gemm --dtype fp16 --vs none --processes 8 \
        --backend planted:base,planted:plus5,planted:plus10 --sizes 1024x1024x1280
    python -m tests.validation.splits power.json power run.json   # in a checkout

At K = 1280 there are 20 blocks of 64, so that each more is 5 % more work. The product stays right,
since what a block adds again is multiplied by zeros. The last counts how often `compare`
calls plus5 and plus10 slower than base.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(
    a, b, c, M, N, K, blocks, total,
    a_row, a_column, b_row, b_column,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A [BM, BN] tile of C[M, N] = A[M, K] @ B[K, N], in `total` steps of which `blocks` count."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, total):
        k = (i % blocks) * BK + inner
        left = tl.load(a + rows[:, None] * a_row + k[None, :] * a_column, (rows < M)[:, None], 0.0)
        right = tl.load(
            b + k[:, None] * b_row + columns[None, :] * b_column, (columns < N)[None, :], 0.0
        )
        left = tl.where(i < blocks, left, 0.0)
        acc = tl.dot(left, right, acc)
    corner = c + rows[:, None] * N + columns[None, :]
    tl.store(corner, acc.to(c.dtype.element_ty), (rows < M)[:, None] & (columns < N)[None, :])


def product(a, b, more):
    """C[M, N] of A[M, K] and B[K, N], K a multiple of 64, with `more` blocks of K once more."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    tile, blocks = 64 if m <= 1024 else 128, k // 64
    kernel[(triton.cdiv(m, tile), triton.cdiv(n, tile))](
        a, b, c, m, n, k, blocks, blocks + more, *a.stride(), *b.stride(),
        BM=tile, BN=tile, BK=64, num_warps=4 if tile == 64 else 8, num_stages=3,
    )  # fmt: skip
    return c


def base(a, b):
    """The product, without more work."""
    return product(a, b, 0)


def plus5(a, b):
    """The product, with one block more."""
    return product(a, b, 1)


def plus10(a, b):
    """The product, with two blocks more."""
    return product(a, b, 2)
