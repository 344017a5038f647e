"""The matrices of a GEMM, or of a batch of them, and how `kernels.data` makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch.nn.functional import gelu

from kernels import checking
from kernels.case import Case
from kernels.conv.operands import ConvOperands, SampledPart
from kernels.conv.shape import ConvShape
from kernels.data import choose, scale, storage_factor
from kernels.gemm import BROADCAST, GELU, RAGGED, Gemm

SAMPLED_ROWS = {"cuda": 256, "cpu": 64}
BAND_ELEMENTS = 1 << 23  # of A and of C that are held in float64 at once


Samples = tuple[SampledPart, SampledPart]  # what C, and its transpose, are checked by
Drawn = Callable[[str], torch.Tensor]
Product = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]  # A, B, C, bias


@dataclass(frozen=True, kw_only=True)
class Operands:
    """C[M, N] = A[M, K] @ B[K, N]; `a` and `b` are logical views, strided as the layout says.

    `one` is a float32 scalar on the same device, the scale that fp8 GEMMs need. `scale` is the
    ratio of the stored C to that of the values as drawn: int8 stores multiples of the drawn values.
    """

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    one: torch.Tensor
    samples: Samples | None = None
    scale: float = 1.0
    bias: torch.Tensor | None = None

    @property
    def convolutions(self) -> tuple[ConvOperands, ConvOperands]:
        """The 1x1 convolutions, of images of one pixel, that have C and its transpose."""
        assert self.samples
        return convolutions(self.a, self.b.t(), self.c, self.samples, self.scale)

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """A, B and perhaps the bias, the arguments of a user's function."""
        return (self.a, self.b) if self.bias is None else (self.a, self.b, self.bias)

    @property
    def outputs(self) -> tuple[torch.Tensor]:
        return (self.c,)

    def holding(self, result: torch.Tensor) -> Self:
        return replace(self, c=result)

    @property
    def mnk(self) -> tuple[int, int, int]:
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]


@dataclass(frozen=True, kw_only=True)
class BatchOperands(Operands):
    """The operands of what is not one plain product.

    A is [batch, M, K], B [batch, K, N], C [batch, M, N]; of broadcast B is [K, N], of groups A
    [batch * M, K] and C [batch * M, N], with `ends` the rows where groups end, on the device. Of
    one product they are matrices. `bias` is [N] for each product, in the dtype of C; `drawn` gives
    the inputs as drawn.
    """

    problem: Gemm
    ends: torch.Tensor
    drawn: Drawn

    @property
    def named(self) -> dict[str, object]:
        """What a user's function may also ask for by name: where groups end."""
        return {"offs": self.ends}

    @property
    def approximate(self) -> str:
        """Which GELU it is: cuBLASLt's epilogue has the one by tanh."""
        return "tanh" if self.c.is_cuda else "none"

    def products(self) -> Iterator[Product]:
        """Views of each product's tensors, one product after another; no empty groups."""
        problem, start = self.problem, 0
        if problem.batch == 1:
            yield self.a, self.b, self.c, self.bias
            return
        for i, end in enumerate(problem.ends):
            rows = slice(start, end) if problem.form in RAGGED else i
            b = self.b if problem.form == BROADCAST else self.b[i]
            start = end
            if self.a[rows].numel():
                yield self.a[rows], b, self.c[rows], None if self.bias is None else self.bias[i, 0]

    def relative_error(self) -> float:
        """The larger of ||C - ref|| / ||ref||, with every element of C, and the error of the worst
        row or column of a product, or element, over its own size where that is more than usual: a
        large element is rounded by more. From the inputs as stored, in float64.
        """
        return max(self._errors(self, 1.0, 1.0))

    def total_error(self) -> float:
        """||C - ref|| / ||ref|| of inputs as drawn: rounding to storage is counted."""
        bias = None if self.bias is None else self.drawn("bias")
        drawn = replace(self, a=self.drawn("a"), b=self.drawn("b"), bias=bias)
        return self._errors(drawn, self.scale, storage_factor(self.c.dtype, ""))[0]

    def _errors(self, of: Self, scale: float, scale_of_bias: float) -> tuple[float, float]:
        """(of all elements, of the worst line) against the products of other inputs."""
        errors, sizes, worst = torch.zeros(3, 1, dtype=torch.float64, device=self.c.device)
        for (*_, c, _), (whole, b, _, bias) in zip(self.products(), of.products(), strict=True):
            rows = max(1, BAND_ELEMENTS // sum(b.shape))
            for got, a in zip(c.split(rows), whole.split(rows), strict=True):
                wanted = a.double() @ b.double() * scale
                if bias is not None:
                    wanted += bias.double() * scale_of_bias
                if self.problem.form == GELU:
                    wanted = gelu(wanted, approximate=self.approximate)
                off, size = (got.double() - wanted).square(), wanted.square()
                errors, sizes = errors + off.sum(), sizes + size.sum()
                usual = checking.typical(wanted).square()
                for lines, own in ((off.mean(0), size.mean(0)), (off.mean(1), size.mean(1)),
                                   (off, size)):  # fmt: skip
                    chance = checking.CHECKSUM_SLACK / (off.numel() // lines.numel()) ** 0.5
                    largest = (lines / torch.maximum(own, usual)).max().sqrt()
                    worst = torch.maximum(worst, largest / (1 + chance))
        sizes = torch.where(sizes > 0, sizes, self.c.numel())
        return float((errors / sizes).sqrt()), float(worst)


def sample(problem: Gemm, drawn: Drawn) -> Samples | Drawn:
    """What C, and its transpose, are checked by; `drawn` gives A and B as drawn. Of a batch, or
    with an epilogue, all of C is checked.
    """
    return product_samples(drawn("a"), drawn("b").t()) if problem.plain else drawn


def product_samples(a: torch.Tensor, b: torch.Tensor) -> Samples:
    """Those of C[M, N] = A[M, K] @ B[N, K] transposed, and of its transpose."""
    count = SAMPLED_ROWS[a.device.type]
    rows, columns = (choose(len(matrix), count, a.device) for matrix in (a, b))
    return _part(rows, columns, a[rows], b[columns]), _part(columns, rows, b[columns], a[rows])


def _part(images: torch.Tensor, ks: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> SampledPart:
    every, shape = torch.arange(x.shape[1], device=x.device), _shape(x, w)
    return SampledPart(images, ks, every, every, shape, {"x": _pixels(x), "w": _pixels(w)})


def convolutions(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, samples: Samples, scale: float = 1.0
) -> tuple[ConvOperands, ConvOperands]:
    """Those that have C[M, N] = A[M, K] @ B[N, K] transposed, and its transpose."""
    first, second = (
        ConvOperands(_pixels(x), _pixels(w), _pixels(y), _shape(x, w), "fprop", sample, scale)
        for x, w, y, sample in ((a, b, c, samples[0]), (b, a, c.t(), samples[1]))
    )
    return first, second


def _shape(x: torch.Tensor, w: torch.Tensor) -> ConvShape:
    return ConvShape(x.shape[0], x.shape[1], 1, 1, w.shape[0], 1, 1)


def _pixels(matrix: torch.Tensor) -> torch.Tensor:
    return matrix[:, :, None, None]


def operands(case: Case, tensors: dict[str, torch.Tensor], sample: Samples | Drawn) -> Operands:
    problem, device = case.problem, tensors["c"].device
    assert isinstance(problem, Gemm)
    given: dict[str, Any] = {**tensors, "one": torch.ones((), device=device), "scale": scale(case)}
    if isinstance(sample, tuple):
        return Operands(**given, samples=sample)
    ends = torch.tensor(problem.ends, dtype=torch.int32, device=device)
    return BatchOperands(**given, problem=problem, ends=ends, drawn=sample)
