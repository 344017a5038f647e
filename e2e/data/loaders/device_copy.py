"""Copies batches of bytes to the device."""

from __future__ import annotations

import torch
from torch import Tensor

from e2e.data.types import Normal, laid_out


class Placer:
    """Copies images and classes to a device, and normalises them there; never waits.

    It copies uint8, a quarter of the float32 batch. On a GPU the copy runs on its own stream,
    beside the steps already launched, if the memory is pinned.
    """

    def __init__(self, device: torch.device, normal: Normal, channels_last: bool = False) -> None:
        self._device = device
        self._channels_last = channels_last
        self._scale, self._shift = normal.scale_and_shift(device)
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 [N, 3, H, W] and int64 [N] as float32 in the layout, and int64, on the device."""
        images, labels = self.copied(images, labels)
        images = laid_out(images, self._channels_last)
        return (images * self._scale).add_(self._shift), labels

    def copied(self, *tensors: Tensor) -> list[Tensor]:
        """The tensors on the device, for work that is launched after this call."""
        if self._copies is None:
            return list(tensors)
        with torch.cuda.stream(self._copies):
            copied = [tensor.to(self._device, non_blocking=True) for tensor in tensors]
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._copies)
        for tensor in copied:
            tensor.record_stream(current)
        return copied
