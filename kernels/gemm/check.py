"""Correctness of C against float64, for errors anywhere in C."""

from __future__ import annotations

import torch

from kernels.checking import (
    CHECKSUM_SLACK,
    CHUNK_ELEMENTS,
    random_signs,
    ratio,
    typical,
    unwritten,
)
from kernels.gemm.operands import Operands


def relative_error(operands: Operands) -> float:
    """The largest of: the error of the sample as a whole, and what `hidden_error` finds.

    The sample is random rows by random columns, which include the outermost; its error is ||C -
    A@B|| / ||A@B|| in float64, of the inputs as stored. Infinite when any element of C still holds
    the poison. Where the exact result is zero, the error is ||C||.
    """
    if unwritten(operands.c):
        return float("inf")
    sample = operands.sample
    reference = _rows(operands.a, sample.rows) @ _rows(operands.b.t(), sample.columns).t()
    got = operands.c[sample.rows][:, sample.columns].double()
    return max(ratio(got - reference, reference), hidden_error(operands, got, reference))


def total_error(operands: Operands) -> float:
    """||C - A@B|| / ||A@B|| over the sample, of inputs as drawn: rounding to storage is counted."""
    sample = operands.sample
    reference = sample.a @ sample.b
    got = operands.c[sample.rows][:, sample.columns].double() / operands.scale
    return ratio(got - reference, reference)


def hidden_error(operands: Operands, got: torch.Tensor, reference: torch.Tensor) -> float:
    """Errors that the norm of the sample would hide: one tile, one row, one column of C.

    `got` and `reference` are the sample, float64 [rows, columns]. The largest relative error of a
    sampled row or column, over what chance allows, and of the checksums C@x against A@(B@x) and y@C
    against (y@A)@B, which cover every element of C.
    """
    difference = got - reference
    # Over the typical row, not each its own: a row of few elements may be near zero by chance.
    lines = [float(difference.norm(dim=d).max() / typical(reference.norm(dim=d))) for d in (0, 1)]
    few = min(reference.shape)
    spread = 1 + CHECKSUM_SLACK / few**0.5
    size = float(typical(reference))
    checks = [checksum_error(operands, size, transposed) for transposed in (False, True)]
    return max(max(lines) / spread, max(checks) / CHECKSUM_SLACK)


def checksum_error(operands: Operands, size: float, transposed: bool) -> float:
    """The largest |C@x - A@(B@x)| of a row, relative to the typical size of such a sum; of C's
    transpose if `transposed`.

    x is random signs, so a row of n elements of typical `size` adds up to about sqrt(n) times that.
    CHECKSUMS of them are taken, since one alone may cancel a wrong row by chance.
    """
    a, b, c = operands.a, operands.b, operands.c
    if transposed:
        a, b, c = b.t(), a.t(), c.t()
    signs = random_signs(b.shape[1], c.device)
    expected = _times(a, _times(b, signs))
    got = _times(c, signs)
    return float((got - expected).abs().max()) / (size * c.shape[1] ** 0.5)


def _times(matrix: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """matrix @ vectors in float64, a band of rows at a time."""
    rows = max(1, CHUNK_ELEMENTS // max(1, matrix.shape[1]))
    bands = (matrix[i : i + rows].double() @ vectors for i in range(0, matrix.shape[0], rows))
    return torch.cat(list(bands))


def _rows(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    # Indexing is not implemented for float8: gather the bytes, then look at them as float8 again.
    if matrix.dtype.is_floating_point and matrix.dtype.itemsize == 1:
        return matrix.view(torch.uint8)[rows].view(matrix.dtype).double()
    return matrix[rows].double()
