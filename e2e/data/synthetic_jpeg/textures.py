"""Random numbers and noise that all synthetic images are cut from: 1/f fields, and textures.

NumPy promises to keep PCG64's raw stream. The noise is a Fourier sum of random phases, computed
once in a process and rounded to whole numbers; after that an image needs no rounding. The sums are
off by 1e-13 of a step or so: on another machine a pixel differs once in thousands of data sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.int16]
Floats = NDArray[np.floating]

UNIT_BITS = 53  # of a random fraction: what float64 holds
STREAM = 0x66_6C_64  # of random numbers; apart from those of images, whatever the seed
SIDE = 2048  # pixels a side of a field; an image is at most 1200
FIELDS = 2
FIELD_STD = 128
SLOPE = 1.1  # of the amplitude: 1/f ** SLOPE
LONGEST_WAVE = 1024  # pixels; what is longer would be the brightness of a whole image

TILE = 640  # pixels a side after which a texture repeats itself
TEXTURE_SIDE = 2 * TILE
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


class Draws:
    """Whole numbers one after another, of the stream that `key` names."""

    def __init__(self, *key: int) -> None:
        self._source = np.random.PCG64(key)

    def below(self, limit: int) -> int:
        """From 0 to limit - 1."""
        return int(self._source.random_raw()) % limit

    def between(self, ends: tuple[int, int]) -> int:
        """From one end to the other, both included."""
        return ends[0] + self.below(ends[1] - ends[0] + 1)

    def sign(self) -> int:
        """-1 or 1."""
        return 1 - 2 * self.below(2)

    def chance(self, pct: int) -> bool:
        """True in `pct` per cent of the cases."""
        return self.below(100) < pct

    def quantile(self, steps: Sequence[int]) -> int:
        """Of a distribution whose quantiles, equally far apart, are `steps`; linear between."""
        at, part = divmod(self.below((len(steps) - 1) << 16), 1 << 16)
        return steps[at] + ((steps[at + 1] - steps[at]) * part >> 16)


def noise(which: int, height: int, width: int, draw: Draws) -> Plane:
    """A part of a 1/f field, mirrored or not: standard deviation FIELD_STD, at most 5 of these."""
    return _window(planes().fields[which], height, width, draw)


def texture(kind: int, height: int, width: int, draw: Draws) -> Plane:
    """A part of a texture of KINDS, mirrored or not; standard deviation TEXTURE_STD."""
    return _window(planes().textures[kind], height, width, draw)


class Planes(NamedTuple):
    """What all images are cut from."""

    fields: list[Plane]
    textures: list[Plane]


@lru_cache(maxsize=1)
def planes() -> Planes:
    """The planes of this process; they take about a second the first time, and 40 MB."""
    return Planes(
        [_field(number) for number in range(FIELDS)],
        [_texture(number) for number in range(len(KINDS))],
    )


def _window(plane: Plane, height: int, width: int, draw: Draws) -> Plane:
    top, left = draw.below(len(plane) - height + 1), draw.below(len(plane) - width + 1)
    part = plane[top : top + height, left : left + width]
    return part[:: draw.sign(), :: draw.sign()]


def _field(number: int) -> Plane:
    down, across = _frequencies(SIDE)
    frequency = np.hypot(down, across)
    amplitude = np.zeros_like(frequency)
    kept = frequency >= 1 / LONGEST_WAVE
    amplitude[kept] = frequency[kept] ** -SLOPE
    return _summed(amplitude, FIELD_STD, number)


def _texture(number: int) -> Plane:
    down, across = _frequencies(TILE)
    frequency = np.hypot(down, across)
    amplitude = _bell((frequency * WAVELENGTH - 1) / BANDWIDTH)
    kind = KINDS[number]
    if kind is not None:
        direction = np.degrees(np.arctan2(down, across))
        turns = [(direction - wanted + 90) % 180 - 90 for wanted in kind]
        amplitude = amplitude * sum(_bell(turn / SPREAD_DEG) for turn in turns)
    return np.tile(_summed(amplitude, TEXTURE_STD, FIELDS + number), (2, 2))


def _frequencies(side: int) -> tuple[Floats, Floats]:
    """Waves a pixel of each Fourier coefficient: [side, 1] and [1, side / 2 + 1]."""
    return np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None]


def _bell(deviation: Floats) -> Floats:
    return np.exp(-0.5 * deviation**2)


def _summed(amplitude: Floats, std: int, number: int) -> Plane:
    """Waves of these amplitudes [side, side / 2 + 1] and random phases, added up and scaled."""
    raw = np.asarray(np.random.PCG64((STREAM, number)).random_raw(amplitude.size))
    fractions = (raw >> np.uint64(64 - UNIT_BITS)) * 2.0**-UNIT_BITS  # from 0 to below 1
    phase = 2 * np.pi * fractions.reshape(amplitude.shape)
    plane = np.fft.irfft2(amplitude * np.exp(1j * phase), s=(len(amplitude),) * 2)
    plane *= std / plane.std()
    return np.rint(plane.clip(-CLIP_STD * std, CLIP_STD * std)).astype(np.int16)
