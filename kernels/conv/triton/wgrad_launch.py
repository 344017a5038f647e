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
from kernels.conv.triton import wgrad_kernels as jit
from kernels.conv.triton.wgrad_config import FOLD, POINTER, Config, Fold, tiles
from kernels.precision import Precision
from kernels.triton_config import MAX_INDEX, Step, input_precision, options, power_of_two

PAD_COLUMNS = 256
REDUCE_SPLITS, REDUCE_ELEMENTS = 16, (32, 128)  # a program adds up: at once, (least, most)


def bind(
    config: Config, operands: ConvOperands, precision: Precision, sm_count: int
) -> Sequence[Step]:
    """The launches that one pass takes, in order; operands.w [K, C, R, S] receives the gradient.

    x [N, C, H, W], w and y [N, K, P, Q] must be channels_last without gaps (ValueError otherwise).
    Allocates the float32 partial sums and, for wgrad_fold, the padded copy of x
    (torch.OutOfMemoryError).
    """
    for name in ("x", "y", "w"):
        if not getattr(operands, name).is_contiguous(memory_format=torch.channels_last):
            raise ValueError(f"{name} is not channels_last")
    dw, shape = operands.w, operands.shape
    fold = Fold.of(shape, dw.element_size()) if config.kernel == FOLD else None
    part_columns = fold.window if fold else shape.s * shape.c
    split_elements = shape.k * shape.r * part_columns
    if config.splits == 1 and not fold:
        return (_product(config, operands, fold, dw, split_elements, precision),)
    parts = torch.empty((config.splits, split_elements), dtype=torch.float32, device=dw.device)
    channels = fold.channels if fold else shape.c
    reduction = _reduce(config, operands, parts, part_columns, channels, sm_count)
    if fold:
        sizes = (shape.n, shape.h, fold.width, fold.channels)
        padded = torch.empty(sizes, dtype=dw.dtype, device=dw.device)
        pad = _pad(operands, padded, fold)
        operands = replace(operands, x=padded)
        return (pad, _product(config, operands, fold, parts, split_elements, precision), reduction)
    return (_product(config, operands, fold, parts, split_elements, precision), reduction)


def _product(
    config: Config, operands: ConvOperands, fold: Fold | None, out: torch.Tensor,
    split_elements: int, precision: Precision,
) -> Step:  # fmt: skip
    if config.kernel == POINTER:
        kernel, args = jit.wgrad_pointer, _pointer_args(config, operands, out, split_elements)
    else:
        kernel, args = jit.wgrad_tma, _tma_args(config, operands, fold, out, split_elements)
    grid = (tiles(config, operands.shape) * config.splits,)
    args = (*args, input_precision(precision))
    return Step(kernel, grid, args, options(config.stages, config.warps))


def _tma_args(
    config: Config, operands: ConvOperands, fold: Fold | None, out: torch.Tensor,
    split_elements: int,
) -> tuple[object, ...]:  # fmt: skip
    """The sizes are those of x and dy as the kernel sees them: x may be folded, or a matrix."""
    shape = operands.shape
    if fold:
        row, step = fold.width * fold.channels, shape.stride * fold.channels
        columns, channels, c, s, pad_w = shape.q, fold.window, fold.window, 1, 0
    else:
        if shape.flat:
            shape = replace(shape, n=1, h=1, w=shape.n * shape.h * shape.w)
        row, step = shape.w * shape.c, shape.stride * shape.c
        columns, channels, c = shape.w // shape.stride, step, shape.c
        s, pad_w = shape.s, shape.padding
    n, p, q, k = shape.n, shape.p, shape.q, shape.k
    x_sizes, x_strides = (n, shape.h, columns, channels), (shape.h * row, row, step, 1)
    return (
        _descriptor(config, operands.x, x_sizes, x_strides, config.bc),
        _descriptor(config, operands.y, (n, p, q, k), (p * q * k, q * k, k, 1), config.bk), out,
        n, p, q, c, k, s, shape.r // config.taps, config.splits, split_elements,
        shape.padding, pad_w,
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


def _pad(operands: ConvOperands, padded: torch.Tensor, fold: Fold) -> Step:
    shape = operands.shape
    args = (
        operands.x, padded, shape.h, shape.w, shape.c, fold.width, shape.padding,
        PAD_COLUMNS, fold.channels,
    )  # fmt: skip
    grid = (shape.n * shape.h, ceil(fold.width / PAD_COLUMNS))
    return Step(jit.wgrad_pad, grid, args, {"num_warps": 4})


def _reduce(
    config: Config, operands: ConvOperands, parts: torch.Tensor, part_columns: int,
    channels: int, sm_count: int,
) -> Step:  # fmt: skip
    shape = operands.shape
    elements = shape.elements("w")
    least, most = REDUCE_ELEMENTS
    block = min(most, max(least, power_of_two(ceil(elements / (4 * sm_count)))))
    splits = min(REDUCE_SPLITS, power_of_two(config.splits))
    args = (
        parts, operands.w, elements, config.splits, parts.shape[1],
        shape.c, shape.s * shape.c, channels, part_columns, splits, block,
    )  # fmt: skip
    return Step(jit.wgrad_reduce, (ceil(elements / block),), args, {"num_warps": 4})
