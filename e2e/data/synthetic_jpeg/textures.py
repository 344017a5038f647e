"""The noise that all made images are cut from: fields with an amplitude of 1/f, and textures.

They are Fourier sums of random phase, computed once in a process and rounded to whole numbers;
after that an image needs no rounding. The sums are off by 1e-13 of a step or so: on another machine
a pixel differs once in thousands of data sets.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from e2e.data.synthetic_jpeg.rng import Draws, fractions

Plane = NDArray[np.int16]
Floats = NDArray[np.floating]

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


class Fields:
    """Windows of noise, int16: standard deviation FIELD_STD or TEXTURE_STD, at most 5 of these."""

    def __init__(self) -> None:
        self._noise = [_noise(number) for number in range(FIELDS)]
        self._textures = [_texture(number) for number in range(len(KINDS))]

    def noise(self, which: int, height: int, width: int, draw: Draws) -> Plane:
        """A part of a field, mirrored or not. The amplitude falls as 1/f."""
        return _window(self._noise[which], height, width, draw)

    def texture(self, kind: int, height: int, width: int, draw: Draws) -> Plane:
        """A part of a texture of KINDS, mirrored or not."""
        return _window(self._textures[kind], height, width, draw)


@lru_cache(maxsize=1)
def fields() -> Fields:
    """The fields of this process; they take about a second the first time, and 40 MB."""
    return Fields()


def _window(plane: Plane, height: int, width: int, draw: Draws) -> Plane:
    top, left = draw.below(len(plane) - height + 1), draw.below(len(plane) - width + 1)
    part = plane[top : top + height, left : left + width]
    return part[:: draw.sign(), :: draw.sign()]


def _noise(number: int) -> Plane:
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
    phase = 2 * np.pi * fractions(amplitude.size, STREAM, number).reshape(amplitude.shape)
    plane = np.fft.irfft2(amplitude * np.exp(1j * phase), s=(len(amplitude),) * 2)
    plane *= std / plane.std()
    return np.rint(plane.clip(-CLIP_STD * std, CLIP_STD * std)).astype(np.int16)
