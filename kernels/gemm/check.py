"""Is C the product? Against float64, wherever in C an error may hide."""

from __future__ import annotations

import torch

from kernels.gemm.operands import Operands

INT_POISON = torch.iinfo(torch.int32).min  # a value that no product of int8 matrices can have
# A checksum sees a row's error through one random projection, so its size varies like a normal
# deviate; over thousands of rows the largest is four to five times the typical one.
CHECKSUM_SLACK = 6.0
CHECKSUMS = 8
CHUNK_ELEMENTS = 1 << 26  # of C that are held in float64 at once


def poison(c: torch.Tensor) -> None:
    """Fill an output with what no product can leave there."""
    c.fill_(float("nan") if c.dtype.is_floating_point else INT_POISON)


def unwritten(c: torch.Tensor) -> int:
    """How many elements still hold the poison (NaN counts, wherever it came from)."""
    bad = torch.isnan(c) if c.dtype.is_floating_point else c == INT_POISON
    return int(bad.sum().item())


def relative_error(operands: Operands) -> float:
    """The largest of: the error of the sample as a whole, and what `hidden_error` finds.

    The sample is random rows by random columns, the outermost among them; its error is
    ||C - A@B|| / ||A@B|| in float64, of the inputs as stored. Infinite when any element of C still
    holds the poison. Where the exact product is zero, the error is ||C||.
    """
    if unwritten(operands.c):
        return float("inf")
    sample = operands.sample
    reference = _rows(operands.a, sample.rows) @ _rows(operands.b.t(), sample.columns).t()
    got = operands.c[sample.rows][:, sample.columns].double()
    return max(_ratio(got - reference, reference), hidden_error(operands, got, reference))


def total_error(operands: Operands) -> float:
    """||C - A@B|| / ||A@B|| over the sample, of the inputs as drawn: rounding them is counted."""
    sample = operands.sample
    reference = sample.a @ sample.b
    got = operands.c[sample.rows][:, sample.columns].double() / operands.scale
    return _ratio(got - reference, reference)


def hidden_error(operands: Operands, got: torch.Tensor, reference: torch.Tensor) -> float:
    """Errors that the norm of the sample would drown: one tile, one row, one column of C.

    The largest relative error of a sampled row or column, over what chance allows, and of the
    checksums C@x against A@(B@x) and y@C against (y@A)@B, which see every element of C.
    """
    difference = got - reference
    # Over the typical row, not each its own: a row of few elements may be near zero by chance.
    lines = [float(difference.norm(dim=d).max() / _typical(reference.norm(dim=d))) for d in (0, 1)]
    few = min(reference.shape)
    spread = 1 + CHECKSUM_SLACK / few**0.5
    size = float(_typical(reference))
    checks = [checksum_error(operands, size, transposed) for transposed in (False, True)]
    return max(max(lines) / spread, max(checks) / CHECKSUM_SLACK)


def checksum_error(operands: Operands, size: float, transposed: bool) -> float:
    """The largest |C@x - A@(B@x)| of a row over what such sums come to; of C's transpose if so.

    x is random signs, so a row of n elements of typical `size` comes to about sqrt(n) times that;
    CHECKSUMS of them, since one alone may cancel a wrong row by chance.
    """
    a, b, c = operands.a, operands.b, operands.c
    if transposed:
        a, b, c = b.t(), a.t(), c.t()
    signs = torch.randint(0, 2, (b.shape[1], CHECKSUMS), device=c.device).double() * 2 - 1
    expected = _times(a, _times(b, signs))
    got = _times(c, signs)
    return float((got - expected).abs().max()) / (size * c.shape[1] ** 0.5)


def _times(matrix: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """matrix @ vectors in float64, a band of rows at a time."""
    rows = max(1, CHUNK_ELEMENTS // max(1, matrix.shape[1]))
    bands = (matrix[i : i + rows].double() @ vectors for i in range(0, matrix.shape[0], rows))
    return torch.cat(list(bands))


def _typical(sizes: torch.Tensor) -> torch.Tensor:
    """The root mean square; 1 where all are zero, so that an error stands for itself."""
    square = sizes.square().mean().sqrt()
    return torch.where(square > 0, square, torch.ones_like(square))


def _ratio(difference: torch.Tensor, reference: torch.Tensor) -> float:
    norm = reference.norm()
    return float((difference.norm() / norm if norm > 0 else difference.norm()).item())


def _rows(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    # Indexing is not implemented for float8: gather the bytes, then look at them as float8 again.
    if matrix.dtype.is_floating_point and matrix.dtype.itemsize == 1:
        return matrix.view(torch.uint8)[rows].view(matrix.dtype).double()
    return matrix[rows].double()
