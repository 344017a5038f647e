"""Copies that TMA needs: matrices whose rows do not start on 16 bytes, or lie the wrong way round.

They are part of the time of a GEMM. Reading each operand once here costs far less than misaligned
loads in every tile that uses it.
"""

# Typed by Triton's compiler: to pyright tl.range has no iterator and 128 is no constexpr.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

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
