"""Copies batches to the device: a loader's, or at each step one that is always the same."""

from __future__ import annotations

import torch
from torch import Tensor

from e2e.data.types import IMAGENET, Loader, Normal, laid_out


class Placer:
    """Copies images and classes to a device, and normalises them there; never waits.

    It copies uint8, a quarter of the float32 batch. On a GPU the copy runs on its own stream,
    beside the steps already launched, if the memory is pinned.
    """

    def __init__(self, device: torch.device, normal: Normal) -> None:
        self._device = device
        self._scale, self._shift = normal.scale_and_shift(device)
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(
        self, images: Tensor, labels: Tensor, channels_last: bool = False
    ) -> tuple[Tensor, Tensor]:
        """uint8 [N, 3, H, W] and int64 [N] as float32 in the layout, and int64, on the device."""
        images, labels = self.copied(images, labels)
        images = laid_out(images, channels_last)
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


class FixedBatch(Loader):
    """One batch that stays on the device: the same two tensors each time; nothing is copied."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self._inputs, self._targets = inputs, targets

    def to_device(self, batch: object, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """The batch; images are brought into the memory format the first time, and stay in it."""
        if channels_last and self._inputs.dim() == 4:
            self._inputs = laid_out(self._inputs, channels_last)
        return self._inputs, self._targets


class PinnedBatch(Loader):
    """One batch in pinned memory (on a CPU plain memory, without a copy), copied at each step.

    Images, uint8 [N, 3, H, W], are normalised on the device; other inputs are taken as they are.
    """

    def __init__(self, inputs: Tensor, targets: Tensor, device: torch.device) -> None:
        different = (inputs,) if inputs is targets else (inputs, targets)
        self._batch = [part.pin_memory() if device.type == "cuda" else part for part in different]
        self._placer = Placer(device, IMAGENET)

    def to_device(self, batch: object, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """Copy the batch to the device, without waiting, and normalise it there."""
        if self._batch[0].dtype == torch.uint8:
            return self._placer(*self._batch, channels_last=channels_last)
        copied = self._placer.copied(*self._batch)
        return copied[0], copied[-1]  # tokens are their own targets
