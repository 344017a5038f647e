"""The matrices of a GEMM, and how `kernels.data` makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from kernels.conv.operands import ConvOperands, Sample
from kernels.conv.shape import ConvShape
from kernels.data import choose
from kernels.gemm import Gemm

NAMES = "abc"
SAMPLED_ROWS = {"cuda": 256, "cpu": 64}


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
    samples: tuple[Sample, Sample]
    scale: float = 1.0

    @property
    def convolutions(self) -> tuple[ConvOperands, ConvOperands]:
        """The 1x1 convolutions, of images of one pixel, that have C and its transpose."""
        a, b, (first, second) = self.a, self.b.t(), self.samples
        return (
            _convolution(a, b, self.c, first, self.scale),
            _convolution(b, a, self.c.t(), second, self.scale),
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


def sample(problem: Gemm, drawn: Callable[[str], torch.Tensor]) -> tuple[Sample, Sample]:
    """What C, and its transpose, are checked by; `drawn` gives A and B as drawn."""
    a, b = drawn("a"), drawn("b").t()
    count = SAMPLED_ROWS[a.device.type]
    rows, columns = (choose(size, count, a.device) for size in (problem.m, problem.n))
    return _part(rows, columns, a[rows], b[columns]), _part(columns, rows, b[columns], a[rows])


def _part(images: torch.Tensor, ks: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Sample:
    every, shape = torch.arange(x.shape[1], device=x.device), _shape(x, w)
    return Sample(images, ks, every, every, shape, {"x": _pixels(x), "w": _pixels(w)})


def _convolution(
    x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, sample: Sample, scale: float
) -> ConvOperands:
    """y[N, K] = x[N, C] @ w[K, C] transposed."""
    shape = _shape(x, w)
    return ConvOperands(_pixels(x), _pixels(w), _pixels(y), shape, "fprop", sample, scale)


def _shape(x: torch.Tensor, w: torch.Tensor) -> ConvShape:
    return ConvShape(x.shape[0], x.shape[1], 1, 1, w.shape[0], 1, 1)


def _pixels(matrix: torch.Tensor) -> torch.Tensor:
    return matrix[:, :, None, None]


def operands(
    problem: Gemm, tensors: dict[str, torch.Tensor], samples: tuple[Sample, Sample], scale: float
) -> Operands:
    one = torch.ones((), device=tensors["c"].device)
    return Operands(**tensors, one=one, samples=samples, scale=scale)
