"""Operands of convolutions for the Triton kernels, and the layers of ResNet-50."""

from __future__ import annotations

import torch

from kernels.conv.operands import OUTPUT, ConvOperands, sizes
from kernels.conv.shape import ConvShape
from kernels.precision import Precision

# (c, k, image, kernel, stride) of ResNet-50
RESNET = (
    (3, 64, 224, 7, 2), (64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1),
    (256, 64, 56, 1, 1), (256, 128, 56, 1, 1), (128, 128, 56, 3, 2), (256, 512, 56, 1, 2),
    (128, 512, 28, 1, 1), (512, 128, 28, 1, 1), (128, 128, 28, 3, 1), (512, 256, 28, 1, 1),
    (256, 256, 28, 3, 2), (512, 1024, 28, 1, 2), (256, 1024, 14, 1, 1), (1024, 256, 14, 1, 1),
    (256, 256, 14, 3, 1), (1024, 512, 14, 1, 1), (512, 512, 14, 3, 2), (1024, 2048, 14, 1, 2),
    (512, 2048, 7, 1, 1), (2048, 512, 7, 1, 1), (512, 512, 7, 3, 1),
)  # fmt: skip


def resnet(layer: tuple[int, int, int, int, int]) -> ConvShape:
    """A layer at batch 256."""
    c, k, image, kernel, stride = layer
    return ConvShape(256, c, image, image, k, kernel, kernel, stride, kernel // 2)


def operands(shape: ConvShape, which: str, kind: Precision, device: str = "cpu") -> ConvOperands:
    """Drawn, the output NaN; on "meta" they take no memory: strides right, storage absent."""
    torch.manual_seed(0)
    x, w, y = (
        torch.randn(sizes(name, shape), device=device)
        .to(kind.torch_dtype("output" if name == OUTPUT[which] else "storage"))
        .contiguous(memory_format=torch.channels_last)
        for name in "xwy"
    )
    found = ConvOperands(x, w, y, shape, which)
    found.output.fill_(float("nan"))
    return found
