"""gpu-decode without a GPU: what workers send, how it is cut, and the thread that is ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from ctypes import sizeof
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from samples.images import encoded
from samples.images import noise as random_pixels
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

from e2e.data.loaders import nvjpeg_hardware
from e2e.data.loaders.decode import decode
from e2e.data.loaders.gpu_decode import Ahead
from e2e.data.loaders.jpeg_bytes import AREA, RATIO, Encoded, pack, plain_jpeg, random_cut
from e2e.data.loaders.worker_pool import Workers
from e2e.data.types import Picture, Wanted
from kernels.resample.geometry import crop_table
from microbench.errors import UserError

pytest.importorskip("triton")

from e2e.data.loaders.nvjpeg import each_decoded

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


class TestHeader:
    @pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
    def test_usual_jpegs_go_to_the_gpu(self, subsampling: str):
        assert plain_jpeg(encoded(noise(), subsampling=subsampling)) == ((HEIGHT, WIDTH), 1)

    def test_so_do_grey_ones_turned_ones_and_those_with_bytes_behind(self):
        assert plain_jpeg(encoded(noise(mode="L"))) == ((HEIGHT, WIDTH), 1)
        assert plain_jpeg(encoded(noise()) + b"\0\0\n") == ((HEIGHT, WIDTH), 1)
        for orientation in range(1, 9):
            assert plain_jpeg(turned(orientation)) == ((HEIGHT, WIDTH), orientation)
        assert plain_jpeg(turned(9)) == ((HEIGHT, WIDTH), 1), "unknown"

    @pytest.mark.parametrize(
        "content",
        [
            encoded(noise(mode="CMYK")),
            encoded(noise(), progressive=True),
            encoded(noise(), keep_rgb=True),
            encoded(noise(), "PNG"),
            encoded(Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30)), "PNG"),
            encoded(noise())[:-300],
            encoded(noise()) + b"what is no JPEG",
        ],
        ids=["cmyk", "progressive", "rgb", "png", "16 bit", "truncated", "more"],
    )
    def test_all_else_goes_through_pillow(self, content: bytes):
        assert plain_jpeg(content) is None

    @pytest.mark.parametrize("content", [b"", b"no image at all", b"\xff\xd8\xff"])
    def test_what_is_no_image_raises(self, content: bytes):
        with pytest.raises(OSError, match="cannot identify"):
            plain_jpeg(content)

    def test_an_image_too_large_for_pillow_stays_with_pillow(self, monkeypatch):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", HEIGHT * WIDTH - 1)
        assert plain_jpeg(encoded(noise())) is None


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


class TestCut:
    @pytest.mark.parametrize("size", [(375, 500), (500, 375), (64, 2000), (2000, 64), (31, 17)])
    def test_cuts_are_torchvisions_own(self, size: tuple[int, int]):
        with torch.random.fork_rng():
            for seed in range(60):
                box, flip = random_cut(*size, seed)
                assert (list(box), flip) == torchvisions(*size, seed)

    @pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (2, 3)])
    def test_boxes_are_inside_the_smallest_images(self, size: tuple[int, int]):
        for seed in range(50):
            (top, left, height, width), _ = random_cut(*size, seed)
            assert top >= 0
            assert left >= 0
            assert 1 <= height <= size[0] - top
            assert 1 <= width <= size[1] - left

    def test_bounds_and_moments_are_those_asked_for(self):
        drawn = [random_cut(600, 800, seed) for seed in range(2000)]
        boxes = np.array([box for box, _ in drawn], dtype=float)
        area = boxes[:, 2] * boxes[:, 3] / (600 * 800)
        ratio = boxes[:, 3] / boxes[:, 2]
        assert AREA[0] - 0.01 < area.min() < 0.1
        assert 0.9 < area.max() <= AREA[1]
        assert RATIO[0] * 0.98 < ratio.min() < ratio.max() < RATIO[1] * 1.02
        assert np.mean([flip for _, flip in drawn]) == pytest.approx(0.5, abs=0.04)

    def test_the_process_keeps_its_random_numbers(self):
        before = torch.get_rng_state()
        random_cut(30, 40, 1)
        assert torch.equal(torch.get_rng_state(), before)


class TestWorkers:
    def test_a_batch_comes_back_as_it_was_packed(self, tmp_path: Path):
        pictures = written(
            tmp_path,
            jpeg=encoded(noise()), png=encoded(noise(20, 30), "PNG"),
            grey=encoded(noise(8, 9, "L")),
        )  # fmt: skip
        samples = [Encoded(pictures)[draw] for draw in ((0, 5), (1, 6), (2, 7))]
        packed = pack(samples)
        rows = packed.rows()
        assert rows["coded"].tolist() == [1, 0, 1]
        assert rows["label"].tolist() == [0, 1, 2]
        assert rows["draw"].tolist() == [[0, 5], [1, 6], [2, 7]]
        first, second, third = packed.contents()
        assert first.numpy().tobytes() == Path(pictures[0].path).read_bytes()
        assert third.numpy().tobytes() == Path(pictures[2].path).read_bytes()
        (top, left, height, width), flip = random_cut(20, 30, 6)
        whole = np.asarray(noise(20, 30)).transpose(2, 0, 1)
        assert rows["shape"].tolist() == [[3, HEIGHT, WIDTH], [3, height, width], [3, 8, 9]]
        cut = second.view(3, height, width)
        assert np.array_equal(cut, whole[:, top : top + height, left : left + width])
        item = samples[1].item
        assert item is not None
        assert (item.box, item.flip) == ((0, 0, height, width), flip)
        assert packed.broken == []

    def test_crops_are_those_of_images_wherever_they_lie(self, tmp_path: Path):
        contents = {f"turned{n}": turned(n) for n in range(1, 9)}
        samples = [Encoded(written(tmp_path, **contents))[n, n] for n in range(8)]
        items = [sample.item for sample in samples if sample.item is not None]
        addresses = [10**12 * (n + 1) for n in range(8)]
        crops = pack(samples).rows()["crop"].copy()
        crops[:, 0] += addresses
        wanted = crop_table(
            addresses,
            [item.size for item in items],
            torch.tensor([item.box for item in items]),
            torch.tensor([item.flip for item in items]),
            torch.tensor([item.orientation for item in items]),
        )
        assert {item.orientation for item in items} == set(range(1, 9))
        assert np.array_equal(crops, wanted)

    def test_what_travels_beside_the_tensor_is_the_same_for_any_batch(self, tmp_path: Path):
        sample = Encoded(written(tmp_path, one=encoded(noise())))[0, 2**61 + 1]
        one, many = (pack([sample] * count) for count in (1, 500))
        assert many.rows()["draw"][499].tolist() == [0, 2**61 + 1]
        assert set(vars(one)) == {"flat", "count", "broken"}
        assert (many.count, many.broken) == (500, [])

    def test_boxes_are_in_the_upright_image_and_by_pillow_too(self, tmp_path: Path):
        content = turned(8)
        images = Encoded(written(tmp_path, turned=content))
        item, sample = images[0, 3].item, images.by_pillow((0, 3))
        assert item is not None
        assert item.size == (HEIGHT, WIDTH)
        assert (item.box, item.flip) == random_cut(WIDTH, HEIGHT, 3)
        assert sample.item is not None
        assert (sample.item.orientation, sample.item.flip) == (1, item.flip)
        packed = pack([sample])
        (pixels,) = packed.contents()
        top, left, height, width = item.box
        upright = np.asarray(decode(content)).transpose(2, 0, 1)
        pixels = pixels.view(packed.rows()["shape"][0].tolist())
        assert np.array_equal(pixels, upright[:, top : top + height, left : left + width])

    def test_broken_files_are_told_and_give_their_place(self, tmp_path: Path):
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
        assert (empty.count, len(empty.rows()), empty.contents()) == (0, 0, [])
        assert len(empty.broken) == 4
        reasons = [reason for _, reason in sample.broken]
        assert "truncated" in reasons[0]
        assert reasons[1:] == ["not an image", "not an image", "No such file or directory"]

    def test_batches_are_the_same_from_processes(self, tmp_path: Path):
        pictures = written(
            tmp_path, a=encoded(noise()), b=encoded(noise(9, 7), "PNG"), c=encoded(noise(30, 31))
        )
        draws = [[(0, 1), (1, 2)], [(2, 3), (0, 4)]]

        def batches(workers: int) -> list[list[list[int]]]:
            running: Workers = Workers(
                Encoded(pictures), lambda start: draws[start:],
                Wanted((8, 8), 2, 1, torch.device("cpu"), workers),
                collate=pack, pinned=False, batch_bytes=0,
            )  # fmt: skip
            found = [[part.flatten().tolist() for part in next(running).contents()] for _ in draws]
            running.close()
            return found

        assert batches(1) == batches(0)


class TestHalving:
    @staticmethod
    def on_cpu(encoded: list[Tensor]) -> list[Tensor]:
        return list(decode_jpeg(encoded, ImageReadMode.RGB))

    def test_only_the_refused_ones_are_left_out(self):
        good = [encoded(noise(10 + n, 12)) for n in range(7)]
        contents = [*good[:3], encoded(noise(), "PNG"), *good[3:], b"no image"]
        files = [torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in contents]
        found = each_decoded(files, self.on_cpu)
        sizes = [image.shape[1] if image is not None else None for image in found]
        assert sizes == [10, 11, 12, None, 13, 14, 15, 16, None]
        assert each_decoded([], self.on_cpu) == []

    def test_a_lack_of_memory_is_no_broken_image(self):
        def full(encoded: list[Tensor]) -> list[Tensor]:
            raise RuntimeError("Error while decoding JPEG images: CUDA out of memory")

        with pytest.raises(RuntimeError, match="out of memory"):
            each_decoded([torch.empty(1)], full)


class TestAhead:
    @staticmethod
    def counting(fails_at: int | None = None) -> tuple[Iterator[int], Callable[[], int]]:
        numbers = iter(range(10_000))

        def make() -> int:
            number = next(numbers)
            if number == fails_at:
                raise UserError("number three")
            return number

        return numbers, make

    def test_all_come_in_order_and_no_more_than_wanted_are_made(self):
        numbers, make = self.counting()
        ahead = Ahead(make, 2)
        assert [ahead.get() for _ in range(50)] == list(range(50))
        ahead.close()
        assert next(numbers) <= 50 + 2 + 1  # got, ready, and one that found no room

    def test_an_error_comes_in_its_turn_and_stays(self):
        ahead = Ahead(self.counting(fails_at=3)[1], 2)
        assert [ahead.get() for _ in range(3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(UserError, match="number three"):
                ahead.get()
        ahead.close()

    def test_closing_waits_for_what_is_being_made_and_ends_who_waits(self):
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
        assert not [one for one in threading.enumerate() if one.name == "ahead"]


def test_an_image_of_nvjpegs_is_as_its_header_has_it():
    """Four addresses, then four pitches of 8 bytes: CUDA 13's nvjpeg.h."""
    assert sizeof(nvjpeg_hardware._Image) == 64
    assert nvjpeg_hardware._Image.pitch.offset == 32


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_there_is_no_hardware_decoder():
    assert nvjpeg_hardware._opened(0) is None
