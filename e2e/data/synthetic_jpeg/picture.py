"""One made image: a background of 1/f noise in two regions, and the object of a class before it.

Everything is whole numbers: the pixels depend on the seed, the image's number and its class alone.
Brightness has the full contrast, colours a fifth of it and no finest details, as in photographs.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from e2e.data.synthetic_jpeg.class_attributes import HUES, OUTLINES, UNIT, Look
from e2e.data.synthetic_jpeg.rng import Draws
from e2e.data.synthetic_jpeg.sizes import Size, size_of
from e2e.data.synthetic_jpeg.textures import FIELDS, Fields, Plane

STREAM = 1  # of an image's pixels; that of its size is another

# Ranges are drawn from for each image, both ends included.
BRIGHTNESS = (84, 160)
CONTRAST = (10, 22)  # of the noise: twice this is its standard deviation
CONTRAST_BITS = SHADE_BITS = 6
CALM = (32, 56)  # by how much the second region has less of it, in parts of OPAQUE
COLOUR = (2, 4)  # standard deviation of the colours' noise
COLOUR_BITS = 7
TINT = (-3, 3)  # of the colours with the brightness, in parts of 32
CAST = (-9, 9)  # of all colours
SHADE = (8, 30)  # standard deviation of what changes slowly in brightness
TONE = (14, 34)  # of an object, against what is behind
TEXTURE = (20, 34)  # contrast of an object's texture, in parts of 32
SATURATION = (18, 28)  # of an object, in parts of 32
REGION_SATURATION = (4, 18)  # its hue is any
OBJECT_PCT = (34, 52)  # half-size of an object, of the image's shorter side
MARGIN_PCT = 30  # of a side, that an object's centre is away from the edge

CELL = 8  # pixels a side of the coarse grid on which outlines and regions are drawn
OPAQUE_BITS = 6
OPAQUE = 1 << OPAQUE_BITS
MIDDLE = 128  # of 8 bits
STEEPNESS = 6  # of an outline, in 8 bits a UNIT


@dataclass(frozen=True)
class Masks:
    """Where the object and the second region are, from 0 to OPAQUE, and a shade: int16 [H, W]."""

    object: Plane
    region: Plane
    shade: Plane  # what changes slowly: standard deviation 64


def jpeg(fields: Fields, seed: int, index: int, look: Look) -> bytes:
    """The file of an image. Its bytes are those that Pillow's encoder makes of the pixels."""
    size = size_of(seed, index)
    file = io.BytesIO()
    image = picture(fields, size, seed, index, look)
    image.save(file, "JPEG", quality=size.quality, subsampling=size.subsampling)
    return file.getvalue()


def picture(fields: Fields, size: Size, seed: int, index: int, look: Look) -> Image.Image:
    """An image's pixels before they are compressed; its mode is YCbCr."""
    draw = Draws(seed, index, STREAM)
    masks = _masks(fields, size, look, draw)
    light = _light(fields, masks, look, draw)
    planes = [_bytes(light), *_colours(fields, masks, light, look, draw)]
    return Image.merge("YCbCr", planes)


def _masks(fields: Fields, size: Size, look: Look, draw: Draws) -> Masks:
    height, width = size.height, size.width
    ragged = fields.noise(draw.below(FIELDS), height, width, draw).copy()
    outline = _enlarged(_outline(size, look, draw), height, width) - MIDDLE
    # A coarse window of the same noise, enlarged: parts with smooth borders, as large things have.
    coarse = fields.noise(draw.below(FIELDS), height // CELL + 2, width // CELL + 2, draw)
    shade = _enlarged(_to_bytes((coarse >> 1) + MIDDLE), height, width) - MIDDLE
    ragged >>= 3
    return Masks(_mask(outline + ragged, 3), _mask(shade + ragged, 2), shade)


def _mask(plane: Plane, steepness: int) -> Plane:
    """From 0 to OPAQUE, half of it where the plane is 0."""
    plane *= steepness
    plane += OPAQUE // 2
    return plane.clip(0, OPAQUE, out=plane)


def _outline(size: Size, look: Look, draw: Draws) -> np.ndarray:
    """The object on the coarse grid, uint8: MIDDLE is its border."""
    half = draw.between(OBJECT_PCT) * min(size.height, size.width) // 100
    margins = [side * MARGIN_PCT // 100 for side in (size.height, size.width)]
    top, left = (
        draw.between((margin, side - margin))
        for margin, side in zip(margins, (size.height, size.width), strict=True)
    )
    down = (np.arange(0, size.height + CELL, CELL)[:, None] - top) * UNIT // half
    across = (np.arange(0, size.width + CELL, CELL)[None] - left) * UNIT // half
    inside = np.full((down.size, across.size), -UNIT)
    for x, y, radius in OUTLINES[look.outline]:
        squared = (down - y) ** 2 + (across - x) ** 2
        depth = (radius * radius - squared) // (2 * abs(radius))  # about the way to the border
        inside = np.minimum(inside, -depth) if radius < 0 else np.maximum(inside, depth)
    return _to_bytes(inside * STEEPNESS + MIDDLE)


def _light(fields: Fields, masks: Masks, look: Look, draw: Draws) -> Plane:
    """The brightness, which may be beyond 0 to 255: int16 [H, W]."""
    height, width = masks.object.shape
    contrast = draw.between(CONTRAST)
    share = draw.between((40, 90))  # of the first field, in per cent
    # Squares add up: the contrast is the same whatever the share.
    first, second = contrast * share // 100, round(contrast * (1 - (share / 100) ** 2) ** 0.5)
    light = fields.noise(0, height, width, draw) * np.int16(first * draw.sign())
    light += fields.noise(1, height, width, draw) * np.int16(second * draw.sign())
    light >>= CONTRAST_BITS
    light *= OPAQUE - ((masks.region * draw.between(CALM)) >> OPAQUE_BITS)
    light >>= OPAQUE_BITS
    light += (masks.shade * draw.between(SHADE)) >> SHADE_BITS
    light += draw.between(BRIGHTNESS)
    texture = fields.texture(look.texture, height, width, draw) * np.int16(draw.between(TEXTURE))
    texture >>= 5
    texture += look.tone * draw.between(TONE)
    texture *= masks.object
    texture >>= OPAQUE_BITS
    light += texture
    return light


def _colours(
    fields: Fields, masks: Masks, light: Plane, look: Look, draw: Draws
) -> list[Image.Image]:
    """Both colour planes, made at half the size."""
    height, width = light.shape
    half = light[::2, ::2] - MIDDLE
    rows, columns = half.shape
    painted = masks.object[::2, ::2]
    # The object hides the region behind it.
    behind = (masks.region[::2, ::2] * (OPAQUE - painted)) >> OPAQUE_BITS
    own, other = HUES[look.hue], HUES[draw.below(len(HUES))]
    strong, weak = draw.between(SATURATION), draw.between(REGION_SATURATION)
    planes = []
    for axis in range(2):
        plane = fields.noise(axis, rows, columns, draw) * np.int16(draw.between(COLOUR))
        plane >>= COLOUR_BITS
        plane += (half * draw.between(TINT)) >> 5
        plane += (painted * (own[axis] * strong // 32)) >> OPAQUE_BITS
        plane += (behind * (other[axis] * weak // 32)) >> OPAQUE_BITS
        plane += MIDDLE + draw.between(CAST)
        planes.append(_bytes(plane).resize((width, height), Image.Resampling.BILINEAR))
    return planes


def _enlarged(coarse: np.ndarray, height: int, width: int) -> Plane:
    """A coarse plane of bytes at CELL times its size, as int16 [height, width]."""
    rows, columns = coarse.shape
    # Whole cells, of which the edges are cut off.
    whole = Image.fromarray(coarse).resize((columns * CELL, rows * CELL), Image.Resampling.BILINEAR)
    return np.asarray(whole)[:height, :width].astype(np.int16)


def _to_bytes(plane: np.ndarray) -> np.ndarray:
    return plane.clip(0, 255).astype(np.uint8)


def _bytes(plane: Plane) -> Image.Image:
    return Image.fromarray(_to_bytes(plane))
