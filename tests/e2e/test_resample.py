"""Crops of images for the resample kernel; the kernel itself: test_interpreted, test_compiled."""

from __future__ import annotations

import re
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from samples.resampling import reference  # noqa: E402
from torch import Tensor  # noqa: E402

from e2e.data.loaders.crop_table import ORIENTATIONS, crop_table, upright_size  # noqa: E402

Box = tuple[int, int, int, int]
Crop = tuple[tuple[int, int], Box, bool, int]  # stored height and width, box, flip, orientation


@st.composite
def crops(draw: st.DrawFn) -> Crop:
    """Any box of any small image."""
    stored = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    orientation = draw(st.sampled_from(ORIENTATIONS))
    height, width = upright_size(*stored, orientation)
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    box = top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left))
    return stored, box, draw(st.booleans()), orientation


def arguments(*crops: Crop) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes, flips and orientations as `resample` takes them."""
    boxes, flips, orientations = (torch.tensor([crop[i] for crop in crops]) for i in (1, 2, 3))
    return boxes, flips, orientations


def turned_by_pillow(image: Tensor, orientation: int) -> Tensor:
    file, exif = BytesIO(), Image.Exif()
    exif[274] = orientation
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "PNG", exif=exif)
    upright = ImageOps.exif_transpose(Image.open(file))
    return torch.from_numpy(np.array(upright)).permute(2, 0, 1)


@given(crops())
@settings(max_examples=60)
def test_the_table_walks_the_crop_as_pillow_turns_it_and_torchs_filter_agrees(crop: Crop) -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.randint(256, (3, *crop[0]), generator=generator, dtype=torch.uint8)
    (table,) = crop_table([0], [crop[0]], *arguments(crop)).tolist()
    first, plane, down, across, height, width = table
    walked = [
        [[c * plane + first + y * down + x * across for x in range(width)] for y in range(height)]
        for c in range(3)
    ]
    upright = turned_by_pillow(image, crop[3])
    top, left, height, width = crop[1]
    cut = upright[:, top : top + height, left : left + width]
    assert torch.equal(image.flatten()[torch.tensor(walked)], cut.flip(2) if crop[2] else cut)
    (found,) = reference([image], *arguments(crop), (5, 7), torch.ones(3), torch.zeros(3))
    (wanted,) = torch.nn.functional.interpolate(
        cut[None].float(), size=(5, 7), mode="bilinear", antialias=True
    )
    assert torch.allclose(found.float(), wanted.flip(2) if crop[2] else wanted, atol=1e-3)


@pytest.mark.parametrize(
    "box", [(-1, 0, 2, 2), (0, 0, 0, 2), (0, 0, 5, 2), (0, 3, 2, 2), (3, 0, 2, 2)]
)
def test_a_box_beyond_its_image_is_refused_and_an_orientation_that_exif_has_not(box: Box) -> None:
    how = arguments(((4, 4), (0, 0, 4, 4), False, 1), ((4, 4), box, False, 1))
    with pytest.raises(ValueError, match=re.escape(f"box {list(box)} of image 1 is not in its")):
        crop_table([0, 0], [(4, 4)] * 2, *how)
    for orientation in (0, 9):
        with pytest.raises(ValueError, match="orientations are"):
            crop_table([0], [(4, 4)], *arguments(((4, 4), (0, 0, 4, 4), False, orientation)))
