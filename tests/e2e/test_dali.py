"""NVIDIA DALI, where it is installed: its images are Pillow's, its order is the seed's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.ExifTags import Base
from samples.feeding import drawn, encoded, flat, opened, photo, put, same
from torch import Tensor

from e2e.data.datasets import Options, open_data
from e2e.data.loader_bench import LoadMeter
from e2e.data.loaders.reading import decode
from e2e.data.types import IMAGENET, LoadSpec
from e2e.results.loader_types import LoadCase
from microbench.errors import UserError

if find_spec("nvidia") is None or find_spec("nvidia.dali") is None:
    pytest.skip("NVIDIA DALI is not installed", allow_module_level=True)

Batches = list[tuple[Tensor, Tensor]]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


def batches(
    root: Path, device: torch.device, count: int = 1, batch: int = 1, seed: int = 1
) -> Batches:
    """Of 32x32 images of the folder's classes."""
    spec = LoadSpec(batch, device, seed, "dali", workers=2)
    return drawn(opened(root, "dali", size=32, device=device).load(spec), count, channels_last=True)


def pixels(images: Tensor) -> Tensor:
    """[N, 3, H, W], 0 to 255."""
    scale, shift = IMAGENET.scale_and_shift(images.device)
    return ((images - shift) / scale).cpu()


def folder(root: Path, *contents: bytes, suffix: str = ".jpg") -> Path:
    """A folder of these images, each of a class of its own; a flat one is held out."""
    for number, content in enumerate(contents):
        put(root / "train" / f"{number:02}" / f"image{suffix}", content)
        put(root / "val" / f"{number:02}" / "image.jpg", encoded(flat(0)))
    return root


def test_each_image_comes_once_an_epoch_in_the_order_of_the_seed(
    tmp_path: Path, device: torch.device
) -> None:
    root = folder(tmp_path, *(encoded(flat(10 * number)) for number in range(20)))
    found = batches(root, device, 5, 8)
    for images, classes in found:
        assert images.shape == (8, 3, 32, 32)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert (images.dtype, classes.dtype) == (torch.float32, torch.int64)
        levels = pixels(images).mean((1, 2, 3))
        assert torch.allclose(levels, 10.0 * classes.cpu(), atol=1.0), "an image and its class"
    order = torch.cat([classes for _, classes in found]).tolist()
    assert sorted(order[:20]) == sorted(order[20:]) == list(range(20))
    assert order[:20] != order[20:]
    assert same(found, batches(root, device, 5, 8))
    others = batches(root, device, 5, 8, seed=2)
    assert order != torch.cat([classes for _, classes in others]).tolist()


def of_16_bits(image: Image.Image) -> Image.Image:
    return Image.fromarray(np.asarray(image.convert("L"), np.uint16) * 257)


KINDS: dict[str, tuple[str, Callable[[Image.Image], bytes]]] = {
    "rgb": (".jpg", lambda image: encoded(image, quality=95)),
    "grey": (".jpg", lambda image: encoded(image.convert("L"), quality=95)),
    "cmyk": (".jpg", lambda image: encoded(image.convert("CMYK"), quality=95)),
    "progressive": (".jpg", lambda image: encoded(image, quality=95, progressive=True)),
    "png": (".png", lambda image: encoded(image.convert("RGBA"), "PNG")),
    "palette": (".png", lambda image: encoded(image.convert("P"), "PNG")),
    "16 bits": (".png", lambda image: encoded(of_16_bits(image), "PNG")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_colours_are_those_of_pillow(kind: str, tmp_path: Path, device: torch.device) -> None:
    suffix, coded = KINDS[kind]
    content = coded(Image.new("RGB", (90, 70), (200, 120, 40)))
    ((images, _),) = batches(folder(tmp_path, content, suffix=suffix), device)
    wanted = torch.tensor(np.asarray(decode(content))).float().mean((0, 1))
    assert torch.allclose(pixels(images).mean((0, 2, 3)), wanted, atol=1.5)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_image_comes_upright(
    orientation: int, tmp_path: Path, device: torch.device
) -> None:
    """As Pillow turns it, it is dark at the top and bright at the bottom, however it is cut."""
    ramp = np.broadcast_to(np.arange(20, 212, 3, dtype=np.uint8)[:, None, None], (64, 64, 3))
    exif = Image.Exif()
    exif[Base.Orientation] = orientation
    ways = (np.asarray, np.fliplr, lambda a: np.rot90(a, 2), np.flipud)
    stored = ways[(orientation - 1) % 4](ramp)
    stored = stored if orientation <= 4 else np.swapaxes(ramp, 0, 1)
    if orientation in (7, 8):
        stored = stored[:, ::-1]
    content = encoded(Image.fromarray(np.ascontiguousarray(stored)), quality=95, exif=exif)
    upright = np.asarray(decode(content), np.float64).mean((1, 2))
    assert (np.diff(upright) > 0).all()
    ((images, _),) = batches(folder(tmp_path, content), device)
    rows, columns = (pixels(images).mean(axes) for axes in ((0, 1, 3), (0, 1, 2)))
    assert (rows.diff() > -0.5).all()
    assert rows[-1] - rows[0] > 20
    assert columns.max() - columns.min() < 3


def test_a_broken_file_ends_it_in_one_line(tmp_path: Path, device: torch.device) -> None:
    """On a GPU a JPEG that is cut off may be decoded; of the others none was tried there yet."""
    jpeg = encoded(photo(1, (90, 70)))
    cut = jpeg[: len(jpeg) // 2]
    for number, content in enumerate((cut, b"", b"no image")):
        root = folder(tmp_path / str(number), encoded(flat(90)), content)
        for count in (1, 6):  # it comes first, or later
            try:
                found = batches(root, device, count, 2)
            except UserError as error:
                said = str(error)
                assert said.startswith("DALI cannot go on (")
                assert "ends at a file that it cannot read" in said
                assert "\n" not in said
                continue
            assert (device.type, content) == ("cuda", cut), "it is not decoded"
            for images, classes in found:
                assert images.isfinite().all()
                whole = pixels(images)[classes.cpu() == 0]
                assert torch.allclose(whole, torch.tensor(90.0), atol=1.5)


def test_it_is_never_measured_cold(tmp_path: Path, device: torch.device) -> None:
    root = folder(tmp_path, *(encoded(flat(9)) for _ in range(4)))
    data = open_data(f"folder:{root}", Options((3, 32, 32), loader="dali", device=device))
    case = LoadCase("folder", "dali", 2, "3x32x32", 1)
    meter = LoadMeter(data, device, seed=1)
    assert (meter.measure(case, 0.1).per_s or 0) > 0
    cold = meter.measure(replace(case, cold=True), 0.1)
    reason = "no cold reads: this loader reads files itself"
    assert (cold.status, cold.reason) == ("skipped", reason)


@pytest.mark.gpu
def test_a_device_that_is_behind_reads_batches_that_dali_does_not_overwrite(tmp_path: Path) -> None:
    """The host runs ahead of a busy device, and lets go of each batch before it has been read."""
    gpu = torch.device("cuda")
    root = folder(tmp_path, *(encoded(flat(5 * number)) for number in range(50)))
    feed = opened(root, "dali", size=32, device=gpu).load(LoadSpec(8, gpu, 1, "dali", workers=2))
    busy, found = torch.randn(4096, 4096, device=gpu), []
    for _ in range(30):
        for _ in range(3):
            busy = torch.tanh(busy @ busy)
        images, classes = feed.to_device(next(feed), channels_last=True)
        found.append((images + 0, classes + 0))
    feed.close()
    for images, classes in found:
        levels = pixels(images).mean((1, 2, 3))
        assert torch.allclose(levels, 5.0 * classes.cpu(), atol=1.0)
