"""Products of block-scaled matrices, computed again in float64 from the formats' definitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from kernels.linear.operands import BLOCK_SCALED, Quantised
from kernels.linear.torch_linear import multiplied

SIZES = {"mxfp8": 32, "nvfp4": 16}
HALF = (0, 0.5, 1, 1.5, 2, 3, 4, 6)  # sign, two bits of exponent, one of mantissa
FP4_GRID = torch.tensor(sorted({*HALF, *(-one for one in HALF)}), dtype=torch.float64)


def grid_of(dtype: torch.dtype) -> torch.Tensor:
    """Every finite number of a type of one byte, in order."""
    every = torch.arange(256, dtype=torch.uint8).view(dtype).double()
    return every[every.isfinite()].unique()


def block_matrix(seed: int, rows: int, blocks: int, exponent: int) -> torch.Tensor:
    """Normal numbers, whose blocks of 16 differ by up to 2^8; one row in ten is zero."""
    g = torch.Generator().manual_seed(seed)
    sizes = torch.randint(-4, 5, (rows, 2 * blocks), generator=g) + exponent
    values = torch.randn(rows, 32 * blocks, generator=g)
    values *= torch.exp2(sizes.float()).repeat_interleave(16, 1)
    values[torch.rand(rows, generator=g) < 0.1] = 0
    return values


def emulated(
    values: torch.Tensor, scales: torch.Tensor, size: int, grid: torch.Tensor
) -> torch.Tensor:
    """Each value as the nearest number of a grid times its block's scale, in float64."""
    scales = scales.double().repeat_interleave(size, 1)
    wanted = (values.double() / scales).clamp(grid[0], grid[-1])
    above = torch.searchsorted(grid, wanted).clamp(1, len(grid) - 1)
    low, high = grid[above - 1], grid[above]
    return torch.where(wanted - low <= high - wanted, low, high) * scales


Change = Mapping[str, Callable[[torch.Tensor], torch.Tensor]]


def product_error(name: str, device: str, planted: Change | None = None) -> float:
    """||C - ref|| / ||ref|| of two matrices whose blocks differ in size; `planted` changes fields
    of one operand before it is multiplied.
    """
    given = [block_matrix(seed, rows, 8, 0) for seed, rows in ((1, 256), (2, 384))]
    cast = [BLOCK_SCALED[name](one.to(device)) for one in given]
    a, b = (_in_float64(name, one, scaled) for one, scaled in zip(given, cast, strict=True))
    changed: dict[str, Any] = {
        n: change(getattr(cast[0], n)) for n, change in (planted or {}).items()
    }
    got = multiplied(replace(cast[0], **changed), cast[1], name, fast=True).cpu().double()
    return float((got - a @ b.t()).norm() / (a @ b.t()).norm())


def _in_float64(name: str, values: torch.Tensor, cast: Quantised) -> torch.Tensor:
    scales = cast.scales.cpu().double()
    if cast.whole is not None:
        scales *= cast.whole.cpu().double()
    grid = FP4_GRID if name == "nvfp4" else grid_of(torch.float8_e4m3fn)
    return emulated(values, scales, SIZES[name], grid)
