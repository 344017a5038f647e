"""The matrices of a linear layer, cast to FP8 where they are given so, and how they are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch

from kernels.case import Case
from kernels.conv.operands import ConvOperands, SampledPart
from kernels.gemm import operands as gemm
from kernels.linear import PRODUCTS, Linear

BLOCK = 128  # elements that share a scale in fp8-block; of a weight as many rows too
SMALLEST = 1e-12  # scale, of rows that are all zeros


@dataclass(frozen=True)
class Quantised:
    """FP8 `values` [R, C], row-major, and what they are to be multiplied by: float32 `scales`, one
    a tensor [1, 1], a row [R, 1], or a block [R or R/128, C/128].
    """

    values: torch.Tensor
    scales: torch.Tensor

    @property
    def exact(self) -> torch.Tensor:
        """What they stand for, in float32."""
        rows, columns = (
            whole // parts
            for whole, parts in zip(self.values.shape, self.scales.shape, strict=True)
        )
        scales = self.scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
        return self.values.float() * scales


def quantised(given: Mapping[str, torch.Tensor], name: str, precision: str) -> Quantised:
    """A matrix, "x" or transposed "x_t", in FP8 with the scales of a precision.

    The largest value of a tensor, row or block becomes the largest of FP8. One scale, and square
    blocks, serve a transposed matrix too; then it is cast once and its bytes are transposed. As in
    torchao, gradients are e5m2 where they have one scale.
    """
    base = name.removesuffix("_t")
    scaling = precision.removeprefix("fp8-")
    shared = scaling == "tensor" or (scaling == "block" and base == "w")
    if shared and base != name:
        cast = quantised(given, base, precision)
        return Quantised(cast.values.t().contiguous(), cast.scales.t())
    matrix = given[base] if base == name else given[base].t()
    rows, columns = matrix.shape
    tall, wide = {
        "tensor": (rows, columns), "row": (1, columns), "block": (BLOCK if shared else 1, BLOCK),
    }[scaling]  # fmt: skip
    five = scaling == "tensor" and base == "g"
    dtype = torch.float8_e5m2 if five else torch.float8_e4m3fn
    tiles = matrix.float().reshape(rows // tall, tall, columns // wide, wide)
    largest = tiles.abs().amax((1, 3), keepdim=True)
    scales = (largest / torch.finfo(dtype).max).clamp(min=SMALLEST)
    values = (tiles / scales).to(dtype).reshape(rows, columns)
    return Quantised(values.contiguous(), scales.reshape(rows // tall, columns // wide))


@dataclass(frozen=True)
class LinearOperands:
    """`given` are the inputs in bfloat16 by name; `results` the outputs; `samples` what each is
    checked by. `factors` are both operands of each product where they are given in FP8.
    """

    problem: Linear
    given: Mapping[str, torch.Tensor]
    results: Mapping[str, torch.Tensor]
    samples: Mapping[str, tuple[SampledPart, SampledPart]]
    factors: Mapping[str, tuple[Quantised, Quantised]]

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """What a launch reads, and the arguments of a user's function."""
        pairs = self.factors.values()
        return tuple(one.values for pair in pairs for one in pair) or tuple(self.given.values())

    @property
    def named(self) -> dict[str, object]:
        """What a user's function may also ask for by name."""
        return {"problem": self.problem}

    @property
    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(self.results.values())

    def holding(self, *results: torch.Tensor) -> Self:
        return replace(self, results=dict(zip(self.results, results, strict=True)))

    @property
    def convolutions(self) -> tuple[ConvOperands, ...]:
        """What is checked: each product as a GEMM is, of what the operands stand for now."""
        found: list[ConvOperands] = []
        for name, c in self.results.items():
            if name in self.factors:
                a, b = (one.exact for one in self.factors[name])
            else:
                a, b = (matrix(self.given, one) for one in PRODUCTS[name])
            samples, one = self.samples[name], c.new_ones(())
            found += gemm.Operands(a, b.t(), c, one, samples).convolutions
        return tuple(found)


def matrix(given: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """ "x", or a view of it transposed, "x_t"."""
    base = given[name.removesuffix("_t")]
    return base if name in given else base.t()


def sample(
    problem: Linear, drawn: Callable[[str], torch.Tensor]
) -> Mapping[str, tuple[SampledPart, SampledPart]]:
    """What each output, and its transpose, are checked by; `drawn` gives an input as drawn."""
    given = {name: drawn(name) for name in problem.inputs}
    pairs = {name: [matrix(given, one) for one in PRODUCTS[name]] for name in problem.outputs}
    return {name: gemm.product_samples(a, b) for name, (a, b) in pairs.items()}


def operands(
    case: Case,
    tensors: dict[str, torch.Tensor],
    samples: Mapping[str, tuple[SampledPart, SampledPart]],
) -> LinearOperands:
    """With FP8 operands of each product, where they are given so."""
    problem = case.problem
    assert isinstance(problem, Linear)
    given, results = (
        {name: tensors[name] for name in names} for names in (problem.inputs, problem.outputs)
    )
    factors: dict[str, tuple[Quantised, Quantised]] = {}
    if problem.quantised and case.precision.multiply == "fp8":
        for name in problem.outputs:
            a, b = (quantised(given, one, case.precision_name) for one in PRODUCTS[name])
            factors[name] = a, b
    return LinearOperands(problem, given, results, samples, factors)
