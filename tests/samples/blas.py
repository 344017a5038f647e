"""Matrices in memory as BLAS sees them."""

from __future__ import annotations

import ctypes

import torch


def memory(address: int, dtype: torch.dtype, shape: tuple[int, int], ld: int) -> torch.Tensor:
    """A column-major matrix at an address; reading past its last element would be an error."""
    elements = (shape[1] - 1) * ld + shape[0]
    raw = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
    flat = torch.frombuffer(raw, dtype=torch.uint8).view(dtype)
    return flat.as_strided(shape, (1, ld))
