"""The resample kernel: right in the interpreter, and without spills for sm_90.

TRITON_INTERPRET must be set before triton is imported, so the interpreted batches run in a process
of their own: this file, as a script, prints {case: [error, tolerance]}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from samples.hopper import assembled

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from samples.resampling import prepare, reference  # noqa: E402
from torch import Tensor  # noqa: E402

from kernels.resample.geometry import ORIENTATIONS, crop_table, upright_size  # noqa: E402

TOLERANCE = 2e-6  # of the largest value: float32 sums of a few dozen bytes
SIZE = (5, 7)
SCALE, SHIFT = (0.5, -1.0, 2.0), (1.0, 0.0, -3.0)
Crop = tuple[tuple[int, int], tuple[int, int, int, int], bool, int]

# Stored height and width, box, flip, orientation; each batch has images of several sizes.
BATCHES: dict[str, list[Crop]] = {
    **{
        f"orientation {n}": [
            ((11, 14), (1, 2, 9, 8), False, n),
            ((11, 14), (0, 0, *upright_size(11, 14, n)), True, n),
        ]
        for n in ORIENTATIONS
    },
    "larger than the box": [((3, 4), (0, 0, 3, 4), False, 1), ((4, 9), (1, 3, 2, 3), True, 1)],
    "one pixel": [((1, 1), (0, 0, 1, 1), True, 5), ((6, 5), (5, 4, 1, 1), False, 1)],
    "edges": [((13, 12), (4, 5, 9, 7), False, 1), ((13, 12), (0, 0, 9, 7), True, 3)],
    "the very size": [((8, 9), (2, 1, *SIZE), False, 1)],
    "one axis up, one down": [((30, 2), (0, 0, 30, 2), False, 1)],
}


def images(crops: Sequence[Crop], seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(256, (3, *size), generator=generator, dtype=torch.uint8) for size, *_ in crops
    ]


def arguments(crops: Sequence[Crop]) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes, flips and orientations as `resample` takes them."""
    boxes = torch.tensor([box for _, box, _, _ in crops])
    flips = torch.tensor([flip for _, _, flip, _ in crops])
    return boxes, flips, torch.tensor([orientation for *_, orientation in crops])


def interpret() -> None:
    """Run all BATCHES, in both layouts by turns, and print errors and tolerances as JSON."""
    errors = {}
    scale, shift = torch.tensor(SCALE), torch.tensor(SHIFT)
    for n, (name, crops) in enumerate(BATCHES.items()):
        batch, cuts = images(crops, n), arguments(crops)
        wanted = reference(batch, *cuts, SIZE, scale, shift)
        found = prepare(batch, *cuts, SIZE, scale, shift, channels_last=bool(n % 2)).launch()
        layout = torch.channels_last if n % 2 else torch.contiguous_format
        assert found.is_contiguous(memory_format=layout)
        errors[name] = [((found - wanted).abs().max() / wanted.abs().max()).item(), TOLERANCE]
    errors["interpolate"] = [against_torch(), TOLERANCE]
    print(json.dumps(errors))


def against_torch() -> float:
    """The largest difference to torch's own filter, of 255."""
    crops = [((23, 40), (3, 1, 20, 33), False, 1), ((23, 40), (8, 9, 3, 4), False, 1)]
    batch, one = images(crops), torch.ones(3)
    found = prepare(batch, *arguments(crops), SIZE, one, torch.zeros(3)).launch()
    wanted = [interpolated(image, box) for image, (_, box, _, _) in zip(batch, crops, strict=True)]
    return ((found - torch.stack(wanted)).abs().max() / 255).item()


def interpolated(image: Tensor, box: tuple[int, int, int, int]) -> Tensor:
    top, left, height, width = box
    crop = image[None, :, top : top + height, left : left + width].float()
    return torch.nn.functional.interpolate(crop, size=SIZE, mode="bilinear", antialias=True)[0]


@pytest.mark.parametrize("name", [*BATCHES, "interpolate"])
def test_right_in_the_interpreter(name: str, errors: dict[str, list[float]]):
    found, tolerance = errors[name]
    assert found <= tolerance


@st.composite
def crops(draw: st.DrawFn) -> Crop:
    """Any box of any small image."""
    stored = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    orientation = draw(st.sampled_from(ORIENTATIONS))
    height, width = upright_size(*stored, orientation)
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    box = top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left))
    return stored, box, draw(st.booleans()), orientation


@given(crops())
@settings(max_examples=60)
def test_the_table_walks_the_crop_as_pillow_turns_it(crop: Crop):
    (image,) = images([crop])
    (table,) = crop_table([0], [crop[0]], *arguments([crop])).tolist()
    first, plane, down, across, height, width = table
    walked = [
        [[c * plane + first + y * down + x * across for x in range(width)] for y in range(height)]
        for c in range(3)
    ]
    upright = turned_by_pillow(image, crop[3])
    top, left, height, width = crop[1]
    wanted = upright[:, top : top + height, left : left + width]
    assert torch.equal(image.flatten()[torch.tensor(walked)], wanted.flip(2) if crop[2] else wanted)


def turned_by_pillow(image: Tensor, orientation: int) -> Tensor:
    file, exif = BytesIO(), Image.Exif()
    exif[274] = orientation
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "PNG", exif=exif)
    upright = ImageOps.exif_transpose(Image.open(file))
    return torch.from_numpy(np.array(upright)).permute(2, 0, 1)


@given(crops())
@settings(max_examples=40)
def test_the_reference_is_torchs_filter(crop: Crop):
    (image,) = images([crop])
    _, box, flip, orientation = crop
    (found,) = reference([image], *arguments([crop]), SIZE, torch.ones(3), torch.zeros(3))
    wanted = interpolated(turned_by_pillow(image, orientation), box)
    assert torch.allclose(found.float(), wanted.flip(2) if flip else wanted, atol=1e-3)


@pytest.mark.parametrize(
    "box", [(-1, 0, 2, 2), (0, 0, 0, 2), (0, 0, 5, 2), (0, 3, 2, 2), (3, 0, 2, 2)]
)
def test_a_box_beyond_its_image_is_refused(box: tuple[int, int, int, int]):
    whole: Crop = (4, 4), (0, 0, 4, 4), False, 1
    with pytest.raises(ValueError, match=re.escape(f"box {list(box)} of image 1 is not in its")):
        crop_table([0, 0], [(4, 4)] * 2, *arguments([whole, ((4, 4), box, False, 1)]))


@pytest.mark.parametrize("orientation", [0, 9])
def test_an_orientation_that_exif_has_not_is_refused(orientation: int):
    with pytest.raises(ValueError, match="orientations are"):
        crop_table([0], [(4, 4)], *arguments([((4, 4), (0, 0, 4, 4), False, orientation)]))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("channels_last", [False, True])
def test_compiles_for_hopper_without_spills(channels_last: bool, tmp_path: Path):
    crops: list[Crop] = [((500, 375), (0, 0, 500, 375), False, 1)]
    one = torch.ones(3)
    ready = prepare(images(crops), *arguments(crops), (224, 224), one, one, channels_last)
    _, log, spilled = assembled(ready.step.compile(), tmp_path)
    assert spilled == 0, log
    registers = int(re.findall(r"Used (\d+) registers", log)[0])
    assert registers <= 64  # so that half of all threads an SM can hold are there


if __name__ == "__main__":
    interpret()
