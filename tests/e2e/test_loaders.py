"""Loader back ends: the same images whatever reads them, broken files reported."""

from __future__ import annotations

import io
import itertools
import os
import struct
import tarfile
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.ExifTags import Base
from samples.fetching import drawn, message, opened, same
from samples.images import encoded, flat, flat_folder, levels, photo, put
from samples.processes import is_gone, wait_for
from torch import Tensor

from e2e.data.datasets import Options, open_data
from e2e.data.datasets.images import InMemory
from e2e.data.loaders import FIXED, cpus, device_copy, open_feed
from e2e.data.loaders import reading as cold
from e2e.data.loaders.decode import decode
from e2e.data.loaders.device_copy import CachedFeed
from e2e.data.loaders.reading import Read
from e2e.data.loaders.resident import no_room
from e2e.data.loaders.torchvision_io import pixels
from e2e.data.loaders.worker_pool import Shuffled
from e2e.data.types import IMAGENET, Arrays, Data, Files, Picture, Wanted
from microbench.errors import UserError

CPU = torch.device("cpu")
FROM_FILES = ("torchvision", "torchvision-io", "torchvision-draft", "resident")
BROKEN = {"cut.jpg", "header.jpg", "noise.jpg", "cut.png", "text.jpg", "empty.jpg"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return flat_folder(tmp_path / "pictures")


@pytest.fixture
def damaged(root: Path) -> Path:
    """Also files that are broken, and hidden from a glance by what they begin with."""
    whole, png = encoded(photo(1, (200, 200))), encoded(photo(1, (200, 200)), "PNG")
    folder = root / "train" / "a"
    put(folder / "cut.jpg", whole[: len(whole) // 2])
    put(folder / "header.jpg", whole[:40])
    put(folder / "noise.jpg", whole[:3] + np.random.default_rng(1).bytes(3000))
    put(folder / "cut.png", png[: len(png) // 2])
    put(folder / "text.jpg", b"no image")
    put(folder / "empty.jpg", b"")
    return root


def small_arrays(count: int = 12, side: int = 16) -> InMemory:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (count, 3, side, side), dtype=torch.uint8, generator=generator)
    labelled = Arrays(images, torch.arange(count) % 3)
    return InMemory("small", labelled, labelled, IMAGENET, 3)


def numbers(batches: Iterable[tuple[Tensor, Tensor]]) -> list[int]:
    """Which of the flat images were drawn."""
    return [round(level / 10) for level in levels(batches)]


def broken_note(data: Data) -> str:
    """The note on broken images."""
    (note,) = (note for note in data.notes if "broken" in note)
    return note


# ---- names


def test_a_loader_that_does_not_take_this_data(root: Path) -> None:
    said = message(lambda: small_arrays().feed(4, CPU, 1, loader="gpu-decode"))
    assert "takes image files (--data folder:DIR)" in said
    assert "for this data choose from synthetic, pinned, torchvision, resident" in said
    assert "*.tar in the folder" in message(lambda: opened(root, "webdataset"))
    assert "cannot train" in message(lambda: opened(root, "read"))


def test_a_loader_that_cannot_run_here_says_why(root: Path) -> None:
    said = message(lambda: opened(root, "gpu-decode", device=CPU))
    assert said == "loader gpu-decode cannot run here: it decodes on an NVIDIA GPU"
    assert "cannot run here" in message(lambda: opened(root, "gpu-decode").feed(4, CPU, 1))


# ---- what comes


@pytest.mark.parametrize("loader", FROM_FILES)
def test_every_back_end_gives_each_image_once_an_epoch(root: Path, loader: str) -> None:
    data = opened(root, loader)
    batches = drawn(data.feed(8, CPU, 1, channels_last=True), 5)
    for images, classes in batches:
        assert images.shape == (8, 3, 16, 16)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert (images.dtype, classes.dtype) == (torch.float32, torch.int64)
    order = numbers(batches)
    assert sorted(order[:20]) == sorted(order[20:]) == list(range(20))
    assert order[:20] != order[20:]
    assert torch.cat([classes for _, classes in batches]).tolist() == [n % 2 for n in order]
    assert same(batches, drawn(data.feed(8, CPU, 1), 5))
    assert same(batches, drawn(data.feed(8, CPU, 1, cold=True), 5)), "from the disk itself"
    assert not same(batches, drawn(data.feed(8, CPU, 2), 5))
    assert numbers(data.held_out(4, CPU)) == [0, 2, 1, 3]
    notes = ["20 images decoded once" in note for note in data.notes]
    assert notes == ([True] if loader == "resident" else [])


@pytest.mark.parametrize("loader", FROM_FILES)
def test_every_back_end_tells_broken_files(damaged: Path, loader: str) -> None:
    data = opened(damaged, loader)
    count = data.train_samples
    assert count == 24  # text.jpg and empty.jpg are found at once
    order = numbers(drawn(data.feed(count, CPU, 1), 1))
    # A good one takes a broken one's place, or it is not there at all.
    assert set(order) == set(range(20))
    assert broken_note(data).startswith(f"{len(BROKEN)} broken images left out: train/a/")
    strict = damaged.parent / "strict"
    put(strict / "train" / "a" / "cut.jpg", (damaged / "train" / "a" / "cut.jpg").read_bytes())
    put(strict / "val" / "a" / "1.jpg", encoded(photo(1)))
    lone = opened(strict, loader, strict=True)
    assert "cut.jpg" in message(lambda: drawn(lone.feed(1, CPU, 1), 1))
    alone = opened(strict, loader)
    assert "none of the 1 training images" in message(lambda: drawn(alone.feed(1, CPU, 1), 1))


SIDEWAYS = Image.Exif()
SIDEWAYS[Base.Orientation] = 6
OF_ALL_KINDS: dict[str, bytes] = {
    "colour": encoded(photo(1)),
    "progressive": encoded(photo(1), progressive=True),
    "grey": encoded(photo(1).convert("L")),
    "CMYK": encoded(photo(1).convert("CMYK")),
    "PNG": encoded(photo(1), "PNG"),
    "16 bits": encoded(
        Image.fromarray(np.asarray(photo(1).convert("L")).astype(np.uint16) * 257), "PNG"
    ),
    "on its side": encoded(photo(1), exif=SIDEWAYS),
}


@pytest.mark.parametrize("kind", OF_ALL_KINDS)
def test_images_of_all_kinds_are_what_pillow_gives(kind: str) -> None:
    content = OF_ALL_KINDS[kind]
    want = torch.from_numpy(np.array(decode(content))).permute(2, 0, 1)
    if kind == "on its side":
        assert want.shape == (3, 40, 32)
    assert torch.equal(pixels(content), want)


def test_workers_are_as_many_batches_ahead_as_asked(root: Path) -> None:
    data = opened(root, workers=2)
    for asked, ahead in ((0, 4), (1, 2), (3, 6)):
        feed = data.feed(4, CPU, 1, prefetch=asked)
        assert feed.ahead == ahead
        feed.close()


def test_a_file_that_claims_to_be_huge_is_broken(root: Path) -> None:
    content = bytearray(encoded(photo(1)))
    frame = content.index(b"\xff\xc0")
    content[frame + 5 : frame + 9] = struct.pack(">HH", 60_000, 60_000)
    put(root / "train" / "a" / "huge.jpg", bytes(content))
    data = opened(root, "torchvision-io")
    drawn(data.feed(21, CPU, 1), 1)
    assert broken_note(data).startswith("1 broken image left out: train/a/huge.jpg (Image size")


def test_what_cannot_be_dropped_from_memory_is_found(root: Path) -> None:
    in_memory = cpus.SHARED_MEMORY / f"halfway-test-{os.getpid()}"
    try:
        reason = cold.cannot_drop(put(in_memory, b"bytes"))
        pictures = [Picture(str(root / "gone.jpg"), 0), Picture(str(in_memory), 0)]
        assert reason == cold.cold_missing(Files(pictures, root))
    finally:
        in_memory.unlink()
    assert reason is not None
    assert reason.startswith("no cold reads: the file system")
    assert cold.cannot_drop(put(root / "empty", b"")) is None
    with pytest.raises(OSError, match="gone"):
        cold.cannot_drop(root / "gone.jpg")
    assert "lie in memory" in (cold.cold_missing(small_arrays().source) or "")


def test_what_is_dropped_from_memory_is_not_there(root: Path) -> None:
    path = root / "train" / "a" / "0.jpg"
    if cold.cannot_drop(path):
        pytest.skip("the file system of temporary files drops nothing")
    assert cold.cold_missing(opened(root).source) is None  # type: ignore[attr-defined]
    with path.open("rb") as file:
        file.read()
        assert os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) == 1

        def dropped() -> bool:
            cold.drop(file.fileno())
            try:
                os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
            except BlockingIOError:
                return True
            return False

        wait_for(dropped)  # another processor may hold pages for a moment


def test_arrays_are_cut_in_workers_as_cifars_scripts_do() -> None:
    data = small_arrays()
    batches = drawn(data.feed(6, CPU, 1, loader="torchvision"), 4)
    assert same(batches, drawn(data.feed(6, CPU, 1, loader="torchvision", workers=2), 4))
    assert [len(images) for images, _ in batches] == [6] * 4
    classes = torch.cat([classes for _, classes in batches[:2]])
    assert Counter(classes.tolist()) == {0: 4, 1: 4, 2: 4}
    # Each is a window of the mirrored image, flipped or not.
    scale, shift = IMAGENET.scale_and_shift(CPU)
    pad = torch.nn.functional.pad(data.train.images.float(), (4, 4, 4, 4), mode="reflect")
    windows = pad.unfold(2, 16, 1).unfold(3, 16, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, 16, 16)
    for image in ((batches[0][0] - shift) / scale).round():
        both = torch.stack([image, image.flip(2)])
        assert any((windows == one).all((1, 2, 3)).any() for one in both)


def test_resident_files_are_decoded_once_and_cut_anywhere(root: Path) -> None:
    data = opened(root, "resident", size=14)
    first = data.feed(4, CPU, 1)
    for path in root.glob("train/*/*"):
        path.unlink()
    batches = drawn(data.feed(4, CPU, 1), 5)
    assert same(batches, drawn(first, 5))
    assert sorted(numbers(batches)) == list(range(20))


def test_resident_files_that_do_not_fit_are_refused(root: Path) -> None:
    said = message(lambda: opened(root, "resident", size=300_000).feed(1, CPU, 1))
    assert "keeps 20 images in" in said
    assert "more than half of the" in said
    assert no_room(1000, (224, 224), 2 * 1000 * 3 * 256 * 256) is None
    assert no_room(1001, (224, 224), 2 * 1000 * 3 * 256 * 256) is not None
    assert no_room(10**9, (224, 224), None) is None, "nobody knows"


def test_reading_counts_bytes_and_broken_files(root: Path) -> None:
    (root / "train" / "a" / "0.jpg").write_bytes(encoded(photo(1)))
    data = opened(root)
    size_bytes = sum(path.stat().st_size for path in root.glob("train/*/*.jpg"))
    (root / "train" / "a" / "2.jpg").rename(root / "gone.jpg")
    size_bytes -= (root / "gone.jpg").stat().st_size
    for from_disk in (False, True):
        feed = data.feed(20, CPU, 1, loader="read", cold=from_disk)
        read = feed.fetch()
        assert isinstance(read, Read)
        assert (read.files, read.size_bytes) == (19, size_bytes)
        assert "only reads" in message(lambda feed=feed, read=read: feed.place(read))
        feed.close()
    assert "train/a/2.jpg (No such file or directory)" in broken_note(data)


def test_batches_can_begin_anywhere() -> None:
    whole = list(itertools.islice(Shuffled(5, 3, 1), 45))
    for start in (0, 1, 2, 3, 7, 40):
        assert list(itertools.islice(Shuffled(5, 3, 1, start), 5)) == whole[start : start + 5]


@pytest.mark.gpu
@pytest.mark.parametrize("loader", ["torchvision", "torchvision-io", "pinned"])
def test_batches_reach_a_gpu_as_they_are(root: Path, loader: str) -> None:
    gpu = torch.device("cuda")
    want = drawn(opened(root, loader).feed(3, CPU, 1), 12)
    feed = opened(root, loader, workers=2).feed(3, gpu, 1, channels_last=True)
    much = torch.rand(4000, 4000, device=gpu)
    batches: list[tuple[Tensor, Tensor]] = []
    for _ in range(12):
        much = (much @ much).clamp(-1, 1)  # copies run beside it
        batches.append(feed.place(feed.fetch()))
    feed.close()
    assert all(images.is_contiguous(memory_format=torch.channels_last) for images, _ in batches)
    for (images, classes), (right, right_classes) in zip(batches, want, strict=True):
        torch.testing.assert_close(images.cpu(), right, check_stride=False)
        assert torch.equal(classes.cpu(), right_classes)


# ---- batches that are always the same


def test_any_data_can_be_replaced_by_a_batch_on_the_device_or_in_pinned_memory(root: Path) -> None:
    for data in (opened(root), small_arrays()):
        for name in FIXED:
            feed = data.feed(64, CPU, 1, loader=name, channels_last=True)
            first, again = (feed.place(feed.fetch()) for _ in range(2))
            assert first[0].shape == (64, 3, 16, 16)
            assert first[0].is_contiguous(memory_format=torch.channels_last)
            assert abs(first[0].mean()) < 0.5
            assert set(first[1].tolist()) == set(range(data.classes))
            assert same([first], [again])
            assert (first[0] is again[0]) == (name == "synthetic")
            assert (feed.ahead, feed.pids) == (0, ())
            feed.close()


def test_other_inputs_than_images_can_be_pinned() -> None:
    def synthetic(sample: tuple[int, ...], tokens: int | None) -> tuple[Tensor, Tensor]:
        data = open_data("synthetic", Options(sample, classes=5, tokens=tokens, loader="pinned"))
        return drawn(data.feed(4, CPU, 1), 1)[0]

    tokens, targets = synthetic((8,), 50)
    assert targets is tokens
    assert tokens.dtype == torch.int64
    features, classes = synthetic((7,), None)
    assert features.shape == (4, 7)
    assert features.dtype == torch.float32
    assert classes.shape == (4,)


def test_a_cached_batch_is_trained_on_while_a_loader_works_for_nothing(root: Path) -> None:
    data = opened(root, workers=1)
    busy = data.feed(4, CPU, 1)
    feed = CachedFeed(data.feed(4, CPU, 1, loader="pinned"), busy)  # type: ignore[arg-type]
    want = drawn(data.feed(4, CPU, 1, loader="pinned"), 1)
    assert same([feed.place(feed.fetch())], want)
    assert (feed.came_s, busy.pids) == ([], ())
    feed.start()
    assert len(feed.pids) == 1
    assert same([feed.place(feed.fetch())], want)
    wait_for(lambda: len(feed.came_s) > 2)
    feed.start()
    assert (feed.ahead, feed.idle_cpu_s) == (0, 0.0)
    feed.close()
    with pytest.raises(AssertionError, match="closed"):
        busy.fetch()


def test_what_a_loader_that_works_for_nothing_raises_is_heard(damaged: Path) -> None:
    def cached(data: Data, batch: int, seed: int) -> CachedFeed:
        busy = data.feed(batch, CPU, seed)
        return CachedFeed(data.feed(4, CPU, 1, loader="pinned"), busy)  # type: ignore[arg-type]

    (damaged / "train" / "a" / "empty.jpg").unlink()
    (damaged / "train" / "a" / "text.jpg").unlink()
    data = opened(damaged, strict=True)
    feed = cached(data, 22, 1)
    assert "broken image" in message(feed.start)
    feed.close()
    lenient = opened(damaged)
    first = (lenient.feed(1, CPU, seed).fetch().broken for seed in range(9))  # type: ignore[attr-defined]
    feed = cached(data, 1, next(seed for seed, broken in enumerate(first) if not broken))
    feed.start()

    def heard() -> bool:
        try:
            feed.fetch()
        except UserError as error:
            return "broken image" in str(error)
        return False

    wait_for(heard)
    feed.close()


def test_closing_ends_a_loader_that_hangs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that nobody writes to, as a file: whoever opens it waits for ever."""
    monkeypatch.setattr(device_copy, "LAST_BATCH_S", 0.1)
    pipe = root / "train" / "a" / "pipe.jpg"
    os.mkfifo(pipe)
    files = Files([Picture(str(root / "train" / "a" / "0.jpg"), 0), Picture(str(pipe), 0)], root)
    seed = next(seed for seed in range(9) if next(iter(Shuffled(2, 1, seed)))[0][0] == 0)
    busy = open_feed("read", files, Wanted((16, 16), 1, seed, CPU, workers=1), list)
    feed = CachedFeed(opened(root).feed(1, CPU, 1, loader="pinned"), busy)  # type: ignore[arg-type]
    feed.start()
    (pid,) = feed.pids
    feed.close()
    assert is_gone(pid)


# ---- shards


def tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))


@pytest.fixture
def shards(root: Path) -> Path:
    """The images once more in two shards, and in the second one four samples that are broken."""
    for shard in range(2):
        members: dict[str, bytes] = {}
        for number in range(shard, 20, 2):
            members[f"{number}.jpg"] = encoded(flat(10 * number))
            members[f"{number}.cls"] = str(number % 2).encode()
        if shard:
            members |= {"cut.jpg": encoded(photo(1))[:300], "cut.cls": b"0"}
            members |= {"other.jpg": encoded(photo(1)), "other.cls": b"7"}
            members |= {"lone.jpg": encoded(photo(1)), "none.cls": b"1"}
        tar(root / f"{shard}.tar", members)
    return root


@pytest.mark.skipif(not find_spec("webdataset"), reason="webdataset is not installed")
class TestShards:
    """What webdataset reads."""

    def test_every_image_comes_and_broken_ones_are_told(self, shards: Path) -> None:
        data = opened(shards, "webdataset")
        batches = drawn(data.feed(12, CPU, 1), 40)
        assert set(numbers(batches)) == set(range(20))
        assert all(images.shape == (12, 3, 16, 16) for images, _ in batches)
        order = torch.cat([classes for _, classes in batches]).tolist()
        assert order == [number % 2 for number in numbers(batches)]
        assert broken_note(data).startswith("4 broken images left out: 1.tar/")

    def test_shards_that_cannot_be_read(self, shards: Path) -> None:
        data = opened(shards, "webdataset", workers=3)
        assert "2 tar shards for 3 workers" in message(lambda: data.feed(3, CPU, 1))
        whole = (shards / "0.tar").read_bytes()
        (shards / "0.tar").write_bytes(whole[:5000])
        (shards / "1.tar").write_bytes(b"no tar" * 1000)
        data = opened(shards, "webdataset")
        drawn(data.feed(4, CPU, 1), 1)
        assert "0.tar (cut short)" in broken_note(data)
        assert "1.tar (" in broken_note(data)
        (shards / "0.tar").write_bytes(b"")
        assert "can be decoded" in message(lambda: drawn(data.feed(4, CPU, 1), 1))
