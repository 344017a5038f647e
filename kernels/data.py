"""Input data: how values are drawn, and how a precision stores them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

INT8_STD = 32.0  # standard deviation of normal int8 data; +-127 is four of them
# float64 inputs are the float32 master times this, which fills all their bits: short mantissas
# would switch fewer transistors.
FP64_FACTOR = math.pi / 3


def draw(shape: Sequence[int], data: str, rng: torch.Generator) -> torch.Tensor:
    """Random float32 values [*shape] on the generator's device.

    `data` is "normal" (mean 0, standard deviation 1), "uniform" in [-1, 1), "integers" -8..8,
    "zeros".
    """
    device = rng.device
    if data == "zeros":
        return torch.zeros(*shape, device=device)
    if data == "integers":
        return torch.randint(-8, 9, tuple(shape), generator=rng, device=device).float()
    if data == "uniform":
        return torch.rand(*shape, generator=rng, device=device) * 2 - 1
    return torch.randn(*shape, generator=rng, device=device)


def storage_factor(dtype: torch.dtype, data: str) -> float:
    """What drawn values are multiplied by before they are rounded to a storage dtype: pi/3 for
    float64, 32 (normal) or 127 (uniform) for int8, else 1.
    """
    if dtype == torch.float64:
        return FP64_FACTOR
    if dtype == torch.int8 and data in ("normal", "uniform"):
        return INT8_STD if data == "normal" else 127.0
    return 1.0


def store(drawn: torch.Tensor, dtype: torch.dtype, data: str) -> torch.Tensor:
    """Drawn float32 values in a storage dtype, times `storage_factor`; strides are kept. int8 is
    rounded to the nearest and clamped to +-127.
    """
    factor = storage_factor(dtype, data)
    if dtype == torch.float64:
        return drawn.double() * factor
    if dtype == torch.int8:
        return (drawn * factor).round().clamp(-127, 127).to(dtype)
    return drawn.to(dtype)


def choose(size: int, count: int, device: torch.device) -> torch.Tensor:
    """At most `count` sorted int64 indices below `size`: all, or random with the first and last."""
    if size <= count:
        return torch.arange(size, device=device)
    chosen = torch.randperm(size, device=device)[:count]
    chosen[0], chosen[-1] = 0, size - 1
    return chosen.unique()
