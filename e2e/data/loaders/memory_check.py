"""How much of the device's memory images take that are decoded once and kept there."""

from __future__ import annotations

import math

CENTRE = 224 / 256  # of the shorter side, what is kept of a held-out image
SHARE = 0.5  # of the device's free memory that images may take: training needs the rest


def kept_size(size: tuple[int, int]) -> tuple[int, int]:
    """Height and width of an image that cuts of `size` are taken from: 256 pixels for every 224."""
    return math.ceil(size[0] / CENTRE), math.ceil(size[1] / CENTRE)


def kept_bytes(count: int, size: tuple[int, int]) -> int:
    """What so many images take of which cuts of `size` are taken."""
    height, width = kept_size(size)
    return count * 3 * height * width


def no_room(count: int, size: tuple[int, int], free_bytes: int | None) -> str | None:
    """Why so many images, of which cuts of `size` are taken, may not be kept; None where they may,
    or where nobody knows how much is free.
    """
    needed = kept_bytes(count, size)
    if free_bytes is None or needed <= SHARE * free_bytes:
        return None
    return (
        f"loader resident keeps {count:,} images in {needed / 1e9:,.1f} GB of the device's memory, "
        f"more than half of the {free_bytes / 1e9:,.1f} GB that are free; another --loader reads "
        "them as it goes"
    )
