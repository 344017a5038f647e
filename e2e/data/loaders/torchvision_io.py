"""torchvision's own JPEG decoder in the workers, and its transforms on tensors."""

from __future__ import annotations

import warnings

import torch
from PIL import Image
from torch import Tensor
from torchvision.io import (  # pyright: ignore[reportMissingTypeStubs]
    ImageReadMode,
    decode_jpeg,
)
from torchvision.transforms.v2.functional import (  # pyright: ignore[reportMissingTypeStubs]
    pil_to_tensor,
)

from e2e.data.loaders.decode import decode
from e2e.data.loaders.pillow import random_cut
from e2e.data.loaders.pixels import Pictures, PixelFeed
from e2e.data.types import Files, Source, Tell, Wanted

JPEG = b"\xff\xd8\xff"
# Markers of a JPEG that begin a frame: all from C0 to CF but DHT, JPG and DAC.
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def open_feed(source: Source, wanted: Wanted, tell: Tell) -> PixelFeed:
    """The batches of back end torchvision, except for the rounding of decoder and resize."""
    assert isinstance(source, Files)
    samples = Pictures(source.pictures, pixels, random_cut(wanted.size), cold=wanted.cold)
    return PixelFeed(samples, source, wanted, tell)


def pixels(content: bytes) -> Tensor:
    """The image in a file's bytes, uint8 [3, H, W], upright. Raises Pillow's error if broken.

    Pillow decodes what is no JPEG, JPEGs that torchvision refuses, and those that Pillow may
    refuse: torchvision decodes a kilobyte that claims to be 10 GB.
    """
    if _is_usual_jpeg(content):
        encoded = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        try:
            with warnings.catch_warnings(action="ignore"):
                decoded = decode_jpeg(encoded, ImageReadMode.RGB, apply_exif_orientation=True)
            assert isinstance(decoded, Tensor)
            return decoded
        except RuntimeError:
            pass
    return pil_to_tensor(decode(content))


def _is_usual_jpeg(content: bytes) -> bool:
    """Whether this is a JPEG whose header claims no more pixels than Pillow takes gladly."""
    if not content.startswith(JPEG):
        return False
    at = 2
    while at + 9 <= len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if marker in FRAMES:
            height = int.from_bytes(content[at + 5 : at + 7])
            width = int.from_bytes(content[at + 7 : at + 9])
            return height * width <= (Image.MAX_IMAGE_PIXELS or 0)
        # A byte FF may fill up; all other segments before the frame say how long they are.
        at += 1 if marker == 0xFF else 2 + int.from_bytes(content[at + 2 : at + 4])
    return False
