"""On a GPU: gpu-decode gives the images and cuts of Pillow's back end, and tells broken files."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from samples.commands import is_gone, wait_for
from samples.resampling import prepare, reference
from samples.waiting import no_waits, while_busy
from torch import Tensor

from e2e.data.loaders import open_loader
from e2e.data.loaders.jpeg_bytes import random_crop
from e2e.data.types import IMAGENET, Broken, Files, ImageFile, Loader, LoadSpec
from microbench.device.profiler import record
from microbench.errors import UserError

DEVICE = torch.device("cuda:0")
SIZE = (64, 80)
BATCH = 8
# Of normalised values: a level is 0.017. Decoders' colours differ by a few levels here and there.
CLOSE = 0.06
SEED = 3
ORIENTATION = 274


def photo(n: int) -> Image.Image:
    """Smooth, as photographs are, so that decoders differ by rounding alone."""
    height, width = 200 + 13 * n, 300 - 11 * n
    coarse = np.random.default_rng(n).integers(0, 256, (7, 9, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def coded(n: int) -> bytes:
    """An image of each kind in turn."""
    image, file = photo(n), BytesIO()
    exif = Image.Exif()
    exif[ORIENTATION] = 1 + n % 8
    kinds: list[Callable[[], None]] = [
        lambda: image.save(file, "JPEG", quality=92, exif=exif, subsampling="4:2:0"),
        lambda: image.save(file, "JPEG", quality=92, exif=exif, subsampling="4:4:4"),
        lambda: image.save(file, "JPEG", quality=92, exif=exif, subsampling="4:2:2"),
        lambda: image.convert("L").save(file, "JPEG", quality=92, exif=exif),
        lambda: image.save(file, "JPEG", quality=92, exif=exif),
        lambda: image.convert("CMYK").save(file, "JPEG", quality=92),
        lambda: image.save(file, "JPEG", quality=92, progressive=True, exif=exif),
        lambda: image.save(file, "PNG"),
    ]
    kinds[n % len(kinds)]()
    return file.getvalue()


def written(folder: Path, contents: Sequence[bytes]) -> Files:
    """Files, each of a class of its own."""
    pictures = []
    for label, content in enumerate(contents):
        path = folder / f"{label:02}.jpg"
        path.write_bytes(content)
        pictures.append(ImageFile(str(path), label))
    return Files(pictures, folder)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return written(tmp_path_factory.mktemp("images"), [coded(n) for n in range(19)])


class Opened:
    """Opens feeds, and closes them all when a test ends."""

    def __init__(self) -> None:
        self.broken: list[Broken] = []
        self.feeds: list[Loader] = []

    def __call__(self, name: str, files: Files, **wanted: object) -> Loader:
        broken = self.broken.extend
        spec = LoadSpec(BATCH, DEVICE, SEED, name, size=SIZE, on_broken=broken, **wanted)  # type: ignore[arg-type]
        self.feeds.append(open_loader(files, spec))
        return self.feeds[-1]


@pytest.fixture
def opened() -> Iterator[Opened]:
    made = Opened()
    yield made
    for feed in made.feeds:
        feed.close()


def batches(feed: Loader, count: int, channels_last: bool = False) -> list[tuple[Tensor, Tensor]]:
    return [feed.to_device(next(feed), channels_last) for _ in range(count)]


def check_alike(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> None:
    assert found[1].tolist() == wanted[1].tolist()
    assert found[0].shape == wanted[0].shape
    apart = (found[0] - wanted[0]).abs().mean(dim=(1, 2, 3))
    assert apart.max() <= CLOSE, list(zip(found[1].tolist(), apart.tolist(), strict=True))


def has_threads() -> bool:
    return any(thread.name.startswith("ahead") for thread in threading.enumerate())


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_images_and_cuts_are_those_of_pillow(
    files: Files, opened: Opened, workers: int, channels_last: bool
):
    found = batches(opened("gpu-decode", files, workers=workers), 6, channels_last)
    wanted = batches(opened("torchvision", files), 6, channels_last)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for one, other in zip(found, wanted, strict=True):
        assert one[0].is_contiguous(memory_format=layout)
        check_alike(one, other)
    assert opened.broken == []


def test_nothing_is_overwritten_while_it_is_read(files: Files, opened: Opened):
    """Batches that are thrown away give their memory back while kernels may still run."""
    feed = opened("gpu-decode", files, workers=2)
    for _ in range(30):
        next(feed)
    wanted = opened("torchvision", files)
    for _ in range(30):
        next(wanted)
    busy = torch.randn(4096, 4096, device=DEVICE)
    for _ in range(5):
        for _ in range(20):
            busy = torch.tanh(busy @ busy)
        check_alike(*(one.to_device(next(one)) for one in (feed, wanted)))


def test_placing_never_waits(files: Files, opened: Opened):
    """Once no buffer grows any more: while one does, the driver holds up who asks it anything."""
    feed = opened("gpu-decode", files, workers=1)
    batches(feed, 64)
    fetched = next(feed)
    with no_waits(), while_busy():
        feed.to_device(fetched)
    torch.cuda.synchronize()


def test_broken_files_are_told_and_give_their_place_and_nothing_but_these_is_an_error(
    tmp_path: Path, opened: Opened
) -> None:
    good = [coded(8 * n) for n in range(4)]
    contents = [
        good[0], good[1][: len(good[1]) // 2], b"", good[2], b"no image",
        good[3][: len(good[3]) // 2] + b"\xff\xd9",
    ]  # fmt: skip
    files = written(tmp_path, contents)
    feed = opened("gpu-decode", files, workers=1)
    for images, labels in batches(feed, 3):
        assert len(images) == len(labels) == BATCH
        assert {0, 3} <= set(labels.tolist()) <= {0, 3, 5}
        assert images.isfinite().all()
    named = {Path(path).name for path, _ in opened.broken}
    assert {"01.jpg", "02.jpg", "04.jpg"} <= named <= {"01.jpg", "02.jpg", "04.jpg", "05.jpg"}
    feed = opened("gpu-decode", written(tmp_path, [b"", b"no image"]), workers=1)
    with pytest.raises(UserError, match="none of the 2 training images"):
        next(feed)


def test_a_strict_reader_is_told_in_fetch(tmp_path: Path):
    def strict(broken: Sequence[Broken]) -> None:
        if broken:
            raise UserError(f"broken image {Path(broken[0][0]).name}")

    spec = LoadSpec(BATCH, DEVICE, SEED, "gpu-decode", workers=1, size=SIZE, on_broken=strict)
    feed = open_loader(written(tmp_path, [coded(0), b""]), spec)
    with pytest.raises(UserError, match=r"broken image 01.jpg"):
        next(feed)
    feed.close()


@pytest.mark.parametrize("fetched", [0, 1, 4])
def test_closing_ends_thread_and_workers(files: Files, opened: Opened, fetched: int):
    feed = opened("gpu-decode", files, workers=2)
    batches(feed, fetched)
    pids = feed.pids
    assert len(pids) == (2 if fetched else 0)
    feed.close()
    wait_for(lambda: not has_threads() and all(is_gone(pid) for pid in pids))


def test_a_killed_worker_ends_the_run_when_asked_to(files: Files, opened: Opened):
    feed = opened("gpu-decode", files, workers=1)
    next(feed)
    os.kill(feed.pids[0], signal.SIGKILL)
    with pytest.raises(UserError, match="killed by signal 9"):
        batches(feed, 20)


def test_a_step_can_be_captured_beside_it(files: Files, opened: Opened):
    """As a trainer captures: the thread goes on calling what a capture forbids its own thread."""
    feed = opened("gpu-decode", files, workers=2)
    images, _ = batches(feed, 1)[0]
    fixed, graph = images.clone(), torch.cuda.CUDAGraph()
    doubled = torch.empty_like(fixed)
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(10):
            torch.mul(fixed, 2, out=doubled)
            next(feed)
    fixed.copy_(feed.to_device(next(feed))[0])
    graph.replay()
    assert torch.equal(doubled, fixed * 2)


# ---------------------------------------------------------------- resample gpu


TOLERANCE = 2e-5  # of normalised values, which reach 2.7
SIZES = {
    "imagenet": [(375, 500), (500, 375), (333, 500), (500, 500)],
    "small": [(1, 1), (2, 300), (300, 2), (17, 31)],
    "large": [(3000, 4000), (2448, 3264)],
}

Cuts = tuple[Tensor, Tensor]
Normal = tuple[Tensor, Tensor]  # scale and shift


def drawn(sizes: list[tuple[int, int]], count: int) -> tuple[list[Tensor], Cuts]:
    """Images of noise on the device, with cuts as in training."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    images, boxes, flips = [], [], []
    for n in range(count):
        height, width = sizes[n % len(sizes)]
        box, flip = random_crop(height, width, seed=n)
        images.append(
            torch.randint(256, (3, height, width), generator=generator, device=DEVICE).byte()
        )
        boxes.append(box)
        flips.append(flip)
    return images, (torch.tensor(boxes), torch.tensor(flips))


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
    boxes, flips = (part[-32:] for part in cuts)
    wanted = reference(images[-32:], boxes, flips, (224, 224), *normal)
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
