"""How an image is cut to size: at random for training, its centre for what is held out.

Each takes a Pillow image or uint8 [3, H, W], and gives uint8 [3, *size].
"""

from __future__ import annotations

from torchvision.transforms import v2

from e2e.data.loaders.memory_check import CENTRE
from e2e.data.loaders.resident import PADDING


def random_cut(size: tuple[int, int]) -> v2.Compose:
    """A crop of any scale and shape, resized, and a flip: what ImageNet is trained with."""
    return v2.Compose(
        [v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()]
    )


def random_shift(size: tuple[int, int]) -> v2.Compose:
    """A crop of this size, up to PADDING pixels beyond the image, and a flip: CIFAR's."""
    return v2.Compose(
        [
            v2.RandomCrop(size, padding=PADDING, padding_mode="reflect"),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
        ]
    )


def centre(size: tuple[int, int]) -> v2.Compose:
    """The middle, CENTRE of the shorter side."""
    return middle(size, round(max(size) / CENTRE))


def middle(size: tuple[int, int], shorter: int) -> v2.Compose:
    """The middle of the image when its shorter side has been resized to `shorter`."""
    return v2.Compose([v2.Resize(shorter, antialias=True), v2.CenterCrop(size), v2.PILToTensor()])
