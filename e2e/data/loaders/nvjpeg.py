"""Decodes batches of encoded images on the device, by nvJPEG and the resample kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BytesIO
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from e2e.data.loaders.jpeg_bytes import EncodedSample, Packed, Rows, pack
from e2e.data.loaders.nvjpeg_hardware import HardwareDecoder, NvjpegError, hardware_decoder
from e2e.data.loaders.reading import short
from e2e.data.loaders.resample import Resampling
from e2e.data.loaders.workers import SeededIndex
from e2e.data.types import Broken, LoadSpec
from microbench.errors import UserError

TRIED, COLOUR = ((64, 64), (131, 77), (90, 203)), (200, 40, 90)  # images whose pixels are known
FIRST = -1  # priority of a stream: its kernels go before a training's that wait

Decode = Callable[[list[Tensor]], Sequence[Tensor | None]]


class Ready(NamedTuple):
    """A batch that is complete when `done` is: float32 [N, 3, H, W] and classes, int64 [N].

    N may be short; when it is 0, `images` has no meaning.
    """

    images: Tensor
    labels: Tensor
    broken: list[Broken]
    done: torch.cuda.Event


class Decoder:
    """Decodes batches for one feed, on its own stream, by the GPU's decoder of JPEGs.

    `by_pillow` returns the pixels of an image that it refuses, or of its replacement. UserError if
    it does not work on this device.
    """

    def __init__(
        self,
        by_pillow: Callable[[SeededIndex], EncodedSample],
        spec: LoadSpec,
        device: torch.device,
    ) -> None:
        self._by_pillow, self._device, self._size = by_pillow, device, spec.size
        self._scale, self._shift = spec.normal.scale_and_shift(device)
        self._stream = torch.cuda.Stream(device, priority=FIRST)
        self._launched: tuple[Ready, object] | None = None
        self._hardware = _working(device)

    @property
    def idle_cpu_s(self) -> float:
        """CPU seconds of waiting for the device so far: nvJPEG spins until it is done."""
        return self._hardware.idle_cpu_s

    def close(self) -> None:
        """Wait for the last batch, and return what the next decoder can use."""
        with suppress(RuntimeError):  # of a device that is of no more use
            self._stream.synchronize()
            self._hardware.close()
        self._launched = None

    def __call__(self, packed: Packed) -> Ready:
        """Launch all that makes a batch, once the one before is done."""
        with torch.cuda.stream(self._stream):
            rows, images, broken = self._decoded(packed)
            labels = self._sent(torch.as_tensor(rows["label"].copy()))
            resampling = self._prepared(rows, images) if images else None
            cut = labels if resampling is None else resampling.launch()
            done = torch.cuda.Event(blocking=True)  # waiting for it on the host sleeps
            done.record()
        ready = Ready(cut, labels, [*packed.broken, *broken], done)
        self._hold(ready, (packed, resampling))
        return ready

    def _hold(self, ready: Ready, read: object) -> None:
        """Keep alive what the stream still reads, and release the previous batch once it has run.

        Released memory may be reused by this stream; a worker's next batch may overwrite this one's
        bytes.
        """
        before, self._launched = self._launched, (ready, read)
        if before is not None:
            before[0].done.synchronize()

    def _prepared(self, rows: Rows, images: list[Tensor]) -> Resampling:
        assert all(image.is_contiguous() for image in images)
        table = rows["crop"].copy()
        table[:, 0] += [image.data_ptr() for image in images]
        out = torch.empty(
            (len(images), 3, *self._size),
            dtype=torch.float32,
            device=self._device,
            memory_format=torch.channels_last,
        )
        table = self._sent(torch.as_tensor(table))
        return Resampling(images, table, self._scale, self._shift, out)

    def _decoded(self, packed: Packed) -> tuple[Rows, list[Tensor], list[Broken]]:
        """Rows, their images on the device, uint8 and each in one piece, and broken files."""
        rows, images_or_none = packed.rows(), self._tried(packed)
        images = [image for image in images_or_none if image is not None]
        if len(images) == len(images_or_none):
            return rows, images, []
        rows = rows.copy()
        broken: list[Broken] = []
        for at in (at for at, image in enumerate(images_or_none) if image is None):
            index, seed = rows["draw"][at].tolist()
            instead = pack([self._by_pillow((index, seed))])
            broken += instead.broken
            if instead.count:
                rows[at : at + 1] = instead.rows()
                images_or_none[at] = self._sent(*instead.contents())
        whole = [at for at, image in enumerate(images_or_none) if image is not None]
        return rows[whole], [image for image in images_or_none if image is not None], broken

    def _tried(self, packed: Packed) -> list[Tensor | None]:
        """Each image on the device, None where nvJPEG does not give what the file's header says."""
        rows, contents = packed.rows(), packed.contents()
        coded = rows["coded"].tolist()
        files = [part for part, so in zip(contents, coded, strict=True) if so]
        decoded = iter(each_decoded(files, self._hardware))
        images: list[Tensor | None] = []
        for content, so, shape in zip(contents, coded, rows["shape"].tolist(), strict=True):
            image = next(decoded) if so else self._sent(content.view(shape))
            images.append(image if image is not None and list(image.shape) == shape else None)
        return images

    def _sent(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory().to(self._device, non_blocking=True)


def _working(device: torch.device) -> HardwareDecoder:
    """The device's decoder. UserError where there is none, or where it does not work."""
    hardware = hardware_decoder(device)
    reason = "this GPU has no decoder of JPEGs that nvJPEG finds, as A100, H100 and later have"
    if hardware is not None:
        wrong = why_not(hardware)
        if wrong is None:
            return hardware
        hardware.close()
        reason = wrong
    raise UserError(f"--loader gpu-decode cannot run here: {reason}")


def why_not(decode: Decode) -> str | None:
    """What is wrong with a decoder, by decoding images with known pixels; None if nothing is."""
    images = [Image.new("RGB", size, COLOUR) for size in TRIED]
    for image in images:
        image.paste((20, 200, 120), (0, 0, image.width // 2, image.height // 3))
    images[-1] = images[-1].convert("L")
    encoded: list[Tensor] = []
    for image in images:
        written = BytesIO()
        image.save(written, "JPEG", quality=95)
        encoded.append(torch.as_tensor(np.frombuffer(bytearray(written.getvalue()), np.uint8)))
    try:
        decoded = decode(encoded)
        for image, decoded_image in zip(images, decoded, strict=True):
            expected = torch.as_tensor(np.array(image.convert("RGB")))
            if decoded_image is None:
                return "nvJPEG refuses a plain image"
            pixels = decoded_image.cpu().permute(1, 2, 0).to(torch.int64)
            if pixels.shape != expected.shape or (pixels - expected).abs().float().mean() > 6:
                return "nvJPEG gives other pixels than it should"
    except (RuntimeError, NvjpegError) as error:
        return short(error)
    return None


def each_decoded(encoded: list[Tensor], decode: Decode) -> list[Tensor | None]:
    """The result of `decode` for each image; None where it returns none or raises RuntimeError.

    A refused image fails its whole batch, which is halved until that image is alone. An
    out-of-memory error is raised.
    """
    if not encoded:
        return []
    try:
        return list(decode(encoded))
    except RuntimeError as error:
        if "out of memory" in str(error):
            raise
    if len(encoded) == 1:
        return [None]
    half = len(encoded) // 2
    return [*each_decoded(encoded[:half], decode), *each_decoded(encoded[half:], decode)]
