"""Launches the kernel of resample for a batch of images, wherever each of them lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from kernels.resample.geometry import crop_table
from kernels.resample.triton_kernels import resample_images

BLOCK, WARPS = 256, 4


@dataclass(frozen=True)
class Resampling:
    """A batch that is ready to be resampled. It holds what the kernel reads: keep it until the
    kernel has run, if the memory of the images could be written to by another stream.
    """

    images: Sequence[Tensor]
    table: Tensor
    scale: Tensor
    shift: Tensor
    out: Tensor

    def launch(self) -> Tensor:
        """Queue the kernel on the current stream; what it will have filled."""
        _, _, height, width = self.out.shape
        grid = (triton.cdiv(height * width, BLOCK), len(self.images))
        kernel: Any = resample_images
        kernel[grid](*self._arguments(), num_warps=WARPS)
        return self.out

    def compile(self) -> object:
        """Compile without launching; the compiled kernel."""
        kernel: Any = resample_images
        return kernel.warmup(*self._arguments(), grid=(1,), num_warps=WARPS)

    def _arguments(self) -> tuple[object, ...]:
        height, width = self.out.shape[2:]
        last = self.out.stride(1) == 1
        return self.table, self.scale, self.shift, self.out, height, width, last, BLOCK


def prepare(
    images: Sequence[Tensor], boxes: Tensor, flips: Tensor, orientations: Tensor,
    size: tuple[int, int], scale: Tensor, shift: Tensor, channels_last: bool = False,
) -> Resampling:  # fmt: skip
    """Allocate the output of `resample` and copy its table to the device, without waiting."""
    assert images, "no images"
    device = scale.device
    assert all(image.dtype == torch.uint8 and image.is_contiguous() for image in images)
    table = crop_table(
        [image.data_ptr() for image in images],
        [(image.shape[1], image.shape[2]) for image in images],
        boxes, flips, orientations,
    )  # fmt: skip
    if device.type == "cuda":
        table = table.pin_memory().to(device, non_blocking=True)
    out = torch.empty(
        (len(images), 3, *size),
        dtype=torch.float32,
        device=device,
        memory_format=torch.channels_last if channels_last else torch.contiguous_format,
    )
    return Resampling(images, table, scale, shift, out)


def resample(
    images: Sequence[Tensor], boxes: Tensor, flips: Tensor, orientations: Tensor,
    size: tuple[int, int], scale: Tensor, shift: Tensor, channels_last: bool = False,
) -> Tensor:  # fmt: skip
    """Crops of decoded images, turned upright, resized, mirrored where asked, and normalised.

    `images` are N tensors, uint8 [3, height, width], as they are stored, on the device of `scale`
    and `shift`, float32 with 3 elements: what values are multiplied by, and what is added then. On
    the CPU are: `boxes`, int64 [N, 4], top, left, height, width of each crop in the upright image;
    `flips`, bool [N]; `orientations`, int64 [N], EXIF's 1 to 8. The result is float32
    [N, 3, *size]. One launch on the current stream, which nothing waits for.

    The filter is torch's antialiased bilinear one, which is also Pillow's; but nothing is rounded
    to bytes between or after its passes. ValueError for a box outside its image.
    """
    return prepare(images, boxes, flips, orientations, size, scale, shift, channels_last).launch()
