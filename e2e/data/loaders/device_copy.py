"""Copies batches to the device: a loader's, or at each step one that is preloaded.

The latter is the cost of the copy: alone, or while a loader runs whose batches are discarded.
"""

from __future__ import annotations

import threading
import time

import torch
from torch import Tensor

from e2e.data.types import IMAGENET, LoaderFeed, Normal, ReadyFeed, laid_out


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


LAST_BATCH_S = 10.0  # at most that closing waits for a batch
NOTICED_S = 10.0  # at most until a thread that waits for workers knows that they were ended


class PinnedFeed(ReadyFeed):
    """A `LoaderFeed` of one batch in pinned memory (on a CPU plain memory, without a copy).

    Images, uint8 [N, 3, H, W], are normalised on the device; other inputs are taken as they are.
    """

    def __init__(
        self, batch: tuple[Tensor, Tensor], device: torch.device, channels_last: bool = False
    ) -> None:
        different = batch[:1] if batch[0] is batch[1] else batch
        self._batch = [one.pin_memory() if device.type == "cuda" else one for one in different]
        self._placer = Placer(device, IMAGENET, channels_last)

    def place(self, fetched: object) -> tuple[Tensor, Tensor]:
        """Copy the batch to the device, without waiting, and normalise it there."""
        assert self._batch, "closed"
        if self._batch[0].dtype == torch.uint8:
            return self._placer(*self._batch)
        copied = self._placer.copied(*self._batch)
        return copied[0], copied[-1]  # tokens are their own targets

    def close(self) -> None:
        """Release the batch."""
        self._batch = []


class CachedFeed:
    """A `LoaderFeed` of a pinned batch, beside a loader whose batches are discarded.

    From `start` on, a thread fetches the batches of `busy` as fast as they come and discards them;
    `came_s` are their times, in seconds by the monotonic clock.
    """

    ahead = 0

    def __init__(self, pinned: LoaderFeed, busy: LoaderFeed) -> None:
        self._pinned, self._busy = pinned, busy
        self._ending = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._drain, name="drain", daemon=True)
        self.came_s: list[float] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the workers so far."""
        return self._busy.pids

    @property
    def idle_cpu_s(self) -> float:
        """CPU seconds in which threads of `busy` only waited for the device."""
        return self._busy.idle_cpu_s

    def start(self) -> None:
        """Wait for the first batch of `busy`, then start the thread for the others; only once.

        Workers are forked meanwhile, so call it from the training thread: a lock that this thread
        held during a fork from another thread would stay locked in the workers. Raises what
        fetching raises.
        """
        if self._thread.ident is not None:
            return
        self._discard_one()
        self._thread.start()

    def fetch(self) -> None:
        """Return at once. Raises what fetching the discarded batches raised."""
        if self._error is not None:
            raise self._error

    def place(self, fetched: object) -> tuple[Tensor, Tensor]:
        """The pinned batch on the device."""
        return self._pinned.place(fetched)

    def close(self) -> None:
        """End the thread and both feeds, after at most LAST_BATCH_S seconds for a pending batch."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(LAST_BATCH_S)
        self._busy.close()
        if self._thread.ident is not None:
            self._thread.join(NOTICED_S)
        self._pinned.close()

    def _drain(self) -> None:
        try:
            while not self._ending.is_set():
                self._discard_one()
        except Exception as error:
            self._error = error

    def _discard_one(self) -> None:
        self._busy.fetch()
        self.came_s.append(time.perf_counter())
