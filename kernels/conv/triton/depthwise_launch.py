"""The depthwise kernels: binds a configuration to tensors. Transposed weights, grids."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import torch

from kernels.conv.operands import ConvOperands
from kernels.conv.triton import data_config, wgrad_config
from kernels.conv.triton import depthwise_kernels as jit
from kernels.conv.triton.data_kernels import swap_filters
from kernels.conv.triton.depthwise_config import span
from kernels.precision import Precision
from kernels.triton_util import Step, options

SWAP_BLOCK = 32


def bind(
    config: data_config.Config, operands: ConvOperands, precision: Precision
) -> Sequence[Step]:
    """The launches of fprop or dgrad, in order; scratch is allocated here (torch.OutOfMemoryError).

    `config` must be valid for the operands' shape and pass, all tensors channels_last.
    """
    s = operands.shape
    what = data_config.Sum(s, operands.which, precision.bytes_per_element)
    source = operands.y if what.dgrad else operands.x
    # A tap's weights lie R*S elements apart: a tile would load them one by one.
    taps = torch.empty(s.k * s.r * s.s, dtype=operands.w.dtype, device=operands.w.device)
    args = (operands.w, taps, s.k, s.r * s.s, 1, SWAP_BLOCK, SWAP_BLOCK)
    swap = Step(swap_filters, (ceil(s.k / SWAP_BLOCK), 1, s.r * s.s), args, {"num_warps": 4})
    _, out_h, out_w = what.output
    args = (
        source, taps, operands.output, *what.image[1:], *what.whole_output[1:], s.k,
        ceil(s.k / config.bk), ceil(out_w / config.box[2]), ceil(out_h / config.box[1]),
        s.r, s.s, span(what), s.stride, s.dilation, s.padding,
        *config.box[1:], config.bk, what.dgrad,
    )  # fmt: skip
    grid = (what.tiles(config),)
    return [swap, Step(jit.conv_depthwise, grid, args, options(config.stages, config.warps))]


def weight_sums(config: wgrad_config.Config, operands: ConvOperands, out: torch.Tensor) -> Step:
    """The launch that leaves each split's sums in `out`: [splits][C][R][S]."""
    s = operands.shape
    args = (
        operands.x, operands.y, out, s.n, s.h, s.w, s.c, s.p, s.q, s.r, s.s,
        config.splits, out.shape[1], s.padding,
        ceil(s.c / config.bk), s.s // config.bc, s.r // config.taps,
        s.stride, s.dilation, config.columns, config.bk, config.rows, config.taps, config.bc,
    )  # fmt: skip
    grid = (wgrad_config.tiles(config, s) * config.splits,)
    return Step(jit.wgrad_depthwise, grid, args, options(config.stages, config.warps))
