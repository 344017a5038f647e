"""Copies of operands, whose time counts as part of the kernels'.

TMA needs pixels that start on 16 bytes, and takes up to twice as long for those that do not start
and end on sectors of 32 bytes (24 channels in fp16 beside 32, on one H100). So the channels of a
padded copy are whole sectors, zeros at the end.
"""

# Typed by Triton's compiler.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import torch
import triton
import triton.language as tl

from kernels.conv.operands import ConvOperands
from kernels.conv.triton.problem import ImplicitGemm
from kernels.triton_util import Step, row_for_tma

BLOCK = 2048  # words that a program copies
SWAP_BLOCK = 32  # filters and channels that a program exchanges
WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@triton.jit
def pad_pixels(
    source, copied, words, CHANNELS: tl.constexpr, APART: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Copy pixels of CHANNELS words to where they lie APART words from one another, zeros between.

    A word is the widest integer that a pixel is made of; `words` are those of the copy.
    """
    first = tl.program_id(0).to(tl.int64) * BLOCK
    within = (first % APART).to(tl.int32) + tl.arange(0, BLOCK)
    pixel = first // APART + within // APART
    channel = within % APART
    inside = first + tl.arange(0, BLOCK) < words
    value = tl.load(
        source + pixel * CHANNELS + channel, inside & (channel < CHANNELS), other=0
    )  # fmt: skip
    tl.store(copied + first + tl.arange(0, BLOCK), value, inside)


@triton.jit
def swap_filters(w, swapped, K, TAPS, C, BK: tl.constexpr, BC: tl.constexpr):
    """w[K, TAPS, C] -> swapped[C, TAPS, K]: fp8's wgmma wants K-major operands."""
    k = tl.program_id(0).to(tl.int64) * BK + tl.arange(0, BK)
    c = tl.program_id(1).to(tl.int64) * BC + tl.arange(0, BC)
    tap = tl.program_id(2)
    mask = (k < K)[:, None] & (c < C)[None, :]
    block = tl.load(w + (k[:, None] * TAPS + tap) * C + c[None, :], mask)
    tl.store(swapped + (c[:, None] * TAPS + tap) * K + k[None, :], block.T, mask.T)


def swapped(w: torch.Tensor) -> tuple[torch.Tensor, Step]:
    """Weights [K, C, R, S], channels_last, as a flat [C, R*S, K], and the step that makes it.

    Allocated here (torch.OutOfMemoryError).
    """
    k, c, taps = w.shape[0], w.shape[1], w.shape[2] * w.shape[3]
    copied = torch.empty(w.numel(), dtype=w.dtype, device=w.device)
    # Of 8 bits as integers, which Triton moves on every GPU.
    source, target = (t.view(torch.int8) if t.element_size() == 1 else t for t in (w, copied))
    grid = (ceil(k / SWAP_BLOCK), ceil(c / SWAP_BLOCK), taps)
    args = (source, target, k, taps, c, SWAP_BLOCK, SWAP_BLOCK)
    return copied, Step(swap_filters, grid, args, {"num_warps": 4})


def weights_of(
    operands: ConvOperands, problem: ImplicitGemm
) -> tuple[torch.Tensor, tuple[int, int], bool, Sequence[Step]]:
    """(weights [outer, taps, inner], both sizes, whether inner is what is added up, steps).

    dgrad has them the other way round, which wgmma reads of 16 bits alone: fp8's are exchanged.
    """
    weights, steps = operands.w, ()
    if problem.dgrad and problem.element_bytes == 2:
        return weights, (problem.c, problem.k), False, steps
    if problem.dgrad:
        weights, step = swapped(weights)
        steps = (step,)
    return weights, (problem.k, problem.c), True, steps


def padded(
    tensor: torch.Tensor, pixels: int, channels: int, *, lines: bool = False
) -> tuple[torch.Tensor, int, Sequence[Step]]:
    """(base, elements from pixel to pixel, steps) of pixels that TMA can read.

    tensor: pixels * channels elements in this order, channels_last or one-dimensional. It is its
    own base, without a step, where its pixels start on 16 bytes, or, with `lines`, on lines or
    powers of two within one; else the base is a padded copy, allocated here
    (torch.OutOfMemoryError), which the step fills.
    """
    flat = tensor if tensor.ndim == 1 else tensor.permute(0, 2, 3, 1).reshape(-1)
    size = tensor.element_size()
    step = row_for_tma(channels * size, lines) // size
    if step == channels:
        return flat, channels, ()
    copied = torch.empty(pixels * step, dtype=tensor.dtype, device=tensor.device)
    word = min(channels * size & -(channels * size), max(WORDS))
    per_word = word // size
    words = copied.numel() // per_word
    args = (
        flat.view(WORDS[word]), copied.view(WORDS[word]), words,
        channels // per_word, step // per_word, BLOCK,
    )  # fmt: skip
    return copied, step, (Step(pad_pixels, (ceil(words / BLOCK),), args, {"num_warps": 4}),)
