"""Copies batches to the device: a loader's, or at each step one that is always the same.

The latter is the cost of the copy: alone, or while a loader runs whose batches are discarded.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from torch import Tensor

from e2e.data.types import IMAGENET, Loader, Normal, laid_out

LAST_BATCH_S = 10.0  # at most that closing waits for a batch
NOTICED_S = 10.0  # at most until a thread that waits for workers knows that they were ended


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


class Contended(Loader):
    """A pinned batch, beside a loader whose batches are discarded.

    From `start` on, a thread takes the batches of `busy` as fast as they come and discards them;
    `arrivals_s` are their times, in seconds by the monotonic clock.
    """

    def __init__(self, pinned: Loader, busy: Loader) -> None:
        self._pinned, self._busy = pinned, busy
        self._ending = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._drain, name="drain", daemon=True)
        self.arrivals_s: list[float] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the workers so far."""
        return self._busy.pids

    def start(self) -> None:
        """Wait for the first batch of `busy`, then start the thread for the others; only once.

        Workers are forked meanwhile, so call it from the training thread: a lock that this thread
        held during a fork from another thread would stay locked in the workers. Raises what
        loading raises.
        """
        if self._thread.ident is not None:
            return
        self._discard_one()
        self._thread.start()

    def __next__(self) -> None:
        """Return at once. Raises what loading the discarded batches raised."""
        if self._error is not None:
            raise self._error

    def to_device(self, batch: Any, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """The pinned batch on the device."""
        return self._pinned.to_device(batch, channels_last)

    def close(self) -> None:
        """End the thread and the loader, after at most LAST_BATCH_S for a pending batch."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(LAST_BATCH_S)
        self._busy.close()
        if self._thread.ident is not None:
            self._thread.join(NOTICED_S)

    def _drain(self) -> None:
        try:
            while not self._ending.is_set():
                self._discard_one()
        except Exception as error:
            self._error = error

    def _discard_one(self) -> None:
        next(self._busy)
        self.arrivals_s.append(time.perf_counter())
