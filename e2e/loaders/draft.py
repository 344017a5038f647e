"""Back end torchvision, but that a JPEG is decoded smaller where its cut is scaled down anyway.

A JPEG of eight by eight pixels a block can be decoded as four by four, two by two, or one, for a
fraction of the work (Pillow: `Image.draft`). What is cut from it is never enlarged by that.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from PIL import Image
from PIL.ExifTags import Base
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2.functional import pil_to_tensor

from e2e.loaders.backend import Files, Source, Tell, Wanted
from e2e.loaders.decode import decode
from e2e.loaders.pixels import PixelFeed
from e2e.loaders.samples import Pictures, shuffled
from kernels.resample.geometry import ORIENTATIONS, upright_size

SCALES = (8, 4, 2)  # that a JPEG may be decoded smaller by


class _Drawn(NamedTuple):
    """What is cut from an upright image of `size` (height, width): top, left, height and width; and
    the (width, height) that the image, as it is stored, needs for that.
    """

    size: tuple[int, int]
    box: tuple[int, int, int, int]
    least: tuple[int, int]


def missing(device: torch.device) -> str | None:
    """It runs everywhere."""
    return None


def open_feed(source: Source, wanted: Wanted, tell: Tell) -> PixelFeed:
    """The images and cuts of back end torchvision; pixels differ where an image is decoded smaller,
    and only there.
    """
    assert isinstance(source, Files)
    samples = Pictures(source.pictures, _as_it_is, DraftCut(wanted.size), cold=wanted.cold)
    return PixelFeed(shuffled(samples, len(source.pictures), wanted), source, wanted, tell)


def _as_it_is(content: bytes) -> bytes:
    """The cut has to come before the decoder."""
    return content


class DraftCut:
    """A file's bytes to a cut at random, uint8 [3, *size]: that of `cuts.random_cut`, drawn before
    the image is decoded.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self._size = size
        self._crop = v2.RandomResizedCrop(size, antialias=True)
        self._flip = v2.RandomHorizontalFlip()

    def __call__(self, content: bytes) -> Tensor:
        """Raises what Pillow raises on a broken image."""
        drawn: list[_Drawn] = []

        def draw(image: Image.Image) -> None:
            drawn.append(self._drawn(image))
            image.draft(None, drawn[0].least)

        image = decode(content, draw)
        return pil_to_tensor(self._flip(self._cut(image, drawn[0])))

    def _drawn(self, image: Image.Image) -> _Drawn:
        """The cut, and how small the image may become for it; of an image without pixels yet."""
        orientation = image.getexif().get(Base.Orientation, 1)
        known = orientation if orientation in ORIENTATIONS else 1
        height, width = upright_size(image.height, image.width, known)
        drawn = self._crop.make_params([torch.empty(3, height, width, device="meta")])
        top, left, high, wide = (drawn[name] for name in ("top", "left", "height", "width"))
        rows, columns = self._size
        fitting = (scale for scale in SCALES if high >= scale * rows and wide >= scale * columns)
        scale = next(fitting, 1)
        least = (image.width // scale, image.height // scale)
        return _Drawn((height, width), (top, left, high, wide), least)

    def _cut(self, image: Image.Image, drawn: _Drawn) -> Image.Image:
        top, left, high, wide = drawn.box
        edges = (left, top, left + wide, top + high)
        size, by = (self._size[1], self._size[0]), Image.Resampling.BILINEAR
        height, width = drawn.size
        if image.size == (width, height):
            return image.crop(edges).resize(size, by)
        across, down = image.width / width, image.height / height
        box = (edges[0] * across, edges[1] * down, edges[2] * across, edges[3] * down)
        return image.resize(size, by, box)
