"""Workers only read; the GPU decodes with nvJPEG, then crops, resizes, flips and normalises.

A thread launches decoding a batch or two ahead of the training, which does not wait for it on the
host once all buffers have their final size; until then the driver may block both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from importlib.util import find_spec
from typing import Generic, TypeVar, cast

import torch
from torch import Tensor

from e2e.data.loaders.jpeg_bytes import Encoded, pack
from e2e.data.loaders.nvjpeg import Decoder, Ready
from e2e.data.loaders.reading import none_left
from e2e.data.loaders.workers import Shuffled, Workers
from e2e.data.types import Files, Loader, LoadSpec, Source, laid_out

READY = 2  # batches on the device ahead of the one that is trained on
LAST_BATCH_S = 2.0  # that closing waits for a batch, at most, before it ends the workers
CLOSE_S = 60.0  # that closing waits for the thread's last batch, at most

Made = TypeVar("Made")


def missing(device: torch.device) -> str | None:
    """Why nothing can be decoded on this device, or None: it needs an NVIDIA GPU and Triton."""
    if device.type != "cuda" or torch.version.cuda is None:
        return "it decodes on an NVIDIA GPU"
    return None if find_spec("triton") else "it needs Triton"


def open_loader(source: Source, spec: LoadSpec) -> GpuDecoded:
    """The images and crops of back end torchvision in shuffled epochs, whatever the workers.

    Pixels differ by the decoder's and the resize's rounding. UserError if nvJPEG fails here.
    """
    assert isinstance(source, Files)
    return GpuDecoded(source, spec)


class GpuDecoded(Loader):
    """Batches that a thread makes on the device."""

    def __init__(self, files: Files, spec: LoadSpec) -> None:
        self._files, self._on_broken = files, spec.on_broken
        # With its index: torchvision makes a new decoder where "cuda" becomes "cuda:0".
        index = cast(int | None, spec.device.index)
        self._device = torch.device("cuda", torch.cuda.current_device() if index is None else index)
        encoded = Encoded(files.pictures, spec.cold)
        self._decoder = Decoder(encoded.by_pillow, spec, self._device)
        self._workers = Workers(
            encoded,
            spec,
            pinned=spec.pinned,
            batch_sampler=Shuffled(len(files.pictures), spec.batch, spec.seed, spec.share),
            collate_fn=pack,
        )
        self._batches = Ahead(self._make, READY)

    @property
    def queue_depth(self) -> int:
        """How many batches may be ready before they are fetched."""
        return self._workers.queue_depth + READY + 1

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the workers so far."""
        return self._workers.pids

    @property
    def idle_cpu_s(self) -> float:
        """CPU seconds of decoding so far: nvJPEG spins until the device is done."""
        return self._decoder.idle_cpu_s

    def __next__(self) -> Ready:
        """Wait until the next batch is launched; the device may still work on it.

        UserError for a broken image of strict data, or when all are broken.
        """
        ready = self._batches.get()
        self._on_broken(ready.broken)
        if not len(ready.labels):
            raise none_left(self._files)
        return ready

    def to_device(self, batch: Ready, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """The batch, float32 [N, 3, H, W] and int64 [N]; the current stream waits for it."""
        current = torch.cuda.current_stream(self._device)
        current.wait_event(batch.done)
        for part in (batch.images, batch.labels):
            part.record_stream(current)
        return laid_out(batch.images, channels_last), batch.labels

    def close(self) -> None:
        """End the thread, then the workers; these first if the thread waits for them too long."""
        self._batches.close(LAST_BATCH_S)
        self._workers.close()
        self._batches.close(CLOSE_S)
        self._decoder.close()

    def _make(self) -> Ready:
        with torch.cuda.device(self._device):  # where the workers' batches are pinned, too
            return self._decoder(next(self._workers))


class Ahead(Generic[Made]):
    """The results of calling `make` over and over in a thread, up to `ready` of them ahead.

    The thread starts with the first `get`, which raises what `make` raised for its result.
    """

    def __init__(self, make: Callable[[], Made], ready: int) -> None:
        self._make, self._ready = make, ready
        self._thread = ThreadPoolExecutor(1, "ahead")
        self._pending: deque[Future[Made]] = deque()

    def get(self) -> Made:
        """Wait for the next result. RuntimeError when closed."""
        while len(self._pending) <= self._ready:
            self._pending.append(self._thread.submit(self._make))
        return self._pending.popleft().result()

    def close(self, within_s: float) -> None:
        """End the thread after its current call, within `within_s` seconds.

        May be called again when that was too short.
        """
        self._thread.shutdown(wait=False, cancel_futures=True)
        wait([future for future in self._pending if not future.cancelled()], within_s)
