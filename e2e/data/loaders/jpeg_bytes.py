"""Encoded images from the workers: JPEG bytes, and how each one is cropped.

What nvJPEG may decode unlike Pillow is decoded by Pillow in the worker and sent as the pixels of
its crop. A batch is sent as one tensor, so that the training process, which launches the steps, has
next to no Python work for it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor
from torch.utils.data import Dataset

from e2e.data.loaders.reading import decode, is_turned, read, short
from e2e.data.loaders.workers import SeededIndex
from e2e.data.types import Broken, ImageFile

# The cuts of v2.RandomResizedCrop as it usually is, and v2.RandomHorizontalFlip.
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
LOG_RATIO: list[float] = torch.log(torch.tensor(RATIO)).numpy().tolist()  # as float32 has them
TRIES = 10
FLIPPED = 0.5

END_OF_IMAGE = b"\xff\xd9"
PADDING = b"\0\r\n "  # what may stand behind it
COLOUR_BY_NAME = [ord(letter) for letter in "RGB"]  # components that are not YCbCr
# Of brightness, where colours have one sample: 4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1, 4:1:0.
SAMPLINGS = frozenset(((1, 1), (2, 1), (2, 2), (1, 2), (4, 1), (4, 2)))

# Of each image: how many bytes its content takes; 1 for a JPEG's bytes, 0 for pixels; 3, height and
# width as it is stored; its class; its draw; its row of `crop_table`, as if it began at address 0.
ROW = np.dtype([
    ("bytes", np.int64), ("coded", np.int64), ("shape", np.int64, 3), ("label", np.int64),
    ("draw", np.int64, 2), ("crop", np.int64, 6),
])  # fmt: skip

Rows = NDArray[np.void]  # of ROW
Box = tuple[int, int, int, int]  # top, left, height, width
Size = tuple[int, int]  # height, width


@dataclass(frozen=True)
class Item:
    """An image of a batch, without its content.

    `coded`: the content is JPEG bytes, not pixels. `size`: (height, width). `draw`: the image's
    index and the seed of its crop.
    """

    coded: bool
    size: Size
    box: Box
    flip: bool
    label: int
    draw: SeededIndex


class EncodedSample(NamedTuple):
    """An image and its content, uint8 [bytes]; None where no image could be read."""

    item: Item | None
    content: NDArray[np.uint8]
    broken: list[Broken]


@dataclass(frozen=True)
class Packed:
    """`count` images, and broken files. `flat`, uint8 [bytes], has their rows, then contents."""

    flat: Tensor
    count: int
    broken: list[Broken]

    def pin_memory(self) -> Packed:
        """The same in pinned memory; called by the DataLoader."""
        return replace(self, flat=self.flat.pin_memory())

    def rows(self) -> Rows:
        """One row per image, dtype ROW: a view."""
        return self.flat[: self.count * ROW.itemsize].numpy().view(ROW)

    def contents(self) -> list[Tensor]:
        """Views of each image's content, uint8 [bytes]: a JPEG, or its pixels."""
        content = self.flat[self.count * ROW.itemsize :]
        return list(torch.split(content, self.rows()["bytes"].tolist()))


def pack(samples: Sequence[EncodedSample]) -> Packed:
    """A batch of those samples that have an image."""
    items = [sample.item for sample in samples if sample.item is not None]
    contents = [sample.content for sample in samples if sample.item is not None]
    rows = np.zeros(len(items), ROW)
    if items:
        rows["bytes"] = [len(content) for content in contents]
        rows["coded"] = [item.coded for item in items]
        rows["shape"] = [(3, *item.size) for item in items]
        rows["label"] = [item.label for item in items]
        rows["draw"] = [item.draw for item in items]
        rows["crop"] = crop_table(
            [0] * len(items),
            [item.size for item in items],
            torch.tensor([item.box for item in items]),
            torch.tensor([item.flip for item in items]),
        )
    flat = np.concatenate([rows.view(np.uint8), *contents])
    broken = [file for sample in samples for file in sample.broken]
    return Packed(torch.as_tensor(flat), len(items), broken)


def crop_table(
    addresses: Sequence[int], sizes: Sequence[Size], boxes: Tensor, flips: Tensor
) -> Tensor:
    """The table that `resample_images` reads, one row a crop: int64 [N, 6].

    `addresses` and `sizes` are those of images, contiguous uint8 [3, height, width]; `boxes` [N, 4]
    are top, left, height, width in pixels; `flips` [N] say which crops are mirrored. ValueError for
    a box that is not inside its image.
    """
    whole, boxes = torch.tensor(sizes, dtype=torch.int64).reshape(-1, 2), boxes.to(torch.int64)
    inside = (boxes[:, :2] >= 0) & (boxes[:, 2:] >= 1) & (boxes[:, :2] + boxes[:, 2:] <= whole)
    if not bool(inside.all()):
        n = int(inside.all(dim=1).logical_not().nonzero()[0])
        raise ValueError(
            f"box {[*map(int, boxes[n])]} of image {n} is not in its {sizes[n]} pixels"
        )
    rows, columns = whole.unbind(1)
    top, left, height, width = boxes.unbind(1)
    first = torch.tensor(addresses, dtype=torch.int64) + top * columns + left
    first = torch.where(flips, first + width - 1, first)
    across = torch.where(flips, -torch.ones_like(first), torch.ones_like(first))
    return torch.stack([first, rows * columns, columns, across, height, width], dim=1)


class Encoded(Dataset[EncodedSample]):
    """Image files, read but not decoded. The next good one replaces a broken one."""

    def __init__(self, pictures: Sequence[ImageFile], cold: bool = False) -> None:
        self._pictures, self._cold = pictures, cold

    def __getitem__(self, draw: SeededIndex) -> EncodedSample:
        return self._first_good(draw, by_pillow=False)

    def by_pillow(self, draw: SeededIndex) -> EncodedSample:
        """The same image and crop as pixels, or those of the next one that Pillow can decode."""
        return self._first_good(draw, by_pillow=True)

    def _first_good(self, draw: SeededIndex, by_pillow: bool) -> EncodedSample:
        first, seed = draw
        broken: list[Broken] = []
        for index in range(first, first + len(self._pictures)):
            path, label = self._pictures[index % len(self._pictures)]
            try:
                content = read(path, self._cold)
                size = None if by_pillow else plain_jpeg(content)
                item, pixels = _cut(content, size, label, (index, seed))
            except Exception as error:  # decoders raise nearly anything on broken files
                broken.append((path, short(error)))
                continue
            return EncodedSample(item, pixels, broken)
        return EncodedSample(None, np.empty(0, np.uint8), broken)


def plain_jpeg(content: bytes) -> Size | None:
    """The size of a JPEG that nvJPEG decodes as Pillow does; None for any other image.

    Others are: those that EXIF turns, CMYK, RGB stored as such, rare chroma subsamplings, truncated
    files, those that Pillow refuses for their size, and progressive ones, which nvJPEG decodes on a
    single core. Raises Pillow's error for what is no image.
    """
    with warnings.catch_warnings(action="ignore"), Image.open(BytesIO(content)) as image:
        usual = image.width * image.height <= (Image.MAX_IMAGE_PIXELS or 0)
        if not isinstance(image, JpegImageFile) or not usual or not _as_usual(image):
            return None
        if is_turned(image) or not content.rstrip(PADDING).endswith(END_OF_IMAGE):
            return None
        return image.height, image.width


def _as_usual(image: JpegImageFile) -> bool:
    if image.format != "JPEG" or "progressive" in image.info:
        return False
    if image.mode == "L":
        return True
    names, across, down, _ = zip(*image.layer, strict=True)
    return (
        image.mode == "RGB"
        and image.info.get("adobe_transform", 1) == 1
        and list(names) != COLOUR_BY_NAME
        and (across[1:], down[1:]) == ((1, 1), (1, 1))
        and (across[0], down[0]) in SAMPLINGS
    )


def _cut(
    content: bytes, size: Size | None, label: int, draw: SeededIndex
) -> tuple[Item, NDArray[np.uint8]]:
    """An image that travels as it is, of this `size`, or without one the pixels of its cut."""
    if size is not None:
        box, flip = random_crop(*size, draw[1])
        return Item(True, size, box, flip, label, draw), np.frombuffer(content, np.uint8)
    image = decode(content)
    (top, left, height, width), flip = random_crop(image.height, image.width, draw[1])
    cut = np.asarray(image.crop((left, top, left + width, top + height)))
    item = Item(False, (height, width), (0, 0, height, width), flip, label, draw)
    return item, cut.transpose(2, 0, 1).reshape(-1)


def random_crop(height: int, width: int, seed: int) -> tuple[Box, bool]:
    """The box and the flip that torchvision's transforms draw after `torch.manual_seed(seed)`.

    `height` and `width` are in pixels. Torchvision takes twice as long, and draws from the
    process's random numbers, which a training shares.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.empty(1)

    def below(limit: int) -> int:
        return int(torch.randint(0, limit, (1,), generator=generator))

    box = _whole(height, width)
    for _ in range(TRIES):
        area = height * width * drawn.uniform_(*AREA, generator=generator).item()
        ratio = drawn.uniform_(*LOG_RATIO, generator=generator).exp_().item()
        h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
        if 0 < h <= height and 0 < w <= width:
            box = below(height - h + 1), below(width - w + 1), h, w
            break
    return box, drawn.uniform_(generator=generator).item() < FLIPPED


def _whole(height: int, width: int) -> Box:
    """The largest middle of an image that has an allowed ratio."""
    h, w = height, width
    if width / height < RATIO[0]:
        h = round(width / RATIO[0])
    elif width / height > RATIO[1]:
        w = round(height * RATIO[1])
    return (height - h) // 2, (width - w) // 2, h, w
