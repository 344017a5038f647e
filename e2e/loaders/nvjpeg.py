"""Batches of encoded images made into batches on the device, by nvJPEG and the resample kernel."""

from __future__ import annotations

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
from e2e.loaders.encoded import Item, Packed, Sample, pack
from kernels.resample.resample import Resampling, prepare
from microbench.errors import UserError

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
    UserError when nvJPEG does not work on this device.
    """

    def __init__(
        self, by_pillow: Callable[[Draw], Sample], wanted: Wanted, device: torch.device
    ) -> None:
        self._by_pillow, self._device, self._size = by_pillow, device, wanted.size
        self._channels_last = wanted.channels_last
        self._scale, self._shift = wanted.normal.scale_and_shift(device)
        self._stream = torch.cuda.Stream(device, priority=FIRST)
        self._launched: tuple[Ready, Resampling] | None = None
        self._try()

    def __call__(self, packed: Packed) -> Ready:
        """Wait until a batch is decoded, and launch the rest."""
        with torch.cuda.stream(self._stream):
            items, images, broken = self._decoded(packed)
            labels = self._sent(torch.tensor([item.label for item in items], dtype=torch.int64))
            resampling = self._prepared(items, images) if items else None
            cut = labels if resampling is None else resampling.launch()
            done = torch.cuda.Event(blocking=True)  # who waits for it on the host sleeps
            done.record()
        ready = Ready(cut, labels, [*packed.broken, *broken], done)
        self._hold(ready, resampling)
        return ready

    def _hold(self, ready: Ready, resampling: Resampling | None) -> None:
        """Keep all that was just launched alive, and let go of the batch before when it has run.

        Memory that is let go is this stream's again, and so nvJPEG's, whose stream waits for none.
        """
        before, self._launched = self._launched, (ready, resampling) if resampling else None
        if before is not None:
            before[0].done.synchronize()

    def _prepared(self, items: list[Item], images: list[Tensor]) -> Resampling:
        return prepare(
            images,
            torch.tensor([item.box for item in items]),
            torch.tensor([item.flip for item in items]),
            torch.tensor([item.orientation for item in items]),
            self._size, self._scale, self._shift, self._channels_last,
        )  # fmt: skip

    def _decoded(self, packed: Packed) -> tuple[list[Item], list[Tensor], list[Broken]]:
        """Images on the device, with items that say how to cut them, and broken files."""
        contents = list(zip(packed.items, packed.contents(), strict=True))
        coded = [content for item, content in contents if item.coded]
        found = iter(each_decoded(coded, self._nvjpeg))
        items: list[Item] = []
        images: list[Tensor] = []
        broken: list[Broken] = []
        for item, content in contents:
            image = next(found) if item.coded else self._sent(content)
            if image is not None:
                items.append(item)
                images.append(image)
                continue
            instead = pack([self._by_pillow(item.draw)])
            items += instead.items
            images += [self._sent(pixels) for pixels in instead.contents()]
            broken += instead.broken
        return items, images, broken

    def _nvjpeg(self, encoded: list[Tensor]) -> list[Tensor]:
        try:
            return list(decode_jpeg(encoded, ImageReadMode.RGB, self._device))
        except RuntimeError:
            # nvJPEG may still write to memory of the batch that it gave up.
            torch.cuda.synchronize(self._device)
            raise

    def _sent(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def _try(self) -> None:
        """Decode an image: torchvision may be built without nvJPEG, or the driver lack it."""
        written = BytesIO()
        Image.new("RGB", (16, 16)).save(written, "JPEG")
        try:
            self._nvjpeg([torch.from_numpy(np.frombuffer(bytearray(written.getvalue()), np.uint8))])
        except RuntimeError as error:
            raise UserError(f"loader gpu-decode cannot run here: {short(error)}") from None


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
