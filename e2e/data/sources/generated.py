"""A generated stand-in for CIFAR-10: same sizes, and a network has to learn it.

An image shows the smooth pattern of its class and a weaker one of another class, both anywhere and
mirrored or not, under noise. Lighter or darker is random, so that the mean image of a class is flat
and a linear model learns next to nothing. In AMBIGUOUS of the images both patterns are as strong,
and nothing tells which of the two the label names: the best possible accuracy is 1 less half of
that. On one machine the images are always the same.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from e2e.data.types import Arrays, Normal

TRAIN, HELD_OUT = 50_000, 10_000
SAMPLE = (3, 32, 32)
CLASSES = 10
NORMAL = Normal((0.5, 0.5, 0.5), (0.178, 0.178, 0.178))

PATTERN_SEED, TRAIN_SEED, HELD_OUT_SEED = 20_240_607, 1, 2  # independent of a run's seed
CHUNK = 2000  # images made at a time, so that they need little memory
AMBIGUOUS = 0.12
WAVES, CANVAS = 6, 48  # points and pixels a side of a pattern, of which an image shows a window
GAIN = (12.0, 45.0)  # contrast of a pattern: its standard deviation, out of 255
DISTRACTION = 0.7  # at most, of the other class's pattern where the label is not ambiguous
NOISE = 32.0  # standard deviation


@lru_cache(maxsize=1)
def images() -> tuple[Arrays, Arrays]:
    """(training, held-out) images, uint8 [N, 3, 32, 32]. Some seconds, once per process."""
    fixed = torch.Generator().manual_seed(PATTERN_SEED)
    points = torch.randn(CLASSES, 3, WAVES, WAVES, generator=fixed)
    patterns = F.interpolate(points, size=CANVAS, mode="bicubic")
    patterns /= patterns.std(dim=(1, 2, 3), keepdim=True)
    return _images(patterns, TRAIN_SEED, TRAIN), _images(patterns, HELD_OUT_SEED, HELD_OUT)


def _images(patterns: Tensor, seed: int, count: int) -> Arrays:
    """Images of which the classes take turns."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    parts: list[Tensor] = []
    for some in torch.split(labels, CHUNK):
        shape = (len(some), 1, 1, 1)
        other = (some + torch.randint(1, CLASSES, some.shape, generator=draw)) % CLASSES
        unclear = torch.rand(shape, generator=draw) < AMBIGUOUS
        strength = torch.rand(shape, generator=draw).mul_(DISTRACTION).masked_fill_(unclear, 1.0)
        pixels = _windows(patterns, some, draw) + strength * _windows(patterns, other, draw)
        pixels *= torch.empty(shape).uniform_(*GAIN, generator=draw)
        pixels += torch.randn(pixels.shape, generator=draw) * NOISE
        parts.append(pixels.add_(128).clamp_(0, 255).byte())
    return Arrays(torch.cat(parts), labels)


def _windows(patterns: Tensor, labels: Tensor, draw: torch.Generator) -> Tensor:
    """The patterns of these classes, from anywhere, mirrored and lighter or darker at random."""
    side, count = SAMPLE[1], len(labels)
    down, across = torch.randint(CANVAS - side + 1, (2, count, 1), generator=draw)
    flip, sign = torch.randint(2, (2, count, 1), generator=draw)
    at = torch.arange(side)
    columns = across + torch.where(flip == 1, side - 1 - at, at)
    which = (labels[:, None, None, None], torch.arange(3)[:, None, None])
    window = patterns[(*which, (down + at)[:, None, :, None], columns[:, None, None, :])]
    return window * (2 * sign - 1)[:, :, None, None]
