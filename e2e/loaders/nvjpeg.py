"""Batches of encoded images made into batches on the device, by nvJPEG and the resample kernel."""

from __future__ import annotations

import time
from collections.abc import Callable
from io import BytesIO
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from e2e.loaders.backend import Broken, Wanted
from e2e.loaders.decode import short
from e2e.loaders.draws import Draw
from e2e.loaders.nvjpeg_hardware import hardware_decoder
from e2e.loaders.packed import Packed, Rows, Sample, pack
from kernels.resample.resample import Resampling
from microbench.errors import UserError

TRIED, COLOUR = 64, (200, 40, 90)  # an image whose pixels are known
FIRST = -1  # priority of a stream: its kernels go before a training's that wait

Decode = Callable[[list[Tensor]], list[Tensor]]


class Ready(NamedTuple):
    """A batch that is on the device when `done` is: float32 [N, 3, H, W] and classes, int64 [N].

    N may be short; when it is 0, `images` says nothing.
    """

    images: Tensor
    labels: Tensor
    broken: list[Broken]
    done: torch.cuda.Event


class Decoder:
    """Decodes batches for one feed, on a stream of its own.

    `by_pillow` gives the pixels of an image that nvJPEG refuses, or of one that takes its place.
    By the hardware of a device that has it, on that stream; else by torchvision's op, of which
    `idle_cpu_s` are the processor seconds so far: it spins until the device is done. UserError when
    nvJPEG does not work on this device.
    """

    def __init__(
        self, by_pillow: Callable[[Draw], Sample], wanted: Wanted, device: torch.device
    ) -> None:
        self._by_pillow, self._device, self._size = by_pillow, device, wanted.size
        self._channels_last = wanted.channels_last
        self._scale, self._shift = wanted.normal.scale_and_shift(device)
        self._stream = torch.cuda.Stream(device, priority=FIRST)
        self._launched: tuple[Ready, object] | None = None
        self.idle_cpu_s = 0.0
        self._decode = self._working()

    def __call__(self, packed: Packed) -> Ready:
        """Wait until a batch is decoded, and launch the rest."""
        with torch.cuda.stream(self._stream):
            rows, images, broken = self._decoded(packed)
            labels = self._sent(torch.from_numpy(rows["label"].copy()))
            resampling = self._prepared(rows, images) if images else None
            cut = labels if resampling is None else resampling.launch()
            done = torch.cuda.Event(blocking=True)  # who waits for it on the host sleeps
            done.record()
        ready = Ready(cut, labels, [*packed.broken, *broken], done)
        self._hold(ready, (packed, resampling))
        return ready

    def _hold(self, ready: Ready, read: object) -> None:
        """Keep all that is being read alive, and let go of the batch before when it has run.

        Memory that is let go is this stream's again, and so that of torchvision's, which waits for
        none; and a worker's next batch may come where this one's bytes are.
        """
        before, self._launched = self._launched, (ready, read)
        if before is not None:
            before[0].done.synchronize()

    def _prepared(self, rows: Rows, images: list[Tensor]) -> Resampling:
        assert all(image.is_contiguous() for image in images)
        table = rows["crop"].copy()
        table[:, 0] += [image.data_ptr() for image in images]
        layout = torch.channels_last if self._channels_last else torch.contiguous_format
        out = torch.empty(
            (len(images), 3, *self._size),
            dtype=torch.float32,
            device=self._device,
            memory_format=layout,
        )
        table = self._sent(torch.from_numpy(table))
        return Resampling(images, table, self._scale, self._shift, out)

    def _decoded(self, packed: Packed) -> tuple[Rows, list[Tensor], list[Broken]]:
        """Rows, their images on the device, uint8 and each in one piece, and broken files."""
        rows, found = packed.rows(), self._tried(packed)
        images = [image for image in found if image is not None]
        if len(images) == len(found):
            return rows, images, []
        rows = rows.copy()
        broken: list[Broken] = []
        for at in (at for at, image in enumerate(found) if image is None):
            index, seed = rows["draw"][at].tolist()
            instead = pack([self._by_pillow((index, seed))])
            broken += instead.broken
            if instead.count:
                rows[at : at + 1] = instead.rows()
                found[at] = self._sent(*instead.contents())
        whole = [at for at, image in enumerate(found) if image is not None]
        return rows[whole], [image for image in found if image is not None], broken

    def _tried(self, packed: Packed) -> list[Tensor | None]:
        """Each image on the device, None where nvJPEG does not give what the file's header says."""
        rows, contents = packed.rows(), packed.contents()
        coded = rows["coded"].tolist()
        encoded = [content for content, so in zip(contents, coded, strict=True) if so]
        decoded = iter(each_decoded(encoded, self._decode))
        found = []
        for content, so, shape in zip(contents, coded, rows["shape"].tolist(), strict=True):
            image = next(decoded) if so else self._sent(content.view(shape))
            found.append(image if image is not None and list(image.shape) == shape else None)
        return found

    def _by_torchvision(self, encoded: list[Tensor]) -> list[Tensor]:
        began_s = time.thread_time()
        try:
            return list(decode_jpeg(encoded, ImageReadMode.RGB, self._device))
        except RuntimeError:
            # nvJPEG may still write to memory of the batch that it gave up.
            torch.cuda.synchronize(self._device)
            raise
        finally:
            self.idle_cpu_s += time.thread_time() - began_s

    def _sent(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def _working(self) -> Decode:
        """What decodes an image here: there may be no hardware for it, torchvision may have no
        nvJPEG, or the driver may lack it.
        """
        reason, written = "", BytesIO()
        Image.new("RGB", (TRIED, TRIED), COLOUR).save(written, "JPEG")
        encoded = torch.from_numpy(np.frombuffer(bytearray(written.getvalue()), np.uint8))
        for decode in (hardware_decoder(self._device), self._by_torchvision):
            if decode is None:
                continue
            try:
                image = decode([encoded])[0].cpu().permute(1, 2, 0)
            except RuntimeError as error:
                reason = short(error)
                continue
            if image.shape[:2] == (TRIED, TRIED) and (image - torch.tensor(COLOUR)).abs().max() < 8:
                return decode
            reason = "nvJPEG gives other pixels than it should"
        raise UserError(f"loader gpu-decode cannot run here: {reason}")


def each_decoded(encoded: list[Tensor], decode: Decode) -> list[Tensor | None]:
    """What `decode` gives of each; None where it raises RuntimeError.

    One that is refused spoils its whole batch, which is halved until that one stands alone.
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
