"""The masks and textures that generated images are put together from, in integers alone.

Nothing here rounds: the arrays are the same bytes on every machine.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Shape = Callable[[Ints, Ints], NDArray[np.bool_]]

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


def _disc(x: Ints, y: Ints) -> NDArray[np.bool_]:
    return x * x + y * y <= 900**2


def _ring(x: Ints, y: Ints) -> NDArray[np.bool_]:
    return _disc(x, y) & (x * x + y * y >= 500**2)


def _square(x: Ints, y: Ints) -> NDArray[np.bool_]:
    return np.maximum(abs(x), abs(y)) <= 800


def _frame(x: Ints, y: Ints) -> NDArray[np.bool_]:
    return _square(x, y) & (np.maximum(abs(x), abs(y)) >= 450)


def _triangle(x: Ints, y: Ints) -> NDArray[np.bool_]:
    return (y <= 750) & (2 * abs(x) <= y + 1000)


def _plus(x: Ints, y: Ints) -> NDArray[np.bool_]:
    return (np.minimum(abs(x), abs(y)) <= 260) & (np.maximum(abs(x), abs(y)) <= 950)


def _cross(x: Ints, y: Ints) -> NDArray[np.bool_]:
    return (abs(abs(x) - abs(y)) <= 370) & (np.maximum(abs(x), abs(y)) <= 850)


def _diamond(x: Ints, y: Ints) -> NDArray[np.bool_]:
    return abs(x) + abs(y) <= UNIT


def _bars(x: Ints, y: Ints) -> NDArray[np.bool_]:
    return (abs(x) <= 850) & ((abs(y) <= 170) | ((abs(y) >= 520) & (abs(y) <= 860)))


def _hourglass(x: Ints, y: Ints) -> NDArray[np.bool_]:
    return (abs(y) <= 850) & (abs(x) <= abs(y) + 60)


# Class by class. Each is its own mirror image, as an augmentation flips.
CLASSES: dict[str, Shape] = {
    "disc": _disc,
    "ring": _ring,
    "square": _square,
    "frame": _frame,
    "triangle": _triangle,
    "plus": _plus,
    "cross": _cross,
    "diamond": _diamond,
    "bars": _bars,
    "hourglass": _hourglass,
}
# What is in the picture besides, and says nothing of its class.
DISTRACTORS: tuple[Shape, ...] = (
    lambda x, y: (abs(x) <= 950) & (abs(y) <= 150),
    lambda x, y: (abs(x) <= 150) & (abs(y) <= 950),
    lambda x, y: abs(x - y) <= 230,
    lambda x, y: abs(x + y) <= 230,
    lambda x, y: (x * x + y * y <= 900**2) & (x * x + y * y >= 600**2) & (y <= -100),
    lambda x, y: (abs(x) <= 950) & (abs(abs(y) - 700) <= 120),
)


def shape_masks() -> NDArray[np.int16]:
    """Every class at every size and turn: [classes, variants, CANVAS, CANVAS], 0 to OPAQUE."""
    return np.stack([_variants(shape) for shape in CLASSES.values()])


def distractor_masks() -> NDArray[np.int16]:
    """The distractors at every size and turn: [any, CANVAS, CANVAS], 0 to OPAQUE."""
    return np.concatenate([_variants(shape) for shape in DISTRACTORS])


def _variants(shape: Shape) -> NDArray[np.int16]:
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


def textures(raw: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Smooth noise with the spectrum of photographs: [TEXTURES, TEXTURE, TEXTURE], about +-120.

    Octaves of equal strength are an amplitude that falls as 1/frequency. `raw` is random:
    `texture_bytes()` of it.
    """
    total = np.zeros((TEXTURES, TEXTURE, TEXTURE), np.int64)
    for waves in WAVES:
        cells, raw = raw[: TEXTURES * waves**2], raw[TEXTURES * waves**2 :]
        grid = cells.reshape(TEXTURES, waves, waves).astype(np.int64) - 128
        total += _stretched(_stretched(grid, 1), 2)
    return (total >> 1).astype(np.int16)


def texture_bytes() -> int:
    """How many random bytes `textures` uses."""
    return TEXTURES * sum(waves**2 for waves in WAVES)


def _stretched(grid: Ints, axis: int) -> Ints:
    """The grid at TEXTURE points along an axis: straight lines, the end joined to the start."""
    factor = TEXTURE // grid.shape[axis]
    following = np.roll(grid, -1, axis)
    steps = [(grid * (factor - i) + following * i) // factor for i in range(factor)]
    stacked = np.stack(steps, axis + 1)
    return stacked.reshape(*grid.shape[:axis], TEXTURE, *grid.shape[axis + 1 :])
