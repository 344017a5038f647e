"""Decodes image files to RGB pixels, and says what is wrong with those that it cannot decode."""

from __future__ import annotations

import warnings
from io import BytesIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.ExifTags import Base

from e2e.data.loaders.crop_table import ORIENTATIONS
from e2e.data.types import Files, Source
from microbench.errors import UserError


def decode(content: bytes) -> Image.Image:
    """The image in a file's bytes as RGB, upright. Raises Pillow's error for a broken one."""
    with warnings.catch_warnings(action="ignore"), Image.open(BytesIO(content)) as image:
        image.load()
        ImageOps.exif_transpose(image, in_place=True)
        if image.mode == "RGB":
            return image
        if image.mode == "I" or image.mode.startswith("I;16"):
            return _of_16_bits(image)
        return image.convert("RGB")


def orientation_of(image: Image.Image) -> int:
    """The EXIF orientation; 1 where the image has no known one."""
    orientation = image.getexif().get(Base.Orientation, 1)
    return orientation if orientation in ORIENTATIONS else 1


def short(error: Exception) -> str:
    """What is wrong with a file, in at most 80 characters without its path."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).splitlines()
    return lines[0][:80] if lines else type(error).__name__


def none_left(source: Source) -> UserError:
    """The UserError to raise when no image of a source could be decoded."""
    assert isinstance(source, Files), "arrays do not break"
    count = len(source.pictures)
    return UserError(f"none of the {count:,} training images in {source.root} can be decoded")


def _of_16_bits(image: Image.Image) -> Image.Image:
    values = np.asarray(image).astype(np.int64)
    if values.max() > 255:
        values >>= 8
    return Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert("RGB")
