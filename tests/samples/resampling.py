"""Batches resampled by the kernel, and what it must compute, by dense weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from e2e.data.loaders.jpeg_bytes import crop_table
from e2e.data.loaders.resample import Resampling


def prepare(
    images: Sequence[Tensor], boxes: Tensor, flips: Tensor, size: tuple[int, int],
    scale: Tensor, shift: Tensor, channels_last: bool = False,
) -> Resampling:  # fmt: skip
    """The output allocated, and the table copied to the device without waiting."""
    device = scale.device
    sizes = [(image.shape[1], image.shape[2]) for image in images]
    table = crop_table([image.data_ptr() for image in images], sizes, boxes, flips)
    if device.type == "cuda":
        table = table.pin_memory().to(device, non_blocking=True)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    out = torch.empty((len(images), 3, *size), device=device, memory_format=layout)
    return Resampling(images, table, scale, shift, out)


def reference(
    images: Sequence[Tensor], boxes: Tensor, flips: Tensor, size: tuple[int, int],
    scale: Tensor, shift: Tensor,
) -> Tensor:  # fmt: skip
    """What `prepare(...).launch()` gives, on the CPU: float64 [N, 3, *size]."""
    crops = []
    for image, box, flip in zip(images, boxes, flips, strict=True):
        top, left, height, width = box.tolist()
        pixels = image.cpu().numpy().astype(np.float64)
        crop = pixels[:, top : top + height, left : left + width]
        resized = _weights(height, size[0]) @ crop @ _weights(width, size[1]).T
        crops.append(resized[:, :, ::-1] if flip else resized)
    batch = torch.from_numpy(np.stack(crops))
    factor, offset = (value.cpu().double().reshape(1, 3, 1, 1) for value in (scale, shift))
    return batch * factor + offset


def _weights(taps: int, size: int) -> NDArray[np.float64]:
    """[size, taps]: the triangle of each output index at the middle of each tap, adding up to 1."""
    ratio = taps / size
    centres = (np.arange(size)[:, None] + 0.5) * ratio
    distances = np.abs(np.arange(taps)[None, :] + 0.5 - centres)
    heights = np.maximum(1 - distances / max(1.0, ratio), 0)
    return heights / heights.sum(axis=1, keepdims=True)
