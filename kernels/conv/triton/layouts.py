"""NCHW by conversion: copies in channels_last for the kernels, whose time counts as part of theirs.

The kernels read and write channels_last, which TMA needs: it loads channels that are adjacent.
"""

# Typed by Triton's compiler.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import torch
import triton
import triton.language as tl

from kernels.conv.operands import INPUTS, OUTPUT, ConvOperands
from kernels.conv.triton.padding import as_bits
from kernels.triton_util import Step, power_of_two

TILE = 4096  # elements that a program turns
MOST_ROWS = 64


@triton.jit
def transpose_planes(
    source, turned, ROWS, COLUMNS, BR: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """source[planes, ROWS, COLUMNS] -> turned[planes, COLUMNS, ROWS], a tile BR x BC a program."""
    across, down = tl.cdiv(COLUMNS, BC), tl.cdiv(ROWS, BR)
    tile = tl.program_id(0) % (across * down)
    plane = (tl.program_id(0) // (across * down)).to(tl.int64) * ROWS * COLUMNS
    row = tile // across * BR + tl.arange(0, BR)
    column = tile % across * BC + tl.arange(0, BC)
    inside = (row < ROWS)[:, None] & (column < COLUMNS)[None, :]
    block = tl.load(source + plane + row[:, None] * COLUMNS + column[None, :], inside)
    tl.store(turned + plane + column[:, None] * ROWS + row[None, :], block.T, inside.T)


def channels_last(
    operands: ConvOperands,
) -> tuple[ConvOperands, Sequence[Step], Sequence[Step]]:
    """(operands in channels_last, steps before the kernels, steps after) of contiguous ones.

    x [N, C, H, W], w [K, C, R, S] and y [N, K, P, Q] get copies, allocated here
    (torch.OutOfMemoryError); where both layouts are the same memory, views and no step.
    """
    tensors = {name: getattr(operands, name) for name in "xwy"}
    last = {name: _in_channels_last(tensor) for name, tensor in tensors.items()}
    before = [
        step
        for name in INPUTS[operands.which]
        for step in _turned(tensors[name], last[name], to_last=True)
    ]
    output = OUTPUT[operands.which]
    after = _turned(last[output], tensors[output], to_last=False)
    return replace(operands, **last), before, after


def _same_memory(tensor: torch.Tensor) -> bool:
    """Whether both layouts order the elements alike: one channel, or one pixel."""
    _, channels, height, width = tensor.shape
    return channels == 1 or height * width == 1


def _in_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """An empty tensor in channels_last, or a view of the same memory."""
    if _same_memory(tensor):
        _, channels, height, width = tensor.shape
        strides = (channels * height * width, 1, channels * width, channels)
        return tensor.as_strided(tensor.shape, strides)
    return torch.empty_like(tensor, memory_format=torch.channels_last)


def _turned(source: torch.Tensor, turned: torch.Tensor, *, to_last: bool) -> Sequence[Step]:
    if _same_memory(source):
        return ()
    planes, channels, height, width = source.shape
    rows, columns = (channels, height * width) if to_last else (height * width, channels)
    block_rows = min(MOST_ROWS, power_of_two(rows))
    block_columns = min(TILE // block_rows, power_of_two(columns))
    tiles = ceil(rows / block_rows) * ceil(columns / block_columns)
    args = (as_bits(source), as_bits(turned), rows, columns, block_rows, block_columns)
    return (Step(transpose_planes, (planes * tiles,), args, {"num_warps": 4}),)
