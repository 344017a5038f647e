"""The matrices of a GEMM, and how `kernels.data` makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from kernels.conv import operands as conv
from kernels.conv.operands import ConvOperands
from kernels.conv.shape import ConvShape
from kernels.data import choose
from kernels.gemm import Gemm

NAMES = "abc"
SAMPLED_ROWS = {"cuda": 256, "cpu": 64}


@dataclass(frozen=True)
class Sample:
    """Rows of A and columns of B to check C by: int64 indices, and the values as drawn, [rows, K]
    and [columns, K], before any rounding.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor


@dataclass(frozen=True)
class Operands:
    """C[M, N] = A[M, K] @ B[K, N]; `a` and `b` are logical views, strided as the layout says.

    `one` is a float32 scalar on the same device, the scale that fp8 GEMMs need. `scale` is the
    ratio of the stored C to that of the values as drawn: int8 stores multiples of the drawn values.
    """

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    one: torch.Tensor
    sample: Sample
    scale: float = 1.0

    @property
    def convolutions(self) -> tuple[ConvOperands, ConvOperands]:
        """The 1x1 convolutions, of images of one pixel, that have C and its transpose."""
        a, b, s = self.a, self.b.t(), self.sample
        return (
            _convolution(a, b, self.c, (s.rows, s.columns), (s.a, s.b), self.scale),
            _convolution(b, a, self.c.t(), (s.columns, s.rows), (s.b, s.a), self.scale),
        )

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(A [M, K], B [K, N]), the arguments of a user's function."""
        return self.a, self.b

    @property
    def named(self) -> dict[str, object]:
        """What a user's function may also ask for by name: nothing for a GEMM."""
        return {}

    @property
    def output(self) -> torch.Tensor:
        return self.c

    def holding(self, result: torch.Tensor) -> Self:
        return replace(self, c=result)

    @property
    def mnk(self) -> tuple[int, int, int]:
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]


def names(problem: Gemm) -> Sequence[str]:
    return NAMES


def stored(problem: Gemm, name: str) -> Sequence[int]:
    """The sizes of A or B in the orientation it is stored in."""
    rows, columns = (problem.m, problem.k) if name == "a" else (problem.k, problem.n)
    return (columns, rows) if _transposed(problem, name) else (rows, columns)


def arranged(problem: Gemm, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """A or B [M, K] or [K, N] as a view of what is stored."""
    return tensor.t() if _transposed(problem, name) else tensor


def _transposed(problem: Gemm, name: str) -> bool:
    return problem.layout[NAMES.index(name)] == "t"


def empty(problem: Gemm, name: str, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(problem.m, problem.n, dtype=dtype, device=device)


def sample(problem: Gemm, drawn: Callable[[str], torch.Tensor]) -> Sample:
    """What C is checked by; `drawn` gives A and B as drawn."""
    a, b = drawn("a"), drawn("b")
    count = SAMPLED_ROWS[a.device.type]
    rows, columns = (choose(size, count, a.device) for size in (problem.m, problem.n))
    return Sample(rows, columns, a[rows], b.t()[columns])


def _convolution(
    x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, sampled: tuple[torch.Tensor, torch.Tensor],
    drawn: tuple[torch.Tensor, torch.Tensor], scale: float,
) -> ConvOperands:  # fmt: skip
    """y[N, K] = x[N, C] @ w[K, C] transposed; `sampled` are images and filters."""
    shape = ConvShape(x.shape[0], x.shape[1], 1, 1, w.shape[0], 1, 1)
    part = replace(shape, n=len(sampled[0]), k=len(sampled[1]))
    every = torch.arange(shape.c, device=x.device)
    x, w, y, *drawn_4d = (matrix[:, :, None, None] for matrix in (x, w, y, *drawn))
    sample = conv.Sample(*sampled, every, every, part, dict(zip("xw", drawn_4d, strict=True)))
    return ConvOperands(x, w, y, shape, "fprop", sample, scale)


def operands(
    problem: Gemm, tensors: dict[str, torch.Tensor], sample: Sample, scale: float
) -> Operands:
    one = torch.ones((), device=tensors["c"].device)
    return Operands(**tensors, one=one, sample=sample, scale=scale)
