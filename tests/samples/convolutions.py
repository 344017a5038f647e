"""Operands of convolutions for the Triton kernels."""

from __future__ import annotations

import torch

from kernels.conv import OUTPUT, Conv
from kernels.conv.operands import ConvOperands, stored
from kernels.conv.shape import ConvShape
from kernels.precision import Precision


def operands(shape: ConvShape, which: str, kind: Precision) -> ConvOperands:
    """Drawn, the output NaN."""
    torch.manual_seed(0)
    x, w, y = (
        torch.randn(stored(Conv(shape, which), name))
        .to(kind.torch_dtype("output" if name == OUTPUT[which] else "storage"))
        .contiguous(memory_format=torch.channels_last)
        for name in "xwy"
    )
    found = ConvOperands(x, w, y, shape, which)
    found.output.fill_(float("nan"))
    return found
