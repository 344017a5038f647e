"""Matrices in memory as BLAS sees them."""

from __future__ import annotations

import ctypes

import torch

from kernels.gemm import cublaslt_api as api


def memory(address: int, dtype: torch.dtype, shape: tuple[int, int], ld: int) -> torch.Tensor:
    """A column-major matrix at an address; reading past its last element would be an error."""
    elements = (shape[1] - 1) * ld + shape[0]
    raw = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
    flat = torch.frombuffer(raw, dtype=torch.uint8).view(dtype)
    return flat.as_strided(shape, (1, ld))


def operand(address: int, dtype: torch.dtype, stored: api.Stored) -> torch.Tensor:
    """What the library multiplies of a matrix at an address, as float64."""
    matrix = memory(address, dtype, (stored.rows, stored.columns), stored.ld).double()
    return matrix.t() if stored.op == api.CUBLAS_OP_T else matrix
