"""Rows of taps as channels: x copied so that the taps of a kernel row are adjacent in memory.

Nothing here imports torch or triton: rules can be checked on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from kernels.conv.shape import ConvShape
from kernels.triton_config import TMA_ALIGNMENT, power_of_two

LEAST_WINDOW = 32  # elements


@dataclass(frozen=True)
class Fold:
    """x with its channels padded, so that the taps of a kernel row are adjacent in memory.

    channels: C padded; window: elements that hold S*channels; width: padded columns of x.
    """

    channels: int
    window: int
    width: int

    @classmethod
    def of(cls, shape: ConvShape, element_bytes: int) -> Fold:
        """The fold of a shape: windows and rows start on multiples of 16 bytes."""
        step = TMA_ALIGNMENT // element_bytes
        channels = power_of_two(shape.c)
        while channels * shape.stride % step:
            channels *= 2
        window = max(LEAST_WINDOW, power_of_two(shape.s * channels))
        width = (shape.q - 1) * shape.stride + ceil(window / channels)
        width = max(width, shape.w + shape.padding)
        while width * channels % step:
            width += 1
        return cls(channels, window, width)


def exchangeable(shape: ConvShape) -> bool:
    """Whether the passes are also those of a convolution with x and y exchanged."""
    plain = (shape.stride, shape.dilation, shape.groups) == (1, 1, 1)
    return plain and shape.r == shape.s and shape.padding < shape.r


def exchanged(shape: ConvShape) -> ConvShape:
    """The convolution whose x is this one's y, and whose kernel is this one's, turned round."""
    padding = shape.r - 1 - shape.padding
    return replace(shape, c=shape.k, h=shape.p, w=shape.q, k=shape.c, padding=padding)
