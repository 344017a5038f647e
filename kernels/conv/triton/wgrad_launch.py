"""The weight gradient in NHWC through Triton: binds a configuration to tensors.

What can be done once is done here, so that a launch is nothing but a launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.conv.operands import ConvOperands
from kernels.conv.shape import ConvShape
from kernels.conv.triton import wgrad_kernels as jit
from kernels.conv.triton.wgrad_config import FOLD, POINTER, Config, Fold, flat, tiles
from kernels.precision import Precision
from kernels.triton_config import MAX_INDEX, Step, input_precision, options, power_of_two

PAD_COLUMNS = 256
REDUCE_SPLITS, REDUCE_ELEMENTS = 16, (32, 128)  # a program adds up: at once, (least, most)


def bind(
    config: Config, operands: ConvOperands, precision: Precision, sm_count: int
) -> Sequence[Step]:
    """The launches that one pass takes, in order; operands.w receives the gradient.

    x and y must be channels_last without gaps (ValueError otherwise). Allocates the partial sums
    and, for wgrad_fold, the padded copy of x.
    """
    for name in ("x", "y", "w"):
        if not getattr(operands, name).is_contiguous(memory_format=torch.channels_last):
            raise ValueError(f"{name} is not channels_last")
    dw, shape = operands.w, operands.shape
    columns = Fold.of(shape, dw.element_size()).window if config.kernel == FOLD else 0
    part_columns = columns or shape.s * shape.c
    split_elements = shape.k * shape.r * part_columns
    if config.splits == 1 and not columns:
        return (_product(config, operands, operands.x, dw, split_elements, precision),)
    parts = torch.empty((config.splits, split_elements), dtype=torch.float32, device=dw.device)
    reduction = _reduce(config, operands, parts, part_columns, sm_count, precision)
    if not columns:
        product = _product(config, operands, operands.x, parts, split_elements, precision)
        return (product, reduction)
    fold = Fold.of(shape, dw.element_size())
    padded = torch.empty(
        (shape.n, shape.h, fold.width, fold.channels), dtype=dw.dtype, device=dw.device
    )
    product = _product(config, operands, padded, parts, split_elements, precision)
    return (_pad(operands, padded, fold), product, reduction)


def _product(
    config: Config, operands: ConvOperands, x: torch.Tensor, out: torch.Tensor,
    split_elements: int, precision: Precision,
) -> Step:  # fmt: skip
    mode = input_precision(precision)
    grid = (tiles(config, operands.shape) * config.splits,)
    if config.kernel == POINTER:
        args = _pointer_args(config, operands, out, split_elements)
        return Step(jit.wgrad_pointer, grid, (*args, mode), options(config.stages, config.warps))
    view = _view(config, operands.shape, x.element_size())
    args = (
        view.x(config, x), view.dy(config, operands.y), out,
        view.n, view.p, view.q, view.c, operands.shape.k, view.s,
        operands.shape.r // config.taps, config.splits, split_elements, view.pad_h, view.pad_w,
        config.images, config.columns, config.bk, config.bc, config.rows, config.taps,
        operands.shape.stride, operands.shape.dilation, view.phased,
    )  # fmt: skip
    return Step(jit.wgrad_tma, grid, (*args, mode), options(config.stages, config.warps))


@dataclass(frozen=True)
class _View:
    """x and dy as the TMA kernel sees them: sizes, and strides of x in elements."""

    n: int
    h: int
    w: int
    c: int
    p: int
    q: int
    k: int
    s: int
    pad_h: int
    pad_w: int
    channels: int
    strides: tuple[int, int, int]
    phased: bool = False

    def x(self, config: Config, base: torch.Tensor) -> TensorDescriptor:
        sizes = (self.n, self.h, self.w, self.channels)
        return _descriptor(config, base, sizes, (*self.strides, 1), config.bc)

    def dy(self, config: Config, base: torch.Tensor) -> TensorDescriptor:
        sizes = (self.n, self.p, self.q, self.k)
        strides = (self.p * self.q * self.k, self.q * self.k, self.k, 1)
        return _descriptor(config, base, sizes, strides, config.bk)


def _descriptor(
    config: Config, base: torch.Tensor, sizes: Sequence[int], strides: Sequence[int], width: int
) -> TensorDescriptor:
    order = (1, 2, 0, 3) if config.columns == 1 else (0, 1, 2, 3)
    box = (config.images, 1, config.columns, width)
    sizes, strides, box = ([values[i] for i in order] for values in (sizes, strides, box))
    return TensorDescriptor(base, sizes, strides, box)


def _view(config: Config, shape: ConvShape, element_bytes: int) -> _View:
    n, c, h, w, k, p, q = shape.n, shape.c, shape.h, shape.w, shape.k, shape.p, shape.q
    stride, pad = shape.stride, shape.padding
    if config.kernel == FOLD:
        fold = Fold.of(shape, element_bytes)
        row = fold.width * fold.channels
        strides = (h * row, row, stride * fold.channels)
        return _View(n, h, q, fold.window, p, q, k, 1, pad, 0, fold.window, strides)
    if flat(shape):
        pixels = n * h * w
        strides = (pixels * c, pixels * c, c)
        return _View(1, 1, pixels, c, 1, pixels, k, 1, 0, 0, c, strides)
    strides = (h * w * c, w * c, stride * c)
    return _View(
        n, h, w // stride, c, p, q, k, shape.s, pad, pad, stride * c, strides, stride > 1
    )  # fmt: skip


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
    sm_count: int, precision: Precision,
) -> Step:  # fmt: skip
    shape = operands.shape
    channels = shape.c
    if config.kernel == FOLD:
        channels = Fold.of(shape, precision.bytes_per_element).channels
    elements = shape.elements("w")
    least, most = REDUCE_ELEMENTS
    block = min(most, max(least, power_of_two(ceil(elements / (4 * sm_count)))))
    splits = min(REDUCE_SPLITS, power_of_two(config.splits))
    args = (
        parts, operands.w, elements, config.splits, parts.shape[1],
        shape.c, shape.s * shape.c, channels, part_columns, splits, block,
    )  # fmt: skip
    return Step(jit.wgrad_reduce, (ceil(elements / block),), args, {"num_warps": 4})
