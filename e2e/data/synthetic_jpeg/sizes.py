"""How large made images are, and how strongly compressed: about as those of ImageNet.

Most of ImageNet came from Flickr, which gives photographs 500 pixels at their longer side; the rest
goes from thumbnails to thousands. Most are compressed at quality 96 without halving the colours'
resolution (terryalanunlimited.com/compression-in-the-imagenet-dataset, read with torchjpeg).
"""

from __future__ import annotations

from dataclasses import dataclass

from e2e.data.synthetic_jpeg.rng import Draws

STREAM = 0  # of an image's size; that of its pixels is another
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


@dataclass(frozen=True)
class Size:
    """Pixels, and Pillow's quality and subsampling."""

    height: int
    width: int
    quality: int
    subsampling: int


def size_of(seed: int, index: int) -> Size:
    """The size of an image."""
    draw = Draws(seed, index, STREAM)
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
