"""A generated stand-in for CIFAR-10: same sizes, and a network has to learn it.

An image shows one of ten shapes (disc, ring, ... hourglass) anywhere, large or small, slightly
rotated, filled with one smooth texture and colour before another, behind or in front of a
distractor, under noise. Lighter or darker than the background is random, so that the mean image of
a class is flat and a linear model learns nothing. In AMBIGUOUS_PCT of the images the distractor is
a shape of another class, and nothing tells which of the two the label names: the best possible
accuracy is about 100 % less half of that.

The bytes are the same on every machine and with any number of threads: integer arithmetic only, on
the raw stream of NumPy's PCG64, which NumPy promises to keep.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from e2e.data.types import Arrays, Normal

Ints = NDArray[np.integer]
Shape = Callable[[Ints, Ints], NDArray[np.bool_]]

TRAIN, HELD_OUT = 50_000, 10_000
SAMPLE = (3, 32, 32)
NORMAL = Normal((0.458, 0.458, 0.458), (0.196, 0.196, 0.196))

SEED = 20_240_607  # of the data set, independent of a run's seed
TEXTURE_STREAM, TRAIN_STREAM, HELD_OUT_STREAM = 0, 1, 2  # of random numbers
DRAWN_BYTES = 64  # random bytes an image, besides those of its noise
NOISE_BYTES = 3 * 32 * 32
CHUNK = 200  # images made at a time, so that they stay in the processor's caches
MAX_THREADS = 8

# How hard it is. A range is drawn from for each image, both ends included.
AMBIGUOUS_PCT = 12
GROUND = (48, 207)  # the background's colour
CONTRAST = (30, 90)  # by how much a shape's colour is above or below it
DARKEST, LIGHTEST = 24, 231  # a shape that would be beyond is on the other side of its ground
GAIN = (20, 70)  # of a texture, which goes from -120 to 120 or so, in parts of 2 ** GAIN_BITS
GAIN_BITS = 7
NOISE = (8, 40)  # of noise from -15 to 15, in parts of 16
MARGIN = 2  # pixels that a mask's window stays away from the ends of its canvas

CANVAS = 48  # pixels a side of a mask; a window of 32 moved over it moves the shape in the image
OPAQUE_BITS = 6
OPAQUE = 1 << OPAQUE_BITS  # a mask's value where the shape covers the whole pixel
SUBPIXELS = 3  # a side: edges are smooth, as those of photographs
UNIT = 1000  # a shape's half-width in its own coordinates
RADII = range(7, 13)  # half-widths in pixels
# Angles whose sine and cosine are fractions of integers, so that turning needs no rounding:
# 0, 10.4, 16.3 and 22.6 degrees, both ways, which keeps every class closed under mirroring.
TURNS = ((0, 1, 1), *((s * a, b, c) for a, b, c in ((11, 60, 61), (7, 24, 25), (5, 12, 13))
                      for s in (-1, 1)))  # fmt: skip

TEXTURE = 64  # pixels a side of a texture, which repeats itself beyond its edges
TEXTURES = 128
WAVES = (2, 4, 8, 16, 32)  # cells a side in each octave

# Class by class. Each is its own mirror image, as an augmentation flips.
SHAPES: tuple[Shape, ...] = (
    lambda x, y: x * x + y * y <= 900**2,  # a disc
    lambda x, y: (x * x + y * y <= 900**2) & (x * x + y * y >= 500**2),  # a ring
    lambda x, y: np.maximum(abs(x), abs(y)) <= 800,  # a square
    lambda x, y: (np.maximum(abs(x), abs(y)) <= 800) & (np.maximum(abs(x), abs(y)) >= 450),  # frame
    lambda x, y: (y <= 750) & (2 * abs(x) <= y + 1000),  # a triangle
    lambda x, y: (np.minimum(abs(x), abs(y)) <= 260) & (np.maximum(abs(x), abs(y)) <= 950),  # plus
    lambda x, y: (abs(abs(x) - abs(y)) <= 370) & (np.maximum(abs(x), abs(y)) <= 850),  # a cross
    lambda x, y: abs(x) + abs(y) <= UNIT,  # a diamond
    lambda x, y: (abs(x) <= 850) & ((abs(y) <= 170) | ((abs(y) >= 520) & (abs(y) <= 860))),  # bars
    lambda x, y: (abs(y) <= 850) & (abs(x) <= abs(y) + 60),  # an hourglass
)
CLASSES = len(SHAPES)
# Distractors: they do not depend on the class.
DISTRACTORS: tuple[Shape, ...] = (
    lambda x, y: (abs(x) <= 950) & (abs(y) <= 150),
    lambda x, y: (abs(x) <= 150) & (abs(y) <= 950),
    lambda x, y: abs(x - y) <= 230,
    lambda x, y: abs(x + y) <= 230,
    lambda x, y: (x * x + y * y <= 900**2) & (x * x + y * y >= 600**2) & (y <= -100),
    lambda x, y: (abs(x) <= 950) & (abs(abs(y) - 700) <= 120),
)


@lru_cache(maxsize=1)
def images() -> tuple[Arrays, Arrays]:
    """(training, held-out) images, uint8 [N, 3, 32, 32]. Some seconds, once per process."""
    world = _World()
    return world.images(TRAIN_STREAM, TRAIN), world.images(HELD_OUT_STREAM, HELD_OUT)


class _World:
    """The masks and textures that all images share, as windows of an image's size at any offset."""

    def __init__(self) -> None:
        masks = [_variants(shape) for shape in (*SHAPES, *DISTRACTORS)]
        self._variants = len(RADII) * len(TURNS)
        self._first_distractor = CLASSES * self._variants
        self._distractors = len(DISTRACTORS) * self._variants
        self._masks = _windows(np.concatenate(masks))
        self._textures = _windows(_smooth_noise())

    def images(self, stream: int, count: int) -> Arrays:
        """`count` images from a stream of random numbers; the classes take turns."""
        raw = _random_bytes(stream, count * (DRAWN_BYTES + NOISE_BYTES))
        drawn = raw[: count * DRAWN_BYTES].reshape(count, DRAWN_BYTES)
        noise = raw[count * DRAWN_BYTES :].reshape(count, *SAMPLE)
        labels = np.arange(count) % CLASSES
        pixels = np.empty((count, *SAMPLE), np.uint8)

        def make(at: int) -> None:
            some = slice(at, at + CHUNK)
            pixels[some] = self._made(_Draws(drawn[some]), noise[some], labels[some])

        # Threads, as NumPy lets go of the interpreter while it computes.
        with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as threads:
            list(threads.map(make, range(0, count, CHUNK)))
        return Arrays(torch.as_tensor(pixels), torch.as_tensor(labels))

    def _made(self, draw: _Draws, noise: NDArray[np.uint8], labels: Ints) -> Ints:
        """Images [N, 3, 32, 32], from 0 to 255."""
        shape = self._placed(labels * self._variants + draw.below(self._variants, wide=True), draw)
        other = self._other(draw, labels)
        ahead = draw.below(2)[:, None, None] == 1
        ground = draw.between(GROUND, 3)
        pixels = _textured(ground, self._texture(draw), draw)
        fill = self._texture(draw)
        for mask in (np.where(ahead, other, shape), np.where(ahead, shape, other)):
            paint = _textured(_contrasting(ground, draw), fill, draw)
            # In 16 bits: a difference is below 500, and a mask is at most 64.
            pixels += ((paint - pixels) * mask[:, None]) >> OPAQUE_BITS
        pixels += _scaled_noise(noise, draw)
        return pixels.clip(0, 255)

    def _other(self, draw: _Draws, labels: Ints) -> Ints:
        """Masks of distractors; in an ambiguous image, of a shape of another class."""
        label = (labels + 1 + draw.below(CLASSES - 1)) % CLASSES
        shape = label * self._variants + draw.below(self._variants, wide=True)
        distractor = self._first_distractor + draw.below(self._distractors, wide=True)
        ambiguous = draw.below(100, wide=True) < AMBIGUOUS_PCT
        return self._placed(np.where(ambiguous, shape, distractor), draw)

    def _placed(self, which: Ints, draw: _Draws) -> Ints:
        """These masks, anywhere in the image: int16 [N, 32, 32]."""
        ends = (MARGIN, CANVAS - SAMPLE[1] - MARGIN)
        down, across = draw.between(ends), draw.between(ends)
        return self._masks[which, down, across]

    def _texture(self, draw: _Draws) -> Ints:
        ends = (0, TEXTURE - SAMPLE[1])
        which = draw.below(TEXTURES)
        down, across = draw.between(ends), draw.between(ends)
        return self._textures[which, down, across]


class _Draws:
    """Hands out the images' random bytes [N, DRAWN_BYTES] as numbers, for all images at once."""

    def __init__(self, raw: NDArray[np.uint8]) -> None:
        self._raw = raw
        self._at = 0

    def below(self, limit: int, columns: int = 0, *, wide: bool = False) -> Ints:
        """int64 [N], or [N, columns], from 0 to limit - 1. Of two bytes each when `wide`."""
        count = max(columns, 1) * (2 if wide else 1)
        self._at += count
        assert self._at <= DRAWN_BYTES
        values = self._raw[:, self._at - count : self._at].astype(np.int64)
        if wide:
            values = values[:, 0::2] + 256 * values[:, 1::2]
        values %= limit
        return values if columns else values[:, 0]

    def between(self, ends: tuple[int, int], columns: int = 0) -> Ints:
        """From one end to the other, both included."""
        return ends[0] + self.below(ends[1] - ends[0] + 1, columns)

    def sign(self) -> Ints:
        """-1 or 1: [N, 1]."""
        return 1 - 2 * self.below(2, 1)


def _contrasting(ground: Ints, draw: _Draws) -> Ints:
    """Colours [N, 3] that differ from `ground` in every channel, mostly in one direction."""
    step = draw.sign() * draw.between(CONTRAST, 3)
    step = np.where(draw.below(4, 3) == 0, -step, step)
    beyond = (ground + step < DARKEST) | (ground + step > LIGHTEST)
    return np.where(beyond, ground - step, ground + step)


def _textured(colour: Ints, texture: Ints, draw: _Draws) -> Ints:
    """int16 [N, 3, 32, 32]: colours [N, 3] with textures [N, 32, 32], as they are or negated."""
    gain = draw.between(GAIN, 3) * draw.sign()
    pixels = texture[:, None] * _planes(gain)
    pixels >>= GAIN_BITS
    pixels += _planes(colour)
    return pixels


def _scaled_noise(raw: NDArray[np.uint8], draw: _Draws) -> Ints:
    """Noise with a peak in the middle: two halves of a random byte added up, less their mean."""
    noise = ((raw & 15) + (raw >> 4)).astype(np.int16)
    noise -= 15
    noise *= _planes(draw.between(NOISE, 1))
    noise >>= 4
    return noise


def _planes(values: Ints) -> NDArray[np.int16]:
    return values.astype(np.int16)[:, :, None, None]


def _random_bytes(stream: int, count: int) -> NDArray[np.uint8]:
    words = np.random.PCG64([SEED, stream]).random_raw(-(-count // 8))
    return np.asarray(words).astype("<u8", copy=False).view(np.uint8)[:count]


def _windows(planes: NDArray[np.int16]) -> Ints:
    """A view [planes, down, across, 32, 32]: every window of an image's size."""
    return np.lib.stride_tricks.sliding_window_view(planes, SAMPLE[1:], (1, 2))


def _variants(shape: Shape) -> NDArray[np.int16]:
    """The shape at every size and turn: [variants, CANVAS, CANVAS], 0 to OPAQUE."""
    return np.stack([_mask(shape, radius, turn) for radius in RADII for turn in TURNS])


def _mask(shape: Shape, radius: int, turn: tuple[int, int, int]) -> NDArray[np.int16]:
    side = CANVAS * SUBPIXELS
    # Odd numbers round the middle: points at the centres of subpixels, in halves of one.
    points = np.arange(1 - side, side, 2, dtype=np.int64)
    y, x = points[:, None], points[None, :]
    sine, cosine, hypotenuse = turn
    scale = 2 * SUBPIXELS * radius * hypotenuse
    turned_x = (cosine * x - sine * y) * UNIT // scale
    turned_y = (sine * x + cosine * y) * UNIT // scale
    within = shape(turned_x, turned_y)
    parts = within.reshape(CANVAS, SUBPIXELS, CANVAS, SUBPIXELS).sum(axis=(1, 3))
    return (parts * OPAQUE // SUBPIXELS**2).astype(np.int16)


def _smooth_noise() -> NDArray[np.int16]:
    """Textures with the spectrum of photographs: [TEXTURES, TEXTURE, TEXTURE], about +-120.

    Octaves of equal strength are an amplitude that falls as 1/frequency.
    """
    raw = _random_bytes(TEXTURE_STREAM, TEXTURES * sum(waves**2 for waves in WAVES))
    total = np.zeros((TEXTURES, TEXTURE, TEXTURE), np.int64)
    for waves in WAVES:
        cells, raw = raw[: TEXTURES * waves**2], raw[TEXTURES * waves**2 :]
        grid = cells.reshape(TEXTURES, waves, waves).astype(np.int64) - 128
        total += _stretched(_stretched(grid, 1), 2)
    return (total >> 1).astype(np.int16)


def _stretched(grid: Ints, axis: int) -> Ints:
    """The grid at TEXTURE points along an axis: straight lines, the end joined to the start."""
    factor = TEXTURE // grid.shape[axis]
    following = np.roll(grid, -1, axis)
    steps = [(grid * (factor - i) + following * i) // factor for i in range(factor)]
    stacked = np.stack(steps, axis + 1)
    return stacked.reshape(*grid.shape[:axis], TEXTURE, *grid.shape[axis + 1 :])
