"""On a GPU: the resample kernel against its reference, on images of the usual sizes and others."""

from __future__ import annotations

import pytest
import torch
from samples.resampling import prepare, reference
from samples.waiting import no_waits, while_busy
from torch import Tensor

from e2e.data.loaders.crop_table import ORIENTATIONS, upright_size
from e2e.data.loaders.jpeg_bytes import random_cut
from e2e.data.types import IMAGENET
from microbench.device.profiler import record

DEVICE = torch.device("cuda:0")
TOLERANCE = 2e-5  # of normalised values, which reach 2.7
SIZES = {
    "imagenet": [(375, 500), (500, 375), (333, 500), (500, 500)],
    "small": [(1, 1), (2, 300), (300, 2), (17, 31)],
    "large": [(3000, 4000), (2448, 3264)],
}

Cuts = tuple[Tensor, Tensor, Tensor]
Normal = tuple[Tensor, Tensor]  # scale and shift


def drawn(sizes: list[tuple[int, int]], count: int) -> tuple[list[Tensor], Cuts]:
    """Images of noise on the device, with cuts as in training and every orientation."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    images, boxes, flips, orientations = [], [], [], []
    for n in range(count):
        height, width = sizes[n % len(sizes)]
        orientation = ORIENTATIONS[n % len(ORIENTATIONS)]
        box, flip = random_cut(*upright_size(height, width, orientation), seed=n)
        images.append(
            torch.randint(256, (3, height, width), generator=generator, device=DEVICE).byte()
        )
        boxes.append(box)
        flips.append(flip)
        orientations.append(orientation)
    return images, (torch.tensor(boxes), torch.tensor(flips), torch.tensor(orientations))


@pytest.fixture
def normal() -> Normal:
    return IMAGENET.scale_and_shift(DEVICE)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("size", [(224, 224), (96, 130)])
def test_right_at_any_size(kind: str, size: tuple[int, int], channels_last: bool, normal: Normal):
    images, cuts = drawn(SIZES[kind], 16)
    found = prepare(images, *cuts, size, *normal, channels_last).launch()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert found.is_contiguous(memory_format=layout)
    wanted = reference(images, *cuts, size, *normal)
    assert (found.cpu() - wanted).abs().max() <= TOLERANCE


@pytest.mark.quick
def test_right_for_a_whole_batch_in_one_launch(normal: Normal):
    images, cuts = drawn(SIZES["imagenet"], 256)
    ready = prepare(images, *cuts, (224, 224), *normal)
    kernels = record(ready.launch)
    assert [kernel.name for kernel in kernels] == ["resample_images"]
    boxes, flips, orientations = (part[-32:] for part in cuts)
    wanted = reference(images[-32:], boxes, flips, orientations, (224, 224), *normal)
    assert (ready.out[-32:].cpu() - wanted).abs().max() <= TOLERANCE


def test_runs_on_the_current_stream_and_never_waits(normal: Normal):
    images, cuts = drawn(SIZES["imagenet"], 8)
    prepare(images, *cuts, (64, 64), *normal).launch()  # compiled now
    torch.cuda.synchronize()
    side = torch.cuda.Stream(DEVICE)
    with no_waits(), torch.cuda.stream(side), while_busy():
        found = prepare(images, *cuts, (64, 64), *normal).launch()
    side.synchronize()
    assert (found.cpu() - reference(images, *cuts, (64, 64), *normal)).abs().max() <= TOLERANCE
