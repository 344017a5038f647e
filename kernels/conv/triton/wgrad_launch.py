"""The weight gradient through Triton: binds a configuration to tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.conv.operands import ConvOperands
from kernels.conv.triton import wgrad_kernels as jit
from kernels.conv.triton.copies import padded
from kernels.conv.triton.problem import ImplicitGemm
from kernels.conv.triton.wgrad_configs import EXCHANGED, TMA, WgradConfig, seen, tiles
from kernels.triton_util import MAX_INDEX, Step, options, power_of_two

REDUCE_SPLIT_K, REDUCE_ELEMENTS = 16, (32, 128)  # a program adds up: at once, (least, most)


def bind(
    config: WgradConfig, operands: ConvOperands, problem: ImplicitGemm, sm_count: int
) -> Sequence[Step]:
    """The launches that one pass takes, in order; operands.w [K, C, R, S] receives the gradient.

    x [N, C, H, W], w and y [N, K, P, Q] are channels_last without gaps.
    Allocates the float32 partial sums and padded copies of what TMA cannot read
    (torch.OutOfMemoryError).
    """
    dw, elements = operands.w, operands.shape.elements("w")
    out = dw
    if config.split_k > 1:
        sizes = (config.split_k, elements)
        out = torch.empty(sizes, dtype=torch.float32, device=dw.device)
    if config.kernel == TMA:
        product, (copies, args) = jit.wgrad_tma, _tma_args(config, operands, out)
    else:
        product, copies, args = jit.wgrad_gather, (), _gather_args(config, operands, out)
    grid = (tiles(config, problem),)
    steps = [*copies, Step(product, grid, args, options(config.stages, config.warps))]
    if config.split_k > 1:
        least, most = REDUCE_ELEMENTS
        block = min(most, max(least, power_of_two(ceil(elements / (4 * sm_count)))))
        at_once = min(REDUCE_SPLIT_K, power_of_two(config.split_k))
        args = (out, dw, elements, config.split_k, at_once, block)
        grid = (ceil(elements / block),)
        steps.append(Step(jit.wgrad_reduce, grid, args, {"num_warps": 4}))
    return steps


def _tma_args(
    config: WgradConfig, operands: ConvOperands, out: torch.Tensor
) -> tuple[Sequence[Step], tuple[object, ...]]:
    """(steps before, arguments); sizes are those of x and dy as the kernel sees them: x may be a
    matrix.
    """
    shape = operands.shape
    c, k = shape.c, shape.k
    pixels = shape.n * shape.p * shape.q
    y, y_apart, copies = padded(operands.y, pixels, k, lines=config.padded)
    pixels = shape.n * shape.h * shape.w
    x, apart, copied = padded(operands.x, pixels, c, lines=config.padded)
    if shape.flat:
        shape = replace(shape, n=1, h=1, w=pixels)
    stride, dilation = shape.strides[0], shape.dilations[0]  # along both axes
    row, step = shape.w * apart, stride * apart
    columns, channels = shape.w // stride, step
    strides = (shape.h * row, row, step, 1)
    n, p, q = shape.n, shape.p, shape.q
    x_odd = None
    if shape.w % stride:  # a view of rank four has whole strides alone
        odd_sizes, columns, channels = (n, shape.h, columns, apart), columns + 1, apart
        x_odd = _descriptor(config, x[apart:], odd_sizes, strides, config.bc)
    y_strides = (p * q * y_apart, q * y_apart, y_apart, 1)
    return (*copies, *copied), (
        _descriptor(config, x, (n, shape.h, columns, channels), strides, config.bc), x_odd,
        _descriptor(config, y, (n, p, q, y_apart), y_strides, config.bk), out,
        n, p, q, c, k, shape.s, shape.r // config.taps,
        config.split_k, shape.elements("w"), *shape.paddings, apart,
        config.images, config.columns, config.bk, config.bc, config.rows, config.taps,
        stride, dilation,
    )  # fmt: skip


def _descriptor(
    config: WgradConfig, base: torch.Tensor, sizes: Sequence[int], strides: Sequence[int],
    width: int,
) -> TensorDescriptor:  # fmt: skip
    order = (1, 2, 0, 3) if config.columns == 1 else (0, 1, 2, 3)
    box = (config.images, 1, config.columns, width)
    sizes, strides, box = ([values[i] for i in order] for values in (sizes, strides, box))
    return TensorDescriptor(base, sizes, strides, box)


def _gather_args(
    config: WgradConfig, operands: ConvOperands, out: torch.Tensor
) -> tuple[object, ...]:
    s = seen(config, operands.shape)
    x, y = operands.x, operands.y
    if config.kernel == EXCHANGED:
        x, y = y, x
    pixels = s.n * s.p * s.q
    most = max(x.numel(), y.numel()) + config.pixels * s.k
    index = tl.int32 if most <= MAX_INDEX else tl.int64
    return (
        x, y, out, pixels, s.h, s.w, config.split_k, operands.shape.elements("w"),
        s.p, s.q, s.k, s.c, s.r, s.s, *s.strides, *s.dilations, *s.paddings,
        config.pixels, config.bk, config.bc, config.kernel == EXCHANGED, index,
    )  # fmt: skip
