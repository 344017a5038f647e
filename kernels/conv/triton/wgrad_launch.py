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
from kernels.conv.triton.fold import Fold
from kernels.conv.triton.padding import folded, padded
from kernels.conv.triton.wgrad_config import (
    DEPTHWISE,
    FOLDS,
    POINTER,
    SWAPPED,
    Config,
    blocks,
    in_parts,
    part_elements,
    seen,
    tiles,
)
from kernels.precision import Precision
from kernels.triton_config import MAX_INDEX, Step, input_precision, options, power_of_two

REDUCE_SPLITS, REDUCE_ELEMENTS = 16, (32, 128)  # a program adds up: at once, (least, most)


def bind(
    config: Config, operands: ConvOperands, precision: Precision, sm_count: int
) -> Sequence[Step]:
    """The launches that one pass takes, in order; operands.w [K, C, R, S] receives the gradient.

    x [N, C, H, W], w and y [N, K, P, Q] must be channels_last without gaps (ValueError otherwise).
    Allocates the float32 partial sums, padded copies of what TMA cannot read and, for wgrad_fold,
    of x (torch.OutOfMemoryError).
    """
    for name in ("x", "y", "w"):
        if not getattr(operands, name).is_contiguous(memory_format=torch.channels_last):
            raise ValueError(f"{name} is not channels_last")
    dw, shape = operands.w, seen(config, operands.shape)
    programs = tiles(config, operands.shape) * config.splits
    split_elements = part_elements(config, operands.shape, dw.element_size())
    if config.kernel == SWAPPED:
        operands = replace(operands, x=operands.y, y=operands.x, shape=shape)
    fold = Fold.of(shape, dw.element_size()) if config.kernel in FOLDS else None
    part_columns = fold.window if fold else shape.s * blocks(shape)[3]
    parts = dw
    if in_parts(config, shape):
        parts = torch.empty((config.splits, split_elements), dtype=torch.float32, device=dw.device)
    if config.kernel == DEPTHWISE:
        steps = (depthwise_launch.weight_sums(config, operands, parts),)
    else:
        steps = _products(config, operands, fold, parts, split_elements, precision, programs)
    if parts is dw:
        return steps
    channels = fold.channels if fold else blocks(shape)[3]
    return (*steps, _reduce(config, operands, parts, part_columns, channels, sm_count))


def _products(
    config: Config, operands: ConvOperands, fold: Fold | None, parts: torch.Tensor,
    split_elements: int, precision: Precision, programs: int,
) -> tuple[Step, ...]:  # fmt: skip
    """Copies, and the matrix multiplications that leave each split's sums in `parts`."""
    if config.kernel == POINTER:
        copies, args = (), _pointer_args(config, operands, parts, split_elements)
        product = jit.wgrad_pointer
    else:
        copies, args = _tma_args(config, operands, fold, parts, split_elements)
        product = jit.wgrad_tma
    args = (*args, input_precision(precision))
    return (*copies, Step(product, (programs,), args, options(config.stages, config.warps)))


def _tma_args(
    config: Config, operands: ConvOperands, fold: Fold | None, out: torch.Tensor,
    split_elements: int,
) -> tuple[Sequence[Step], tuple[object, ...]]:  # fmt: skip
    """(steps before, arguments); sizes are those of x and dy as the kernel sees them: x may be
    folded, or a matrix.
    """
    shape = operands.shape
    _, groups, group_k, group_c = blocks(shape)
    pixels = shape.n * shape.p * shape.q
    y, y_apart, copies = padded(operands.y, pixels, shape.k, lines=config.padded)
    if fold:
        x, copied = folded(operands.x, shape, fold)
        copies = (*copies, copied)
        apart, row, step = fold.channels, fold.width * fold.channels, shape.stride * fold.channels
        columns, channels, c, s, pad_w = shape.q, fold.window, fold.window, 1, 0
    else:
        pixels = shape.n * shape.h * shape.w
        x, apart, copied = padded(operands.x, pixels, shape.c, lines=config.padded)
        copies = (*copies, *copied)
        if shape.flat:
            shape = replace(shape, n=1, h=1, w=shape.n * shape.h * shape.w)
        row, step = shape.w * apart, shape.stride * apart
        c, s, pad_w = group_c, shape.s, shape.padding
        columns, channels = shape.w // shape.stride, step
    strides = (shape.h * row, row, step, 1)
    n, p, q = shape.n, shape.p, shape.q
    x_odd = None
    if not fold and shape.w % shape.stride:  # a view of rank four has whole strides alone
        odd_sizes, columns, channels = (n, shape.h, columns, apart), columns + 1, apart
        x_odd = _descriptor(config, x[apart:], odd_sizes, strides, config.bc)
    y_strides = (p * q * y_apart, q * y_apart, y_apart, 1)
    return copies, (
        _descriptor(config, x, (n, shape.h, columns, channels), strides, config.bc), x_odd,
        _descriptor(config, y, (n, p, q, y_apart), y_strides, config.bk), out,
        n, p, q, c, group_k, s, groups, shape.r // config.taps,
        config.splits, split_elements, shape.padding, pad_w, apart,
        config.images, config.columns, config.bk, config.bc, config.rows, config.taps,
        shape.stride, shape.dilation, shape.stride > 1 and not fold,
    )  # fmt: skip


def _descriptor(
    config: Config, base: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], width: int
) -> TensorDescriptor:
    order = (1, 2, 0, 3) if config.columns == 1 else (0, 1, 2, 3)
    box = (config.images, 1, config.columns, width)
    sizes, strides, box = ([values[i] for i in order] for values in (sizes, strides, box))
    return TensorDescriptor(base, sizes, strides, box)


def _pointer_args(
    config: Config, operands: ConvOperands, out: torch.Tensor, split_elements: int
) -> tuple[object, ...]:
    shape = operands.shape
    pixels = shape.n * shape.p * shape.q
    index = tl.int32 if pixels + config.pixels <= MAX_INDEX else tl.int64
    return (
        operands.x, operands.y, out, pixels, shape.h, shape.w, shape.c, shape.p, shape.q, shape.k,
        shape.s, shape.r * shape.s, config.splits, split_elements,
        shape.stride, shape.padding, shape.dilation,
        config.pixels, config.bk, config.bc, index,
    )  # fmt: skip


def _reduce(
    config: Config, operands: ConvOperands, parts: torch.Tensor, part_columns: int,
    channels: int, sm_count: int,
) -> Step:  # fmt: skip
    shape = operands.shape
    elements, own = shape.elements("w"), shape.c // shape.groups
    least, most = REDUCE_ELEMENTS
    block = min(most, max(least, power_of_two(ceil(elements / (4 * sm_count)))))
    splits = min(REDUCE_SPLITS, power_of_two(config.splits))
    args = (
        parts, operands.w, elements, config.splits, parts.shape[1],
        own, shape.s * own, channels, part_columns, elements // shape.groups, blocks(shape)[0],
        shape.r, shape.k, splits, block, config.kernel == SWAPPED,
    )  # fmt: skip
    return Step(jit.wgrad_reduce, (ceil(elements / block),), args, {"num_warps": 4})
