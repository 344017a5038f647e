"""A batch of decoded images, each in memory of its own, cut, resized, flipped and normalised in one
launch.

Names in capitals are compile-time constants.
"""

# Typed by Triton's compiler: to pyright `range` takes no block, and nothing has a type.
# pyright: basic, reportArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_util import Step

BLOCK, WARPS = 256, 4


@dataclass(frozen=True)
class Resampling:
    """Crops of N decoded images, ready to be resized, mirrored and normalised.

    `images` are uint8 [3, height, width] on the device; `table` is the `crop_table` of them; values
    are multiplied by `scale` and `shift` is added then, float32 of 3 elements; `out` is float32 [N,
    3, height, width]. It holds what the kernel reads: keep it until the kernel has run, if the
    memory of the images could be written to by another stream.

    The filter is torch's antialiased bilinear one, which is also Pillow's; but nothing is rounded
    to bytes between or after its passes.
    """

    images: Sequence[Tensor]
    table: Tensor
    scale: Tensor
    shift: Tensor
    out: Tensor

    @property
    def step(self) -> Step:
        """The kernel's launch."""
        height, width = self.out.shape[2:]
        last = self.out.stride(1) == 1
        args = (self.table, self.scale, self.shift, self.out, height, width, last, BLOCK)
        grid = (triton.cdiv(height * width, BLOCK), len(self.images))
        return Step(resample_images, grid, args, {"num_warps": WARPS})

    def launch(self) -> Tensor:
        """Queue the kernel on the current stream; returns `out`, float32 [N, 3, height, width]."""
        self.step.launch()
        return self.out


# ---------------------------------------------------------------- the kernel

# A thread makes an output pixel, all channels, both axes at once. Window and weights are those of
# torch's interpolate(mode="bilinear", antialias=True): a triangle round the output pixel's centre,
# of half-width max(1, input / output), cut off at the crop's edges, its weights made to add up to
# one.

# Of the table: the address of the crop's first pixel, bytes from it to the next channel, to the
# pixel below and to the pixel beside it, and the crop's height and width.
COLUMNS = tl.constexpr(6)


@triton.jit
def resample_images(
    table, scale, shift, out, H, W,
    CHANNELS_LAST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[n, c] = scale[c] * crop n resized to H x W + shift[c].

    table: int64 [N, COLUMNS]; scale, shift: float32 [3]; out: float32 [N, 3, H, W], in memory
    [N, H, W, 3] when CHANNELS_LAST. A program makes BLOCK pixels of one image, row by row.
    """
    image = tl.program_id(1).to(tl.int64)
    row = table + image * COLUMNS
    first = tl.load(row).to(tl.pointer_type(tl.uint8))
    plane = tl.load(row + 1)
    down, across = tl.load(row + 2).to(tl.int32), tl.load(row + 3).to(tl.int32)
    height, width = tl.load(row + 4).to(tl.int32), tl.load(row + 5).to(tl.int32)

    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    reach_y, reach_x = tl.maximum(height, H), tl.maximum(width, W)
    slope_y, slope_x = H / reach_y.to(tl.float32), W / reach_x.to(tl.float32)
    top, above = _first_tap(pixel // W, height, H, reach_y)
    left, before = _first_tap(pixel % W, width, W, reach_x)
    red = tl.zeros((BLOCK,), tl.float32)
    green = tl.zeros((BLOCK,), tl.float32)
    blue = tl.zeros((BLOCK,), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in range(0, tl.cdiv(2 * reach_y, H)):
        weight_y = _weight(above + i, slope_y, top + i < height)
        line = tl.minimum(top + i, height - 1) * down
        for j in range(0, tl.cdiv(2 * reach_x, W)):
            weight = weight_y * _weight(before + j, slope_x, left + j < width)
            at = line + tl.minimum(left + j, width - 1) * across
            red += weight * tl.load(first + at).to(tl.float32)
            green += weight * tl.load(first + plane + at).to(tl.float32)
            blue += weight * tl.load(first + 2 * plane + at).to(tl.float32)
            total += weight

    share = 1 / total
    step = 1 if CHANNELS_LAST else H * W
    at = out + image * 3 * H * W + pixel * (3 if CHANNELS_LAST else 1)
    inside = pixel < H * W
    tl.store(at, red * share * tl.load(scale) + tl.load(shift), inside)
    tl.store(at + step, green * share * tl.load(scale + 1) + tl.load(shift + 1), inside)
    tl.store(at + 2 * step, blue * share * tl.load(scale + 2) + tl.load(shift + 2), inside)


@triton.jit
def _first_tap(index, taps, size, reach):
    """The first tap under the triangle of an output index, and how far its middle lies from the
    triangle's.

    In whole halves of 1 / size of a tap, because a float32 cannot tell places some hundred taps
    along well enough. The triangle's half-width is reach / size, reach = max(taps, size).
    """
    centre = (2 * index + 1) * taps
    first = tl.maximum((centre - 2 * reach + size) // (2 * size), 0)
    return first, (2 * first * size + size - centre).to(tl.float32) / (2 * size)


@triton.jit
def _weight(distance, slope, inside):
    """The triangle's height this far from its middle; nothing beyond its foot and the crop."""
    return tl.where(inside, tl.maximum(1.0 - tl.abs(distance) * slope, 0.0), 0.0)
