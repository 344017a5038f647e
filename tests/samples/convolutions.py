"""Operands of convolutions for the Triton kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv2d
from torch.nn.grad import conv2d_input, conv2d_weight

from kernels.conv import OUTPUT, Conv
from kernels.conv.operands import ConvOperands
from kernels.conv.shape import ConvShape
from kernels.precision import Precision


def operands(shape: ConvShape, which: str, kind: Precision) -> ConvOperands:
    """Drawn, the output NaN."""
    torch.manual_seed(0)
    x, w, y = (
        torch.randn(Conv(shape, which).stored(name))
        .to(kind.torch_dtype("output" if name == OUTPUT[which] else "storage"))
        .contiguous(memory_format=torch.channels_last)
        for name in "xwy"
    )
    found = ConvOperands(x, w, y, shape, which)
    found.output.fill_(float("nan"))
    return found


def by_torch(drawn: ConvOperands) -> Tensor:
    """What torch makes of the inputs in float64."""
    shape, x, w, y = drawn.shape, drawn.x.double(), drawn.w.double(), drawn.y.double()
    how = (shape.strides, shape.paddings, shape.dilations, shape.groups)
    if drawn.which == "fprop":
        return conv2d(x, w, None, *how)
    if drawn.which == "dgrad":
        return conv2d_input(x.shape, w, y, *how)
    return conv2d_weight(x, w.shape, y, *how)
