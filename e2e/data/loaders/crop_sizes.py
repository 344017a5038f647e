"""The sizes of images before they are cropped, and the memory that they need.

It does without torchvision, which takes seconds to load and is not needed for images in memory.
"""

from __future__ import annotations

import math

PADDING = 4  # pixels that a crop of a small image may lie beyond it, where the image is mirrored
CENTRE = 224 / 256  # of the shorter side: the centre crop of a held-out image
SHARE = 0.5  # of the device's free memory that images may take: training needs the rest


def kept_size(size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) in pixels of an image before crops of `size`: 256 for every 224."""
    return math.ceil(size[0] / CENTRE), math.ceil(size[1] / CENTRE)


def kept_bytes(count: int, size: tuple[int, int]) -> int:
    """Bytes needed to keep `count` predecoded images of `kept_size(size)`: uint8, 3 channels."""
    height, width = kept_size(size)
    return count * 3 * height * width


def no_room(count: int, size: tuple[int, int], free_bytes: int | None) -> str | None:
    """Why `count` images for crops of `size` may not be kept on the device, or None.

    The limit is half of the free bytes; None if those are unknown.
    """
    needed = kept_bytes(count, size)
    if free_bytes is None or needed <= SHARE * free_bytes:
        return None
    return (
        f"loader resident keeps {count:,} images in {needed / 1e9:,.1f} GB of the device's memory, "
        f"more than half of the {free_bytes / 1e9:,.1f} GB that are free; another --loader reads "
        "them as it goes"
    )
