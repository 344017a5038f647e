"""The weight gradient in NHWC through Triton: binds a configuration to tensors.

Whatever can be done beforehand is done here, so that a launch does nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.conv.operands import ConvOperands
from kernels.conv.triton import depthwise_launch
from kernels.conv.triton import wgrad_kernels as jit
from kernels.conv.triton.padding import padded
from kernels.conv.triton.wgrad_config import (
    DEPTHWISE,
    EXCHANGED,
    GATHERING,
    Config,
    blocks,
    in_parts,
    part_elements,
    seen,
    tiles,
)
from kernels.precision import Precision
from kernels.triton_util import MAX_INDEX, Step, input_precision, options, power_of_two

REDUCE_SPLITS, REDUCE_ELEMENTS = 16, (32, 128)  # a program adds up: at once, (least, most)


def bind(
    config: Config, operands: ConvOperands, precision: Precision, sm_count: int
) -> Sequence[Step]:
    """The launches that one pass takes, in order; operands.w [K, C, R, S] receives the gradient.

    x [N, C, H, W], w and y [N, K, P, Q] must be channels_last without gaps (ValueError otherwise).
    Allocates the float32 partial sums and padded copies of what TMA cannot read
    (torch.OutOfMemoryError).
    """
    for name in ("x", "y", "w"):
        if not getattr(operands, name).is_contiguous(memory_format=torch.channels_last):
            raise ValueError(f"{name} is not channels_last")
    parts, shape = operands.w, operands.shape
    split_elements = part_elements(shape)
    if in_parts(config, shape):
        sizes = (config.splits, split_elements)
        parts = torch.empty(sizes, dtype=torch.float32, device=operands.w.device)
    if config.kernel == DEPTHWISE:
        steps = (depthwise_launch.weight_sums(config, operands, parts),)
    else:
        steps = _products(config, operands, parts, split_elements, precision)
    if parts is operands.w:
        return steps
    return (*steps, _reduce(config, operands, parts, sm_count))


def _products(
    config: Config, operands: ConvOperands, parts: torch.Tensor, split_elements: int,
    precision: Precision,
) -> tuple[Step, ...]:  # fmt: skip
    """Copies, and the matrix multiplications that leave each split's sums in `parts`."""
    if config.kernel in GATHERING:
        copies, args = (), _gather_args(config, operands, parts, split_elements)
        product = jit.wgrad_gather
    else:
        copies, args = _tma_args(config, operands, parts, split_elements)
        product = jit.wgrad_tma
    args = (*args, input_precision(precision))
    grid = (tiles(config, operands.shape) * config.splits,)
    return (*copies, Step(product, grid, args, options(config.stages, config.warps)))


def _tma_args(
    config: Config, operands: ConvOperands, out: torch.Tensor, split_elements: int
) -> tuple[Sequence[Step], tuple[object, ...]]:
    """(steps before, arguments); sizes are those of x and dy as the kernel sees them: x may be a
    matrix.
    """
    shape = operands.shape
    _, groups, group_k, group_c = blocks(shape)
    pixels = shape.n * shape.p * shape.q
    y, y_apart, copies = padded(operands.y, pixels, shape.k, lines=config.padded)
    pixels = shape.n * shape.h * shape.w
    x, apart, copied = padded(operands.x, pixels, shape.c, lines=config.padded)
    if shape.flat:
        shape = replace(shape, n=1, h=1, w=pixels)
    row, step = shape.w * apart, shape.stride * apart
    columns, channels = shape.w // shape.stride, step
    strides = (shape.h * row, row, step, 1)
    n, p, q = shape.n, shape.p, shape.q
    x_odd = None
    if shape.w % shape.stride:  # a view of rank four has whole strides alone
        odd_sizes, columns, channels = (n, shape.h, columns, apart), columns + 1, apart
        x_odd = _descriptor(config, x[apart:], odd_sizes, strides, config.bc)
    y_strides = (p * q * y_apart, q * y_apart, y_apart, 1)
    return (*copies, *copied), (
        _descriptor(config, x, (n, shape.h, columns, channels), strides, config.bc), x_odd,
        _descriptor(config, y, (n, p, q, y_apart), y_strides, config.bk), out,
        n, p, q, group_c, group_k, shape.s, groups, shape.r // config.taps,
        config.splits, split_elements, shape.padding, apart,
        config.images, config.columns, config.bk, config.bc, config.rows, config.taps,
        shape.stride, shape.dilation,
    )  # fmt: skip


def _descriptor(
    config: Config, base: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], width: int
) -> TensorDescriptor:
    order = (1, 2, 0, 3) if config.columns == 1 else (0, 1, 2, 3)
    box = (config.images, 1, config.columns, width)
    sizes, strides, box = ([values[i] for i in order] for values in (sizes, strides, box))
    return TensorDescriptor(base, sizes, strides, box)


def _gather_args(
    config: Config, operands: ConvOperands, out: torch.Tensor, split_elements: int
) -> tuple[object, ...]:
    s = seen(config, operands.shape)
    x, y = operands.x, operands.y
    if config.kernel == EXCHANGED:
        x, y = y, x
    pixels = s.n * s.p * s.q
    most = max(x.numel(), y.numel()) + config.pixels * s.k
    index = tl.int32 if most <= MAX_INDEX else tl.int64
    return (
        x, y, out, pixels, s.h, s.w, config.splits, split_elements,
        s.p, s.q, s.k, s.c, s.r, s.s, s.stride, s.dilation, s.padding,
        config.pixels, config.bk, config.bc, config.kernel == EXCHANGED, index,
    )  # fmt: skip


def _reduce(config: Config, operands: ConvOperands, parts: torch.Tensor, sm_count: int) -> Step:
    shape = operands.shape
    merged, _, _, channels = blocks(shape)
    elements, own = shape.elements("w"), shape.c // shape.groups
    least, most = REDUCE_ELEMENTS
    block = min(most, max(least, power_of_two(ceil(elements / (4 * sm_count)))))
    splits = min(REDUCE_SPLITS, power_of_two(config.splits))
    args = (
        parts, operands.w, elements, config.splits, parts.shape[1],
        own, channels, elements // shape.groups, merged, splits, block,
    )  # fmt: skip
    return Step(jit.wgrad_reduce, (ceil(elements / block),), args, {"num_warps": 4})
