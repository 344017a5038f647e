"""One synthetic image: a background of 1/f noise in two regions, and the object of a class on it.

Everything is whole numbers: the pixels depend on the seed, the image's number and its class alone.
Brightness has the full contrast, colours a fifth of it and no finest details, as in photographs.

A class is a combination of texture, hue, outline and tone, and shares each with other classes.

Sizes and compression are about those of ImageNet. Most of it came from Flickr, which gives
photographs 500 pixels at their longer side; the rest goes from thumbnails to thousands. Most are
compressed at quality 96 without halving the colours' resolution
(terryalanunlimited.com/compression-in-the-imagenet-dataset, read with torchjpeg).
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from e2e.data.synthetic_jpeg.textures import FIELDS, KINDS, Draws, Plane, noise, texture

SIZE_STREAM, PIXEL_STREAM = 0, 1  # of an image's random numbers

FLICKR_PCT = 68
FLICKR_SIDE = 500
OTHER_SIDES = (140, 200, 256, 300, 340, 400, 450, 500, 540, 600, 660, 760, 940, 1200)  # quantiles
LONGEST = OTHER_SIDES[-1]
# The shorter side in thousandths of the longer: 4:3, 3:2, and quantiles of the rest.
SHAPES_PCT = ((750, 50), (666, 26))
OTHER_SHAPES = (520, 600, 640, 680, 720, 760, 800, 860, 940, 1000)
PORTRAIT_PCT = 28
USUAL_QUALITY_PCT, USUAL_QUALITY = 70, 96
OTHER_QUALITIES = (75, 80, 85, 88, 90, 92, 95)
HALVED_PCT = 25
FULL, HALVED = 0, 2  # Pillow's words for 4:4:4 and 4:2:0

# Blobs of an outline: centre and radius, in parts of UNIT of the object's half-size; a radius below
# 0 cuts a hole. Left and right are alike or do not matter, as training mirrors at random.
UNIT = 64
OUTLINES: tuple[tuple[tuple[int, int, int], ...], ...] = (
    ((0, 0, 60),),
    ((0, 0, 64), (0, 0, -30)),
    ((-36, 0, 28), (36, 0, 28)),
    ((0, -36, 28), (0, 36, 28)),
    ((0, -34, 28), (-34, 28, 28), (34, 28, 28)),
    ((-34, -34, 26), (34, -34, 26), (-34, 34, 26), (34, 34, 26)),
    ((0, 0, 24), (-46, 0, 17), (46, 0, 17), (0, -46, 17), (0, 46, 17)),
    ((0, 18, 46), (0, -44, 18)),
)
# Blue-yellow and red-green (Cb, Cr): eight directions, at a saturation as painted things have.
HUES = ((34, 0), (24, 24), (0, 34), (-24, 24), (-34, 0), (-24, -24), (0, -34), (24, -24))
TONES = (-1, 1)  # darker or lighter than what is behind
CLASSES = len(KINDS) * len(HUES) * len(OUTLINES) * len(TONES)

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
class Look:
    """How the objects of a class look: places in KINDS, HUES, OUTLINES, and a tone."""

    texture: int
    hue: int
    outline: int
    tone: int


def look_of(label: int) -> Look:
    """The look of a class, another one for each label below CLASSES.

    Neighbours share a hue, so that a few classes are no hues either.
    """
    rest, texture = divmod(label, len(KINDS))
    rest, hue = divmod(rest, len(HUES))
    tone, outline = divmod(rest, len(OUTLINES))
    hue = (hue + texture // 2) % len(HUES)
    outline = (outline + 3 * texture + hue) % len(OUTLINES)
    return Look(texture, hue, outline, TONES[(tone + texture + hue) % len(TONES)])


@dataclass(frozen=True)
class Size:
    """Pixels, and Pillow's quality and subsampling."""

    height: int
    width: int
    quality: int
    subsampling: int


def size_of(seed: int, index: int) -> Size:
    """The size of an image."""
    draw = Draws(seed, index, SIZE_STREAM)
    longer = FLICKR_SIDE if draw.chance(FLICKR_PCT) else draw.quantile(OTHER_SIDES)
    shorter = longer * _shape(draw) // 1000
    portrait = draw.chance(PORTRAIT_PCT)
    height, width = (longer, shorter) if portrait else (shorter, longer)
    usual = draw.chance(USUAL_QUALITY_PCT)
    quality = USUAL_QUALITY if usual else draw.quantile(OTHER_QUALITIES)
    return Size(height, width, quality, HALVED if draw.chance(HALVED_PCT) else FULL)


def _shape(draw: Draws) -> int:
    at = draw.below(100)
    for shape, pct in SHAPES_PCT:
        if at < pct:
            return shape
        at -= pct
    return draw.quantile(OTHER_SHAPES)


@dataclass(frozen=True)
class Masks:
    """Where the object and the second region are, from 0 to OPAQUE, and a shade: int16 [H, W]."""

    object: Plane
    region: Plane
    shade: Plane  # what changes slowly: standard deviation 64


def jpeg(seed: int, index: int, look: Look) -> bytes:
    """The file of an image. Its bytes are those that Pillow's encoder makes of the pixels."""
    size = size_of(seed, index)
    file = io.BytesIO()
    image = picture(size, seed, index, look)
    image.save(file, "JPEG", quality=size.quality, subsampling=size.subsampling)
    return file.getvalue()


def picture(size: Size, seed: int, index: int, look: Look) -> Image.Image:
    """An image's pixels before they are compressed; its mode is YCbCr."""
    draw = Draws(seed, index, PIXEL_STREAM)
    masks = _masks(size, look, draw)
    light = _light(masks, look, draw)
    planes = [_bytes(light), *_colours(masks, light, look, draw)]
    return Image.merge("YCbCr", planes)


def _masks(size: Size, look: Look, draw: Draws) -> Masks:
    height, width = size.height, size.width
    ragged = noise(draw.below(FIELDS), height, width, draw).copy()
    outline = _enlarged(_outline(size, look, draw), height, width) - MIDDLE
    # A coarse window of the same noise, enlarged: parts with smooth borders, as large things have.
    coarse = noise(draw.below(FIELDS), height // CELL + 2, width // CELL + 2, draw)
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


def _light(masks: Masks, look: Look, draw: Draws) -> Plane:
    """The brightness, which may be beyond 0 to 255: int16 [H, W]."""
    height, width = masks.object.shape
    contrast = draw.between(CONTRAST)
    share = draw.between((40, 90))  # of the first field, in per cent
    # Squares add up: the contrast is the same whatever the share.
    first, second = contrast * share // 100, round(contrast * (1 - (share / 100) ** 2) ** 0.5)
    light = noise(0, height, width, draw) * np.int16(first * draw.sign())
    light += noise(1, height, width, draw) * np.int16(second * draw.sign())
    light >>= CONTRAST_BITS
    light *= OPAQUE - ((masks.region * draw.between(CALM)) >> OPAQUE_BITS)
    light >>= OPAQUE_BITS
    light += (masks.shade * draw.between(SHADE)) >> SHADE_BITS
    light += draw.between(BRIGHTNESS)
    painted = texture(look.texture, height, width, draw) * np.int16(draw.between(TEXTURE))
    painted >>= 5
    painted += look.tone * draw.between(TONE)
    painted *= masks.object
    painted >>= OPAQUE_BITS
    light += painted
    return light


def _colours(masks: Masks, light: Plane, look: Look, draw: Draws) -> list[Image.Image]:
    """Both colour planes, made at half the size."""
    height, width = light.shape
    half = light[::2, ::2] - MIDDLE
    rows, columns = half.shape
    painted = masks.object[::2, ::2]
    # The object hides the region behind it.
    behind = (masks.region[::2, ::2] * (OPAQUE - painted)) >> OPAQUE_BITS
    own, other = HUES[look.hue], HUES[draw.below(len(HUES))]
    strong, weak = draw.between(SATURATION), draw.between(REGION_SATURATION)
    planes: list[Image.Image] = []
    for axis in range(2):
        plane = noise(axis, rows, columns, draw) * np.int16(draw.between(COLOUR))
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
