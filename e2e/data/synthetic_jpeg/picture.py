"""One synthetic image: a background of 1/f noise in two regions, and the object of a class on it.

Everything is whole numbers: the pixels depend on the seed, the image's number and its class alone.
NumPy promises to keep PCG64's raw stream. The noise is a Fourier sum of random phases, computed
once in a process and rounded to whole numbers; the sums are off by 1e-13 of a step or so: on
another machine a pixel differs once in thousands of data sets.

Brightness has the full contrast, colours a fifth of it and no finest details, as in photographs.
A class is a combination of texture, hue, outline and tone, and shares each with other classes.

Sizes and compression are about those of ImageNet. Most of it came from Flickr, which gives
photographs 500 pixels at their longer side; the rest goes from thumbnails to thousands. Most are
compressed at quality 96 without halving the colours' resolution
(terryalanunlimited.com/compression-in-the-imagenet-dataset, read with torchjpeg).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Plane = NDArray[np.int16]
Floats = NDArray[np.floating]

SIZE_STREAM, PIXEL_STREAM = 0, 1  # of an image's random numbers
NOISE_STREAM = 0x66_6C_64  # the same for every seed, different from the images' streams

FIELDS = 2  # planes of 1/f noise
SIDE = 2048  # pixels a side of a field; an image is at most 1200
FIELD_STD = 128
SLOPE = 1.1  # of the amplitude: 1/f ** SLOPE
LONGEST_WAVE = 1024  # pixels; longer waves would change the brightness of a whole image

TILE = 640  # pixels a side after which a texture repeats itself
TEXTURE_STD = 32
WAVELENGTH = 15  # pixels, of a texture's waves
BANDWIDTH = 0.22  # standard deviation of the wave number, relative
SPREAD_DEG = 8  # standard deviation of the direction
CLIP_STD = 5  # no value is further from 0, so that products fit into 16 bits
# The directions of a texture's waves in degrees; None: all. Mirror images are the same kind, as
# training mirrors at random. A cut that is squeezed by 0.75 to 1.33 turns 22.5 to 17 to 29 at most.
KINDS: tuple[tuple[float, ...] | None, ...] = (
    (0,), (90,), (45,), (22.5,), (67.5,), (0, 90), (45, 135), None,
)  # fmt: skip

FLICKR_PCT = 68
FLICKR_SIDE = 500
OTHER_SIDES = (140, 200, 256, 300, 340, 400, 450, 500, 540, 600, 660, 760, 940, 1200)  # quantiles
LONGEST = OTHER_SIDES[-1]
# The shorter side in thousandths of the longer: 4:3, 3:2, and quantiles of the rest.
SHAPES_PCT = (750,) * 50 + (666,) * 26
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
TONES = (-1, 1)  # darker or lighter than the background
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
TONE = (14, 34)  # of an object, against the background
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
    """How the objects of a class look: indices into KINDS, HUES, OUTLINES, and a tone."""

    texture: int
    hue: int
    outline: int
    tone: int


def look_of(label: int) -> Look:
    """The look of a class, different for each label below CLASSES.

    Neighbours share a hue, so that hue alone does not separate a few classes.
    """
    rest, texture = divmod(label, len(KINDS))
    rest, hue = divmod(rest, len(HUES))
    tone, outline = divmod(rest, len(OUTLINES))
    hue = (hue + texture // 2) % len(HUES)
    outline = (outline + 3 * texture + hue) % len(OUTLINES)
    return Look(texture, hue, outline, TONES[(tone + texture + hue) % len(TONES)])


class Draws:
    """Random integers, one after another, from the stream that `key` names."""

    def __init__(self, *key: int) -> None:
        self._source = np.random.PCG64(key)

    def below(self, limit: int) -> int:
        """An integer from 0 to limit - 1."""
        return int(self._source.random_raw()) % limit

    def between(self, ends: tuple[int, int]) -> int:
        """An integer from one end to the other, both included."""
        return ends[0] + self.below(ends[1] - ends[0] + 1)

    def sign(self) -> int:
        """-1 or 1."""
        return 1 - 2 * self.below(2)

    def chance(self, pct: int) -> bool:
        """True in `pct` per cent of the cases."""
        return self.below(100) < pct

    def quantile(self, steps: Sequence[int]) -> int:
        """An integer from the distribution with equidistant quantiles `steps`; linear between."""
        at, part = divmod(self.below((len(steps) - 1) << 16), 1 << 16)
        return steps[at] + ((steps[at + 1] - steps[at]) * part >> 16)


@dataclass(frozen=True)
class Size:
    """Height and width in pixels, and Pillow's JPEG quality and subsampling."""

    height: int
    width: int
    quality: int
    subsampling: int


def size_of(seed: int, index: int) -> Size:
    """The size of an image, by seed and index."""
    draw = Draws(seed, index, SIZE_STREAM)
    longer = FLICKR_SIDE if draw.chance(FLICKR_PCT) else draw.quantile(OTHER_SIDES)
    at = draw.below(100)
    shape = SHAPES_PCT[at] if at < len(SHAPES_PCT) else draw.quantile(OTHER_SHAPES)
    shorter = longer * shape // 1000
    portrait = draw.chance(PORTRAIT_PCT)
    height, width = (longer, shorter) if portrait else (shorter, longer)
    usual = draw.chance(USUAL_QUALITY_PCT)
    quality = USUAL_QUALITY if usual else draw.quantile(OTHER_QUALITIES)
    return Size(height, width, quality, HALVED if draw.chance(HALVED_PCT) else FULL)


def jpeg(seed: int, index: int, look: Look) -> bytes:
    """An image as JPEG bytes, encoded by Pillow."""
    size = size_of(seed, index)
    file = io.BytesIO()
    image = picture(size, seed, index, look)
    image.save(file, "JPEG", quality=size.quality, subsampling=size.subsampling)
    return file.getvalue()


def picture(size: Size, seed: int, index: int, look: Look) -> Image.Image:
    """An image before compression; its mode is YCbCr."""
    draw = Draws(seed, index, PIXEL_STREAM)
    masks = _masks(size, look, draw)
    light = _light(masks, look, draw)
    return Image.merge("YCbCr", [_image(light), *_colours(masks, light, look, draw)])


class _Masks(NamedTuple):
    """Where the object and the second region are, from 0 to OPAQUE, and a shade: int16 [H, W]."""

    object: Plane
    region: Plane
    shade: Plane  # what changes slowly: standard deviation 64


def _masks(size: Size, look: Look, draw: Draws) -> _Masks:
    height, width = size.height, size.width
    ragged = noise(draw.below(FIELDS), height, width, draw) >> 3
    outline = _enlarged(_outline(size, look, draw), height, width) - MIDDLE
    # A coarse window of the same noise, enlarged: parts with smooth borders, as large things have.
    coarse = noise(draw.below(FIELDS), height // CELL + 2, width // CELL + 2, draw)
    shade = _enlarged((coarse >> 1) + MIDDLE, height, width) - MIDDLE
    return _Masks(_mask(outline + ragged, 3), _mask(shade + ragged, 2), shade)


def _mask(plane: Plane, steepness: int) -> Plane:
    """From 0 to OPAQUE, half of it where the plane is 0."""
    return (plane * steepness + OPAQUE // 2).clip(0, OPAQUE)


def _outline(size: Size, look: Look, draw: Draws) -> NDArray[np.int64]:
    """The object on the coarse grid: MIDDLE is its border."""
    sides = (size.height, size.width)
    half = draw.between(OBJECT_PCT) * min(sides) // 100
    margins = [side * MARGIN_PCT // 100 for side in sides]
    top, left = (draw.between((m, side - m)) for m, side in zip(margins, sides, strict=True))
    down = (np.arange(0, size.height + CELL, CELL)[:, None] - top) * UNIT // half
    across = (np.arange(0, size.width + CELL, CELL)[None] - left) * UNIT // half
    inside = np.full((down.size, across.size), -UNIT)
    for x, y, radius in OUTLINES[look.outline]:
        squared = (down - y) ** 2 + (across - x) ** 2
        depth = (radius * radius - squared) // (2 * abs(radius))  # about the way to the border
        inside = np.minimum(inside, -depth) if radius < 0 else np.maximum(inside, depth)
    return inside * STEEPNESS + MIDDLE


def _light(masks: _Masks, look: Look, draw: Draws) -> Plane:
    """The brightness, which may be beyond 0 to 255: int16 [H, W]."""
    height, width = masks.object.shape
    contrast = draw.between(CONTRAST)
    share = draw.between((40, 90))  # of the first field, in per cent
    # Squares add up: the contrast is the same for every share.
    first, second = contrast * share // 100, round(contrast * (1 - (share / 100) ** 2) ** 0.5)
    light = noise(0, height, width, draw) * np.int16(first * draw.sign())
    light += noise(1, height, width, draw) * np.int16(second * draw.sign())
    light >>= CONTRAST_BITS
    light *= OPAQUE - ((masks.region * draw.between(CALM)) >> OPAQUE_BITS)
    light >>= OPAQUE_BITS
    light += (masks.shade * draw.between(SHADE)) >> SHADE_BITS
    light += draw.between(BRIGHTNESS)
    # The planes after the fields are the textures.
    painted = noise(FIELDS + look.texture, height, width, draw) * np.int16(draw.between(TEXTURE))
    painted >>= 5
    painted += look.tone * draw.between(TONE)
    painted *= masks.object
    painted >>= OPAQUE_BITS
    light += painted
    return light


def _colours(masks: _Masks, light: Plane, look: Look, draw: Draws) -> list[Image.Image]:
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
        planes.append(_image(plane).resize((width, height), Image.Resampling.BILINEAR))
    return planes


def _enlarged(coarse: NDArray[np.signedinteger], height: int, width: int) -> Plane:
    """A coarse plane at CELL times its size, cut to bytes, as int16 [height, width]."""
    rows, columns = coarse.shape
    # Whole cells, of which the edges are cut off.
    size = (columns * CELL, rows * CELL)
    whole = _image(coarse).resize(size, Image.Resampling.BILINEAR)
    return np.asarray(whole)[:height, :width].astype(np.int16)


def _image(plane: NDArray[np.signedinteger]) -> Image.Image:
    return Image.fromarray(plane.clip(0, 255).astype(np.uint8))


def noise(which: int, height: int, width: int, draw: Draws) -> Plane:
    """A part of a noise plane, [height, width], mirrored or not.

    Its values are at most CLIP_STD standard deviations from 0.
    """
    whole = noise_plane(which)
    top, left = draw.below(len(whole) - height + 1), draw.below(len(whole) - width + 1)
    part = whole[top : top + height, left : left + width]
    return part[:: draw.sign(), :: draw.sign()]


@cache
def noise_plane(number: int) -> Plane:
    """One of FIELDS planes of 1/f noise or, after those, a texture of KINDS.

    All of them take a second per process, and 40 MB.
    """
    is_field = number < FIELDS
    side, std = (SIDE, FIELD_STD) if is_field else (TILE, TEXTURE_STD)
    # Waves a pixel of each Fourier coefficient.
    down, across = np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None]
    frequency = np.hypot(down, across)
    if is_field:
        amplitude = np.zeros_like(frequency)
        kept = frequency >= 1 / LONGEST_WAVE
        amplitude[kept] = frequency[kept] ** -SLOPE
        return _summed(amplitude, std, number)
    amplitude = _bell((frequency * WAVELENGTH - 1) / BANDWIDTH)
    if kind := KINDS[number - FIELDS]:
        direction = np.degrees(np.arctan2(down, across))
        turns = [(direction - wanted + 90) % 180 - 90 for wanted in kind]
        amplitude = amplitude * sum(_bell(turn / SPREAD_DEG) for turn in turns)
    return np.tile(_summed(amplitude, std, number), (2, 2))


def _bell(deviation: Floats) -> Floats:
    return np.exp(-0.5 * deviation**2)


def _summed(amplitude: Floats, std: int, number: int) -> Plane:
    """Waves of these amplitudes [side, side / 2 + 1] and random phases, added up and scaled."""
    raw = np.asarray(np.random.PCG64((NOISE_STREAM, number)).random_raw(amplitude.size))
    fractions = (raw >> np.uint64(11)) * 2.0**-53  # from 0 to below 1, in as many bits as float64
    phase = 2 * np.pi * fractions.reshape(amplitude.shape)
    waves = np.fft.irfft2(amplitude * np.exp(1j * phase), s=(len(amplitude),) * 2)
    waves *= std / waves.std()
    return np.rint(waves.clip(-CLIP_STD * std, CLIP_STD * std)).astype(np.int16)
