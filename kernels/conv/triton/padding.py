"""Copies for TMA, whose pixels must start on 16 bytes: channels padded, at their counted cost.

TMA takes up to twice as long for pixels that do not start and end on sectors of 32 bytes (24
channels in fp16 beside 32, on one H100). So the channels of a copy are whole sectors, zeros at the
end.
"""

# Typed by Triton's compiler.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import torch
import triton
import triton.language as tl

from kernels.triton_util import Step, row_for_tma

BLOCK = 2048  # words that a program copies
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


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor to be copied: of 8 bits as integers, which Triton moves on every GPU."""
    return tensor.view(torch.int8) if tensor.element_size() == 1 else tensor


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
