"""As back end torchvision, but a JPEG is decoded smaller where its crop is scaled down anyway.

A JPEG of 8x8-pixel blocks can be decoded as 4x4, 2x2 or 1x1, for a fraction of the work (Pillow:
`Image.draft`). The crop is never enlarged because of that.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2  # pyright: ignore[reportMissingTypeStubs]
from torchvision.transforms.v2.functional import (  # pyright: ignore[reportMissingTypeStubs]
    pil_to_tensor,
)

from e2e.data.loaders.decode import decode, orientation_of
from e2e.data.loaders.jpeg_bytes import Box
from e2e.data.loaders.pixels import Pictures, PixelFeed
from e2e.data.types import Files, Source, Tell, Wanted
from kernels.resample.geometry import runs_backwards, upright_size

SCALES = (8, 4, 2)  # that a JPEG may be decoded smaller by


class _Reduced(NamedTuple):
    """An upright image that was decoded smaller: the (width, height) that it would have, by what it
    is smaller, and where in its own pixels it begins. A side that is no multiple of the scale is
    rounded up, at the end of what is stored.
    """

    size: tuple[int, int]
    scale: int
    top: float
    left: float


def open_feed(source: Source, wanted: Wanted, tell: Tell) -> PixelFeed:
    """The images and crops of back end torchvision; pixels differ only where decoded smaller."""
    assert isinstance(source, Files)
    # The cut has to come before the decoder.
    samples = Pictures(source.pictures, bytes, DraftCut(wanted.size), cold=wanted.cold)
    return PixelFeed(samples, source, wanted, tell)


class DraftCut:
    """A file's bytes to a random crop, uint8 [3, *size]: the one of back end torchvision.

    It is drawn before the image is decoded. Raises Pillow's error for a broken image.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self._size = size
        self._crop = v2.RandomResizedCrop(size, antialias=True)
        self._flip = v2.RandomHorizontalFlip()

    def __call__(self, content: bytes) -> Tensor:
        """Raises what Pillow raises on a broken image."""
        box: list[Box] = []
        reduced: list[_Reduced] = []

        def draw(image: Image.Image) -> None:
            if image.format == "JPEG":
                orientation = orientation_of(image)
                height, width = upright_size(image.height, image.width, orientation)
                box.append(self._box(height, width))
                scale = self._scale(box[0])
                image.draft(None, (image.width // scale, image.height // scale))
                reduced.append(_reduced(height, width, scale, orientation))

        image = decode(content, draw)
        if not reduced or image.size == reduced[0].size:
            top, left, height, width = box[0] if box else self._box(image.height, image.width)
            image = image.crop((left, top, left + width, top + height))
            edges = None
        else:
            edges = _edges(image, box[0], reduced[0])
        cut = image.resize((self._size[1], self._size[0]), Image.Resampling.BILINEAR, edges)
        return pil_to_tensor(self._flip(cut))

    def _box(self, height: int, width: int) -> Box:
        drawn = self._crop.make_params([torch.empty(3, height, width, device="meta")])
        return drawn["top"], drawn["left"], drawn["height"], drawn["width"]

    def _scale(self, box: Box) -> int:
        """By what the image may be smaller without the cut being enlarged."""
        _, _, height, width = box
        rows, columns = self._size
        fitting = (one for one in SCALES if height >= one * rows and width >= one * columns)
        return next(fitting, 1)


def _edges(image: Image.Image, box: Box, reduced: _Reduced) -> tuple[float, float, float, float]:
    """The box of the whole image in the pixels of the one that was decoded smaller."""
    top, left, height, width = box
    return (
        reduced.left + left / reduced.scale,
        reduced.top + top / reduced.scale,
        min(image.width, reduced.left + (left + width) / reduced.scale),
        min(image.height, reduced.top + (top + height) / reduced.scale),
    )


def _reduced(height: int, width: int, scale: int, orientation: int) -> _Reduced:
    down_back, across_back = runs_backwards(orientation)
    beyond = (-height % scale / scale, -width % scale / scale)
    return _Reduced((width, height), scale, beyond[0] * down_back, beyond[1] * across_back)
