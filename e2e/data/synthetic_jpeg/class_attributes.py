"""What tells the classes apart: the texture, the hue, the outline and the brightness of an object.

A class is a combination of these and shares each of them with other classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from e2e.data.synthetic_jpeg.textures import KINDS

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
