"""FLOPs of convolutions and attention by the shapes of their operands; a multiply-add is two."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Shape = Sequence[int]


def convolution(images: int, grid: Shape, weight: Shape) -> int:
    """Each image multiplies the whole weight at each position of the smaller grid: the output's, or
    the input's where the convolution is transposed. Groups are in the weight's shape.
    """
    return 2 * images * prod(grid) * prod(weight)


def attention(query: Shape, key: Shape, value: Shape) -> int:
    """Query times key, and the scores times value. The backward pass has twice as many: the
    gradients of both factors of each, without the scores that a kernel computes again.
    """
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
