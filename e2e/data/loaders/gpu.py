"""Workers only read; nvimgcodec decodes, and torch crops, resizes, flips and normalises.

On a GPU one thread decodes and another crops, a batch or two ahead of the training. nvimgcodec
decodes on a CPU too.
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
JPEG, END_OF_JPEG, TAIL_BYTES = b"\xff\xd8", b"\xff\xd9", 64
MIRRORED = 0.5  # of the images, as v2.RandomHorizontalFlip has it

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


class Encoded(NamedTuple):
    """The files of a batch, one after another in uint8 [bytes], and what is to be done with each.

    `sizes` are (height, width) upright, by their headers; `numbers` those in the source. Broken
    ones are not there.
    """

    content: Tensor
    lengths: list[int]
    sizes: list[tuple[int, int]]
    crops: list[Crop]
    numbers: list[int]
    broken: list[Broken]


class Decoded(NamedTuple):
    """Images, uint8 [height, width, 3] each, on the device once `done`; None for a broken one."""

    images: list[Tensor | None]
    encoded: Encoded
    done: torch.cuda.Event | None


class Ready(NamedTuple):
    """A batch that is complete when `done` is: float32 [N, 3, H, W] and classes, int64 [N].

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
        contents, found = [b"\0"], Encoded(torch.empty(0), [1], [], [], [], [])
        for first, seed in draws:
            for number in range(first, first + len(self._pictures)):
                path = self._pictures[number % len(self._pictures)].path
                try:
                    content = read(path, self._cold)
                    with warnings.catch_warnings(action="ignore"):
                        size = upright_size(content)
                    if content.startswith(JPEG) and END_OF_JPEG not in content[-TAIL_BYTES:]:
                        decode(content)  # raises if it is cut short; a GPU may not notice
                except Exception as error:  # anything may be raised for a broken file
                    found.broken.append((path, short(error)))
                    continue
                contents.append(content)
                found.lengths.append(len(content))
                found.sizes.append(size)
                found.crops.append(seeded(self._drawn, size, seed))
                found.numbers.append(number % len(self._pictures))
                break
        content = torch.frombuffer(bytearray().join(contents), dtype=torch.uint8)
        return found._replace(content=content)

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
        self._decoding = self._cropping = None
        if spec.device.type == "cuda":
            index = torch.empty(0, device=spec.device).device.index
            self._decoder: Any = self._codec.Decoder(device_id=index)
            self._decoding, self._cropping = (
                torch.cuda.Stream(spec.device, priority=FIRST) for _ in range(2)
            )
        else:
            self._decoder = self._codec.Decoder(
                device_id=self._codec.NVIMGCODEC_DEVICE_CPU_ONLY,
                backends=[self._codec.Backend(self._codec.CPU_ONLY)],
            )
        self._reads: tuple[Ready, Decoded] | None = None
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
            for part in (batch.images, batch.labels):
                part.record_stream(current)
        return laid_out(batch.images, channels_last), batch.labels

    def close(self) -> None:
        """End the threads and the workers; these first if a thread waits for them too long."""
        self._decoded.close(LAST_BATCH_S)
        self._workers.close()
        self._decoded.close(CLOSE_S)
        self._batches.close(CLOSE_S)

    def _decode(self) -> Decoded:
        encoded: Encoded = next(self._workers)
        contents = torch.split(encoded.content, encoded.lengths)[1:]
        with torch.cuda.stream(self._decoding):
            found = self._decoder.decode(
                [self._codec.CodeStream(content.numpy()) for content in contents],
                cuda_stream=self._decoding.cuda_stream if self._decoding else 0,
            )
            images = [image and self._as_tensor(image) for image in found]
            return Decoded(images, encoded, _event(self._decoding))

    def _as_tensor(self, image: Any) -> Tensor:
        """uint8 [height, width, 3], in the decoder's memory."""
        if self._device.type == "cuda":
            return torch.from_dlpack(image)
        return torch.as_tensor(np.asarray(image))

    def _crop(self) -> Ready:
        decoded = self._decoded.get()
        encoded, broken = decoded.encoded, [*decoded.encoded.broken]
        good: list[int] = []
        for at, image in enumerate(decoded.images):
            if image is not None and (*image.shape,) == (*encoded.sizes[at], 3):
                good.append(at)
            else:
                path = self._files.pictures[encoded.numbers[at]].path
                broken.append((path, "cannot be decoded"))
        # Other images of the batch take the places of broken ones.
        chosen = (good * len(decoded.images))[: len(decoded.images)]
        with torch.cuda.stream(self._cropping):
            if self._cropping and decoded.done:
                self._cropping.wait_event(decoded.done)
            ready = Ready(*self._made(decoded, chosen), broken, _event(self._cropping))
        # What the stream still reads is kept until it has run.
        before, self._reads = self._reads, (ready, decoded)
        if before and before[0].done:
            before[0].done.synchronize()
        return ready

    def _made(self, decoded: Decoded, chosen: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The images at these places, cropped, resized and normalised, and their classes."""
        encoded = decoded.encoded
        labels = [self._files.pictures[encoded.numbers[at]].label for at in chosen]
        mirrored = [encoded.crops[at][-1] for at in chosen]
        crops: list[Tensor] = []
        for at in chosen:
            (top, left, height, width, _), image = encoded.crops[at], decoded.images[at]
            assert image is not None
            crop = image[top : top + height, left : left + width].permute(2, 0, 1)[None].float()
            crops.append(interpolate(crop, self._spec.size, mode="bilinear", antialias=True))
        images = torch.cat(crops) if crops else torch.empty(0, 3, *self._spec.size)
        flips = torch.tensor(mirrored, dtype=torch.bool, device=self._device)
        images = torch.where(flips[:, None, None, None], images.flip(3), images)
        images = laid_out(images, channels_last=True)
        labels = torch.tensor(labels, dtype=torch.int64, device=self._device)
        return (images * self._scale).add_(self._shift), labels


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
