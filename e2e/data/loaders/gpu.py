"""Workers only read; nvimgcodec decodes, and torch crops, resizes, flips and normalises.

One thread decodes and another crops, on streams of their own, a batch or two ahead of the training.
nvimgcodec decodes on a CPU too.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset
from torchvision.transforms import v2  # pyright: ignore[reportMissingTypeStubs]

from e2e.data.loaders.decode import decode, none_left, short, upright_size
from e2e.data.loaders.images import seeded
from e2e.data.loaders.reading import read
from e2e.data.loaders.workers import Draw, Shuffled, Workers
from e2e.data.types import Broken, Files, Loader, LoadSpec, Picture, Source, laid_out

READY = 2  # batches on the device ahead of the one that is trained on
FIRST = -1  # priority of a stream: its kernels go before a training's that wait
LAST_BATCH_S = 2.0  # that closing waits for a batch, at most, before it ends the workers
CLOSE_S = 60.0  # that closing waits for a thread's last batch, at most
USUAL_BYTES = 110_000  # of a file
MIRRORED = 0.5  # of the images, as v2.RandomHorizontalFlip has it
JPEG, END_OF_JPEG, TAIL_BYTES = b"\xff\xd8", b"\xff\xd9", 64

Made = TypeVar("Made")
Crop = tuple[int, int, int, int, bool]  # top, left, height, width; whether it is mirrored then


def missing(device: torch.device) -> str | None:
    """Why it cannot run, or None: nvimgcodec is not installed."""
    if find_spec("nvidia") is None or find_spec("nvidia.nvimgcodec") is None:
        return "nvimgcodec is not installed; pip install 'halfway[nvimgcodec]'"
    return None


def open_loader(source: Source, spec: LoadSpec) -> NvImageCodec:
    """The images and crops of back end torchvision in shuffled epochs, whatever the workers.

    Pixels differ by the decoder's rounding, and by the resize's, which does not round to bytes.
    """
    assert isinstance(source, Files)
    return NvImageCodec(source, spec)


class Item(NamedTuple):
    """A file: its number in the source, its bytes, (height, width) upright by its header."""

    number: int
    length: int
    size: tuple[int, int]
    crop: Crop


class Encoded(NamedTuple):
    """The files of a batch, one after another in uint8 [bytes]; broken ones are not there."""

    content: Tensor
    items: list[Item]
    broken: list[Broken]


class Decoded(NamedTuple):
    """Images, uint8 [height, width, 3], there once the event is; None for one that is broken."""

    images: list[Tensor | None]
    encoded: Encoded
    done: torch.cuda.Event | None


class Ready(NamedTuple):
    """float32 [N, 3, H, W] and classes, int64 [N], there once the event is.

    N is 0 where no image could be decoded.
    """

    images: Tensor
    labels: Tensor
    broken: list[Broken]
    done: torch.cuda.Event | None


class _Files(Dataset[Any]):
    """Batches of files, read but not decoded. The next good one replaces a broken one."""

    def __init__(self, pictures: Sequence[Picture], spec: LoadSpec) -> None:
        self._pictures, self._cold = pictures, spec.cold
        self._crop = v2.RandomResizedCrop(spec.size)

    def __getitems__(self, draws: list[Draw]) -> Encoded:
        contents: list[bytes] = []
        items: list[Item] = []
        broken: list[Broken] = []
        for first, seed in draws:
            for number in range(first, first + len(self._pictures)):
                number %= len(self._pictures)
                path = self._pictures[number].path
                try:
                    content, size = self._read(path)
                except Exception as error:  # anything may be raised for a broken file
                    broken.append((path, short(error)))
                    continue
                contents.append(content)
                items.append(Item(number, len(content), size, seeded(self._drawn, size, seed)))
                break
        # A tensor goes through shared memory; none can be made of no bytes.
        content = torch.frombuffer(bytearray(b"".join(contents) or b"-"), dtype=torch.uint8)
        return Encoded(content, items, broken)

    def _read(self, path: str) -> tuple[bytes, tuple[int, int]]:
        content = read(path, self._cold)
        with warnings.catch_warnings(action="ignore"):
            size = upright_size(content)
        if content.startswith(JPEG) and END_OF_JPEG not in content[-TAIL_BYTES:]:
            decode(content)  # raises if it is cut short, which a GPU may not notice
        return content, size

    def _drawn(self, size: tuple[int, int]) -> Crop:
        """The crop that torchvision's transforms draw for an image of this size."""
        box = self._crop.make_params([torch.empty(1).expand(3, *size)])
        mirrored = torch.rand(1).item() < MIRRORED
        return box["top"], box["left"], box["height"], box["width"], mirrored


class NvImageCodec(Loader):
    """Batches that one thread decodes and another crops."""

    def __init__(self, files: Files, spec: LoadSpec) -> None:
        self._files, self._spec, self._device = files, spec, spec.device
        self._scale, self._shift = spec.normal.scale_and_shift(spec.device)
        self._workers = Workers(
            _Files(files.pictures, spec),
            spec,
            batch_bytes=spec.batch * USUAL_BYTES,
            batch_sampler=Shuffled(len(files.pictures), spec.batch, spec.seed, spec.share),
            collate_fn=_as_made,
        )
        os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")  # what is broken is told in one line
        self._codec: Any = import_module("nvidia.nvimgcodec")
        self._streams: list[torch.cuda.Stream | None] = [None, None]
        if spec.device.type == "cuda":
            self._decoder: Any = self._codec.Decoder(device_id=self._scale.device.index)
            self._streams = [torch.cuda.Stream(spec.device, priority=FIRST) for _ in range(2)]
        else:
            self._decoder = self._codec.Decoder(
                device_id=self._codec.NVIMGCODEC_DEVICE_CPU_ONLY,
                backends=[self._codec.Backend(self._codec.CPU_ONLY)],
            )
        self._in_use: tuple[Ready, Decoded] | None = None
        self._decoded = Ahead(self._decode, 1)
        self._batches = Ahead(self._crop, READY)

    @property
    def ahead(self) -> int:
        """How many batches may be ready before they are fetched."""
        return self._spec.ahead + READY + 2

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the workers so far."""
        return self._workers.pids

    def __next__(self) -> Ready:
        """Wait until the next batch is launched; the device may still work on it.

        UserError for a broken image of strict data, or when all are broken.
        """
        ready = self._batches.get()
        self._spec.tell(ready.broken)
        if not len(ready.labels):
            raise none_left(self._files)
        return ready

    def to_device(self, batch: Ready, channels_last: bool = False) -> tuple[Tensor, Tensor]:
        """The batch, float32 [N, 3, H, W] and int64 [N]; the current stream waits for it."""
        if batch.done is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(batch.done)
            batch.images.record_stream(current)
            batch.labels.record_stream(current)
        return laid_out(batch.images, channels_last), batch.labels

    def close(self) -> None:
        """End the threads and the workers; these first if a thread waits for them too long."""
        self._decoded.close(LAST_BATCH_S)
        self._workers.close()
        self._decoded.close(CLOSE_S)
        self._batches.close(CLOSE_S)

    def _decode(self) -> Decoded:
        encoded: Encoded = next(self._workers)
        stream = self._streams[0]
        with torch.cuda.stream(stream):
            at, sources = 0, list[Any]()
            for item in encoded.items:
                content = encoded.content[at : at + item.length]
                sources.append(self._codec.CodeStream(content.numpy()))
                at += item.length
            number = stream.cuda_stream if stream else 0
            found: list[Any] = self._decoder.decode(sources, cuda_stream=number) if sources else []
            images = [None if image is None else self._tensor(image) for image in found]
            return Decoded(images, encoded, _event(stream))

    def _tensor(self, image: Any) -> Tensor:
        """uint8 [height, width, 3], in the decoder's memory."""
        if self._device.type == "cuda":
            return torch.from_dlpack(image)
        return torch.as_tensor(np.asarray(image))

    def _crop(self) -> Ready:
        decoded = self._decoded.get()
        items, broken = decoded.encoded.items, [*decoded.encoded.broken]
        good: list[tuple[Tensor, Item]] = []
        for image, item in zip(decoded.images, items, strict=True):
            if image is not None and (*image.shape,) == (*item.size, 3):
                good.append((image, item))
            else:
                broken.append((self._files.pictures[item.number].path, "cannot be decoded"))
        # Other images of the batch take the places of broken ones.
        chosen = (good * len(items))[: len(items)]
        stream = self._streams[1]
        with torch.cuda.stream(stream):
            if stream and decoded.done:
                stream.wait_event(decoded.done)
            ready = Ready(*self._made(chosen), broken, _event(stream))
        # What the stream still reads is kept until it has run.
        before, self._in_use = self._in_use, (ready, decoded)
        if before and before[0].done:
            before[0].done.synchronize()
        return ready

    def _made(self, chosen: Sequence[tuple[Tensor, Item]]) -> tuple[Tensor, Tensor]:
        """The images cropped, resized, flipped and normalised, and their classes."""
        numbers = [self._files.pictures[item.number].label for _, item in chosen]
        labels = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        mirrored = [item.crop[-1] for _, item in chosen]
        flips = torch.tensor(mirrored, dtype=torch.bool, device=self._device)
        crops = [torch.empty(0, 3, *self._spec.size, device=self._device)]
        for image, item in chosen:
            top, left, height, width, _ = item.crop
            crop = image[top : top + height, left : left + width].permute(2, 0, 1)[None].float()
            crops.append(interpolate(crop, self._spec.size, mode="bilinear", antialias=True))
        images = torch.cat(crops)
        images = torch.where(flips[:, None, None, None], images.flip(3), images)
        return laid_out(images, channels_last=True).mul(self._scale).add_(self._shift), labels


def _as_made(batch: Encoded) -> Encoded:
    return batch


def _event(stream: torch.cuda.Stream | None) -> torch.cuda.Event | None:
    """An event on a stream, if there is one; waiting for it on the host sleeps."""
    if stream is None:
        return None
    event = torch.cuda.Event(blocking=True)
    event.record(stream)
    return event


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
        wait([one for one in self._pending if not one.cancelled()], within_s)
