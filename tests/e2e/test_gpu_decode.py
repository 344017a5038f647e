"""gpu-decode without a GPU: what workers send, how it is cut, and the thread that is ahead."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from samples.images import encoded
from samples.images import noise as random_pixels
from torch import Tensor
from torchvision.transforms import v2

from e2e.data.loaders.decode import decode
from e2e.data.loaders.gpu_decode import Ahead
from e2e.data.loaders.jpeg_bytes import AREA, RATIO, Encoded, pack, plain_jpeg, random_cut
from e2e.data.types import Picture
from microbench.errors import UserError

HEIGHT, WIDTH = 40, 60
ORIENTATION = 274


def noise(height: int = HEIGHT, width: int = WIDTH, mode: str = "RGB") -> Image.Image:
    return random_pixels(height * width, (width, height)).convert(mode)


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(noise(), exif=exif)


def written(folder: Path, **contents: bytes) -> list[Picture]:
    """Files in the order of their names here, each of a class of its own."""
    pictures = []
    for label, (name, content) in enumerate(contents.items()):
        (folder / name).write_bytes(content)
        pictures.append(Picture(str(folder / name), label))
    return pictures


# ---------------------------------------------------------------- headers


def test_usual_jpegs_go_to_the_gpu() -> None:
    for content in (
        *(encoded(noise(), subsampling=name) for name in ("4:4:4", "4:2:2", "4:2:0")),
        encoded(noise(mode="L")), encoded(noise()) + b"\0\0\n",
    ):  # fmt: skip
        assert plain_jpeg(content) == ((HEIGHT, WIDTH), 1)
    for orientation in range(1, 9):
        assert plain_jpeg(turned(orientation)) == ((HEIGHT, WIDTH), orientation)


def test_all_else_goes_through_pillow() -> None:
    for content in (
        encoded(noise(mode="CMYK")), encoded(noise(), progressive=True),
        encoded(noise(), keep_rgb=True), encoded(noise(), "PNG"), encoded(noise())[:-300],
        encoded(noise()) + b"what is no JPEG",
    ):  # fmt: skip
        assert plain_jpeg(content) is None
    for content in (b"", b"no image at all", b"\xff\xd8\xff"):
        with pytest.raises(OSError, match="cannot identify"):
            plain_jpeg(content)


# ---------------------------------------------------------------- cuts


def torchvisions(height: int, width: int, seed: int) -> tuple[list[int], bool]:
    """Box and flip of torchvision's transforms, read off an image of coordinates."""
    rows = torch.arange(height).reshape(-1, 1).expand(height, width)
    columns = torch.arange(width).expand(height, width)
    seen: list[list[int]] = []

    class Seen(v2.RandomResizedCrop):
        def make_params(self, flat_inputs: list[Tensor]) -> dict[str, int]:
            found = super().make_params(flat_inputs)
            seen.append([found[name] for name in ("top", "left", "height", "width")])
            return found

    torch.manual_seed(seed)
    image = torch.stack([rows, columns, columns]).float()
    out = v2.Compose([Seen((2, 8)), v2.RandomHorizontalFlip()])(image)
    return seen[0], bool(out[1, 0, 0] > out[1, 0, -1])


@pytest.mark.parametrize("size", [(375, 500), (64, 2000), (2000, 64), (31, 17)])
def test_cuts_are_torchvisions_own(size: tuple[int, int]) -> None:
    with torch.random.fork_rng():
        for seed in range(30):
            before = torch.get_rng_state()
            box, flip = random_cut(*size, seed)
            assert torch.equal(torch.get_rng_state(), before), "the process keeps its own"
            assert (list(box), flip) == torchvisions(*size, seed)


def test_cuts_are_inside_the_image_and_as_large_as_asked_for() -> None:
    for size in ((1, 1), (1, 500), (500, 1), (2, 3)):
        for seed in range(50):
            (top, left, height, width), _ = random_cut(*size, seed)
            assert min(top, left) >= 0
            assert 1 <= height <= size[0] - top
            assert 1 <= width <= size[1] - left
    drawn = [random_cut(600, 800, seed) for seed in range(2000)]
    boxes = np.array([box for box, _ in drawn], dtype=float)
    area = boxes[:, 2] * boxes[:, 3] / (600 * 800)
    ratio = boxes[:, 3] / boxes[:, 2]
    assert AREA[0] - 0.01 < area.min() < 0.1
    assert 0.9 < area.max() <= AREA[1]
    assert RATIO[0] * 0.98 < ratio.min() < ratio.max() < RATIO[1] * 1.02
    assert np.mean([flip for _, flip in drawn]) == pytest.approx(0.5, abs=0.04)


# ---------------------------------------------------------------- what workers send


def test_a_batch_comes_back_as_it_was_packed(tmp_path: Path) -> None:
    pictures = written(
        tmp_path,
        jpeg=encoded(noise()), png=encoded(noise(20, 30), "PNG"), grey=encoded(noise(8, 9, "L")),
    )  # fmt: skip
    packed = pack([Encoded(pictures)[draw] for draw in ((0, 5), (1, 6), (2, 7))])
    rows = packed.rows()
    assert rows["coded"].tolist() == [1, 0, 1]
    assert rows["label"].tolist() == [0, 1, 2]
    assert rows["draw"].tolist() == [[0, 5], [1, 6], [2, 7]]
    first, second, third = packed.contents()
    assert first.numpy().tobytes() == Path(pictures[0].path).read_bytes()
    assert third.numpy().tobytes() == Path(pictures[2].path).read_bytes()
    (top, left, height, width), _ = random_cut(20, 30, 6)
    whole = np.asarray(noise(20, 30)).transpose(2, 0, 1)
    assert rows["shape"].tolist() == [[3, HEIGHT, WIDTH], [3, height, width], [3, 8, 9]]
    cut = second.view(3, height, width)
    assert np.array_equal(cut, whole[:, top : top + height, left : left + width])


def test_boxes_are_in_the_upright_image_and_by_pillow_too(tmp_path: Path) -> None:
    content = turned(8)
    images = Encoded(written(tmp_path, turned=content))
    item, sample = images[0, 3].item, images.by_pillow((0, 3))
    assert item is not None
    assert sample.item is not None
    assert (item.box, item.flip) == random_cut(WIDTH, HEIGHT, 3)
    assert (sample.item.orientation, sample.item.flip) == (1, item.flip)
    packed = pack([sample])
    (pixels,) = packed.contents()
    top, left, height, width = item.box
    upright = np.asarray(decode(content)).transpose(2, 0, 1)
    pixels = pixels.view(packed.rows()["shape"][0].tolist())
    assert np.array_equal(pixels, upright[:, top : top + height, left : left + width])


def test_broken_files_are_told_and_give_their_place(tmp_path: Path) -> None:
    pictures = written(
        tmp_path,
        cut=encoded(noise())[:-300], empty=b"", text=b"no image", good=encoded(noise()),
    )  # fmt: skip
    missing = Picture(str(tmp_path / "gone"), 9)
    sample = Encoded([*pictures[:3], missing, pictures[3]])[0, 1]
    assert sample.item is not None
    assert (sample.item.label, sample.item.draw) == (3, (4, 1))
    assert [Path(path).name for path, _ in sample.broken] == ["cut", "empty", "text", "gone"]
    nothing = Encoded([*pictures[1:3]])[1, 0]
    assert nothing.item is None
    empty = pack([nothing, nothing])
    assert (empty.count, empty.contents(), len(empty.broken)) == (0, [], 4)


# ---------------------------------------------------------------- the thread that is ahead


def test_all_come_in_order_and_an_error_in_its_turn() -> None:
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        if made[-1] == 20:
            raise UserError("number twenty")
        return made[-1]

    ahead = Ahead(make, 2)
    assert [ahead.get() for _ in range(10)] == list(range(10))
    assert len(made) <= 10 + 2 + 1, "got, ready, and one that found no room"
    assert [ahead.get() for _ in range(10)] == list(range(10, 20))
    for _ in range(2):
        with pytest.raises(UserError, match="number twenty"):
            ahead.get()
    ahead.close()


def test_closing_waits_for_what_is_being_made_and_ends_who_waits() -> None:
    going, goes_on = threading.Event(), threading.Event()
    ends: list[str] = []

    def make() -> int:
        going.set()
        goes_on.wait(20)
        return 1

    def get() -> None:
        with pytest.raises(RuntimeError, match="closed"):
            ahead.get()
        ends.append("got")

    Ahead(make, 1).close()  # before anything
    ahead = Ahead(make, 1)
    getting, closing = threading.Thread(target=get), threading.Thread(target=ahead.close)
    getting.start()
    assert going.wait(20)
    closing.start()
    getting.join(20)
    assert ends == ["got"]
    assert closing.is_alive()
    goes_on.set()
    closing.join(20)
    assert not closing.is_alive()
