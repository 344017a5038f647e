"""conv_gather and conv_persistent: binds a configuration to tensors. Descriptors, grids."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.conv.operands import ConvOperands
from kernels.conv.triton import data_kernels as jit
from kernels.conv.triton.copies import weights_of
from kernels.conv.triton.data_configs import GATHER, DataConfig, skips, tiles
from kernels.conv.triton.problem import ImplicitGemm
from kernels.triton_util import MAX_BOX, MAX_INDEX, Step, options


def bind(
    config: DataConfig, operands: ConvOperands, problem: ImplicitGemm, sm_count: int
) -> Sequence[Step]:
    """The launches of one pass: `kernels.conv.triton.backend.bind`."""
    if config.kernel == GATHER:
        return [_gather(config, operands, problem)]
    return _persistent(config, operands, problem, sm_count)


def _gather(config: DataConfig, operands: ConvOperands, problem: ImplicitGemm) -> Step:
    s = operands.shape
    source = operands.y if problem.dgrad else operands.x
    x, y = (s.h, s.w), (s.p, s.q)
    image, out = (y, x) if problem.dgrad else (x, y)
    most = max(source.numel(), operands.w.numel(), operands.output.numel())
    index = tl.int32 if most + config.pixels * problem.k <= MAX_INDEX else tl.int64
    args = (
        source, operands.w, operands.output, s.n * out[0] * out[1], *image, *out,
        problem.k, problem.c, s.r, s.s, *s.strides, *s.dilations, *s.paddings,
        *config.tile, problem.dgrad, index,
    )  # fmt: skip
    grid = (tiles(config, problem),)
    return Step(jit.conv_gather, grid, args, options(config.stages, config.warps))


def _persistent(
    config: DataConfig, operands: ConvOperands, problem: ImplicitGemm, sm_count: int
) -> list[Step]:
    s, (_, rows, columns) = operands.shape, problem.output
    source = operands.y if problem.dgrad else operands.x
    w, (outer, inner), k_major, before = weights_of(operands, problem)
    width, block = s.r * s.s * inner, [config.bk, config.bc]
    if not k_major:
        block = [min(config.bc, MAX_BOX), config.bk]
    weights = TensorDescriptor(w, [outer, width], [width, 1], block)
    count, programs = tiles(config, problem), sm_count * config.per_sm
    args = (
        _nhwc(source, problem.image, problem.c, config.box, config.bc), weights,
        _nhwc(operands.output, problem.whole_output, problem.k, _stored_box(config), config.bk),
        ceil(problem.k / config.bk), ceil(columns / config.box[2]), ceil(rows / config.box[1]),
        *problem.image[1:], problem.c, problem.k, s.r, s.s, ceil(problem.c / config.bc),
        *s.dilations, *problem.pads, *config.box, config.bk, config.bc, k_major, problem.dgrad,
        skips(config, problem), config.epilogue_subtiles, count, programs,
    )  # fmt: skip
    grid = (min(count, programs),)
    launch = Step(jit.conv_persistent, grid, args, options(config.stages, config.warps))
    return [*before, launch]


def _stored_box(config: DataConfig) -> tuple[int, int, int]:
    (n, h, w), parts = config.box, config.epilogue_subtiles
    while parts > 1:
        n, h, w = (n // 2, h, w) if n > 1 else (n, h // 2, w) if h > 1 else (n, h, w // 2)
        parts //= 2
    return n, h, w


def _nhwc(
    base: torch.Tensor, image: tuple[int, int, int], channels: int,
    box: tuple[int, int, int], block: int,
) -> TensorDescriptor:  # fmt: skip
    n, h, w = image
    strides = [h * w * channels, w * channels, channels, 1]
    return TensorDescriptor(base, [n, h, w, channels], strides, [*box, block])
