"""Launches the resample kernel for a batch of images, each in memory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import triton
from torch import Tensor

from kernels.resample.triton_kernels import resample_images
from kernels.triton_config import Step

BLOCK, WARPS = 256, 4


@dataclass(frozen=True)
class Resampling:
    """Crops of N decoded images, ready to be turned upright, resized, mirrored and normalised.

    `images` are uint8 [3, height, width], as they are stored, on the device; `table` is the
    `crop_table` of them; values are multiplied by `scale` and `shift` is added then, float32 of 3
    elements; `out` is float32 [N, 3, height, width]. It holds what the kernel reads: keep it until
    the kernel has run, if the memory of the images could be written to by another stream.

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
