"""Small images for tests of data and loaders: as pixels, as files, and recognised in a batch."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from e2e.data.types import IMAGENET


def noise(seed: int, size: tuple[int, int] = (40, 32)) -> Image.Image:
    """Random pixels; `size` is (width, height)."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)
    return Image.fromarray(pixels)


def photo(seed: int, size: tuple[int, int] = (40, 32)) -> Image.Image:
    """Smooth colours, which a JPEG hardly changes."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


def flat(level: int) -> Image.Image:
    """One grey: it is the same however it is cut."""
    return Image.new("RGB", (24, 20), (level, level, level))


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """The image's file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def put(path: Path, content: bytes) -> Path:
    """Write a file, and the folders that it is in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def save(image: Image.Image, path: Path, **options: Any) -> Path:
    """Write an image in the format of its name's suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def flat_folder(folder: Path) -> Path:
    """Flat images of two classes, each as bright as 10 times its number: 20, and 4 held out."""
    for part, count in (("train", 20), ("val", 4)):
        for number in range(count):
            path = folder / part / "ab"[number % 2] / f"{number}.jpg"
            put(path, encoded(flat(10 * number)))
    return folder


def levels(batches: Iterable[tuple[Tensor, Tensor]]) -> list[int]:
    """The greys of the flat images in normalised batches."""
    scale, shift = IMAGENET.scale_and_shift(torch.device("cpu"))
    return [
        round(level)
        for images, _ in batches
        for level in ((images - shift) / scale).mean((1, 2, 3)).tolist()
    ]
