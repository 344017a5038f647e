"""The matrices of a linear layer, cast to FP8 where they are given so, and how they are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch.nn.functional import pad

from kernels.case import Case
from kernels.conv.operands import ConvOperands
from kernels.gemm import operands as gemm
from kernels.linear import PRODUCTS, Linear

BLOCK = 128  # elements that share a scale in fp8-block; of a weight as many rows too
SMALLEST = 1e-12  # scale, of rows that are all zeros
MX_BLOCK, FP4_BLOCK = 32, 16  # elements of a row that share a scale in mxfp8, in nvfp4
FP4_LARGEST, E4M3_LARGEST, E4M3_SMALLEST = 6.0, 448.0, 2.0**-9
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the three bits below the sign
MANTISSA = 0x7FFFFF  # of a float32's bits


@dataclass(frozen=True)
class Quantised:
    """FP8 `values` [R, C], row-major, and what they are to be multiplied by: float32 `scales`, one
    a tensor [1, 1], a row [R, 1], or a block [R or R/128, C/128]. In mxfp8 a block is 32 of a row;
    in nvfp4 16, `values` are bytes [R, C/2] of two numbers each, and `whole` [1] is the tensor's
    scale. `stored` are the scales as both are given to the Tensor Cores.
    """

    values: torch.Tensor
    scales: torch.Tensor
    stored: torch.Tensor | None = None
    whole: torch.Tensor | None = None

    @property
    def exact(self) -> torch.Tensor:
        """What they stand for, in float32."""
        values, scales = self.values, self.scales
        if self.whole is not None:
            scales = scales * self.whole
            numbers = torch.tensor((*FP4, *(-number for number in FP4)), device=values.device)
            values = numbers[torch.stack((values & 15, values >> 4), -1).long()].flatten(1)
        rows, columns = (
            whole // parts for whole, parts in zip(values.shape, scales.shape, strict=True)
        )
        return values.float() * scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)


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
    if precision in BLOCK_SCALED:
        return BLOCK_SCALED[precision](matrix.float().contiguous())
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


def mxfp8(matrix: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> Quantised:
    """A block's scale is the least power of two that nothing in it is too large for."""
    tiles = matrix.reshape(len(matrix), -1, MX_BLOCK)
    least = tiles.abs().amax(2) / torch.finfo(dtype).max
    # A power of two has no bits of mantissa; what has some is carried to the next.
    bits = least.clamp(min=torch.finfo(torch.float32).tiny).view(torch.int32) + MANTISSA
    scales = (bits & ~MANTISSA).view(torch.float32)
    values = (matrix / scales.repeat_interleave(MX_BLOCK, 1)).to(dtype)
    return Quantised(values, scales, swizzled(scales).to(torch.float8_e8m0fnu))


def nvfp4(matrix: torch.Tensor) -> Quantised:
    """A block's scale is the nearest FP8 number to what makes its largest value that of FP4, beside
    the tensor's, which makes the largest of those the largest of FP8. Halves go to even.
    """
    largest = matrix.reshape(len(matrix), -1, FP4_BLOCK).abs().amax(2)
    whole = (largest.amax() / (FP4_LARGEST * E4M3_LARGEST)).clamp(min=SMALLEST).reshape(1)
    scales = (largest / FP4_LARGEST / whole).clamp(E4M3_SMALLEST, E4M3_LARGEST)
    scales = scales.to(torch.float8_e4m3fn).float()
    scaled = matrix / (scales * whole).repeat_interleave(FP4_BLOCK, 1)
    size = scaled.abs().clamp(max=FP4_LARGEST)
    # The codes of 0 to 2 are in steps of a half, of 2 to 4 of one, of 4 to 6 of two.
    large = torch.where(size < 4, 2 + size.round(), 4 + (size / 2).round())
    code = torch.where(size < 2, (2 * size).round(), large).to(torch.uint8)
    code = code | torch.where(scaled < 0, 8, 0).to(torch.uint8)
    values = code[:, ::2] | code[:, 1::2] << 4
    return Quantised(values, scales, swizzled(scales).to(torch.float8_e4m3fn), whole)


BLOCK_SCALED: Mapping[str, Callable[[torch.Tensor], Quantised]] = {"mxfp8": mxfp8, "nvfp4": nvfp4}


def swizzled(scales: torch.Tensor) -> torch.Tensor:
    """In the order of the Tensor Cores (cuBLAS, "1D Block Scaling Factors Layout"): tiles of 128
    rows and 4 blocks, in which rows that are 32 apart stand together.
    """
    padded = pad(scales, (0, -scales.shape[1] % 4, 0, -scales.shape[0] % 128))
    tiles = padded.reshape(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).flatten()


@dataclass(frozen=True)
class LinearOperands:
    """`given` are the inputs in bfloat16 by name; `results` the outputs; `samples` what each is
    checked by. `factors` are both operands of each product where they are given in FP8.
    """

    problem: Linear
    given: Mapping[str, torch.Tensor]
    results: Mapping[str, torch.Tensor]
    samples: Mapping[str, gemm.Samples]
    factors: Mapping[str, tuple[Quantised, Quantised]]

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """What a launch reads, and the arguments of a user's function."""
        pairs = self.factors.values()
        factors = tuple(factor.values for pair in pairs for factor in pair)
        return factors or tuple(self.given.values())

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
            found += gemm.convolutions(a, b, c, self.samples[name])
        return tuple(found)


def matrix(given: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """ "x", or a view of it transposed, "x_t"."""
    base = given[name.removesuffix("_t")]
    return base if name in given else base.t()


def sample(problem: Linear, drawn: Callable[[str], torch.Tensor]) -> Mapping[str, gemm.Samples]:
    """What each output, and its transpose, are checked by; `drawn` gives an input as drawn."""
    given = {name: drawn(name) for name in problem.inputs}
    pairs = {name: [matrix(given, side) for side in PRODUCTS[name]] for name in problem.outputs}
    return {name: gemm.product_samples(a, b) for name, (a, b) in pairs.items()}


def operands(
    case: Case,
    tensors: dict[str, torch.Tensor],
    samples: Mapping[str, gemm.Samples],
) -> LinearOperands:
    """With FP8 operands of each product, where they are given so."""
    problem = case.problem
    assert isinstance(problem, Linear)
    given, results = (
        {name: tensors[name] for name in names} for names in (problem.inputs, problem.outputs)
    )
    factors: dict[str, tuple[Quantised, Quantised]] = {}
    if problem.quantised and case.precision.casts:
        for name in problem.outputs:
            a, b = (quantised(given, operand, case.precision_name) for operand in PRODUCTS[name])
            factors[name] = a, b
    return LinearOperands(problem, given, results, samples, factors)
