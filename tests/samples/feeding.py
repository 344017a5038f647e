"""What tests feed a trainer with and see of it, ask of data and errors, and small images."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from e2e.case import TrainCase
from e2e.data.datasets import Options, open_data
from e2e.data.types import IMAGENET, Data, Loader
from e2e.networks import find
from e2e.networks.network import Network
from e2e.recipes import RECIPES, Recipe
from e2e.training.trainer import Trainer
from microbench.errors import UserError

Batch = tuple[Tensor, Tensor]


def convolutions() -> nn.Module:
    """Convolutions and batch-norm, small enough to train on a busy CPU: 3x8x8 to 10 classes."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


def small_cnn() -> Network:
    """As cnn-cifar is trained, but smaller and on smaller images, to save time."""
    return replace(find("cnn-cifar"), name="small", build=convolutions, input=(3, 8, 8))


def trainer_of(
    network: Network, recipe: str | Recipe = "fp32", *, seed: int = 1, **case: Any
) -> Trainer:
    """On the CPU."""
    made = RECIPES[recipe] if isinstance(recipe, str) else recipe
    plan = TrainCase(network.name, made.name, **{"batch": 8, "input": "any", "layout": "", **case})
    return Trainer(network, plan, made, torch.device("cpu"), seed=seed)


def noise(network: Network, count: int = 4, batch: int = 8) -> list[Batch]:
    """Batches of random numbers with classes."""
    generator = torch.Generator().manual_seed(11)
    return [
        (
            torch.randn(batch, *network.input, generator=generator),
            torch.randint(network.classes or 1, (batch,), generator=generator),
        )
        for _ in range(count)
    ]


class Batches(Loader):
    """A loader that gives its batches in turn, again and again."""

    def __init__(self, *batches: Batch) -> None:
        self.batches, self.given = batches, 0

    def __next__(self) -> int:
        self.given += 1
        return self.given - 1

    def to_device(self, batch: int, channels_last: bool = False) -> Batch:
        return self.batches[batch % len(self.batches)]


class Census(TorchDispatchMode):
    """Notes the types of the floating tensors that each operation is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, set[torch.dtype]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        name = func.overloadpacket.__name__
        floating = {
            leaf.dtype
            for leaf in tree_leaves(args)
            if isinstance(leaf, Tensor) and leaf.is_floating_point()
        }
        self.seen.setdefault(name, set()).update(floating)
        return func(*args, **(kwargs or {}))

    def of(self, *names: str) -> set[torch.dtype]:
        """The types that any of these operations was given."""
        return set().union(*(self.seen.get(name, set()) for name in names))


def message(act: Callable[[], object]) -> str:
    """The one line of the UserError that this raises."""
    with pytest.raises(UserError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def drawn(feed: Loader, count: int, channels_last: bool = False) -> list[tuple[Tensor, Tensor]]:
    """The next batches of a loader, which is closed then."""
    try:
        return [feed.to_device(next(feed), channels_last) for _ in range(count)]
    finally:
        feed.close()


def same(one: Iterable[tuple[Tensor, Tensor]], other: Iterable[tuple[Tensor, Tensor]]) -> bool:
    """Whether these are the same batches."""
    pairs = list(zip(one, other, strict=True))
    return all(torch.equal(a[0], b[0]) and torch.equal(a[1], b[1]) for a, b in pairs)


def opened(root: Path, loader: str = "", *, size: int = 16, **options: Any) -> Data:
    """The data of a folder, for a network that takes square images."""
    return open_data(f"folder:{root}", Options((3, size, size), loader=loader, **options))


# ---------------------------------------------------------------- small images


def random_image(seed: int, size: tuple[int, int] = (40, 32)) -> Image.Image:
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
