"""Linear layers that multiply in FP8: forward, and both products of backward.

Inputs and weights are E4M3 with a scale from their largest value at that moment, as in "dynamic
scaling" of https://arxiv.org/abs/2209.05433. One scale a tensor, with E5M2 for gradients, or one
for each row of a product, where E4M3 has range enough for gradients too. Weights stay as they are:
a layer only reads them in FP8. torch._scaled_mm multiplies, with sums in float32 and results in
bfloat16.

A step finds each scale once, and rounds each tensor once for each scale. So forward makes the input
and the weight in FP8 as backward multiplies them too, and keeps those. That costs memory: until
backward a layer holds 1 byte a value of its weight, and 1 of its input, even where another layer
holds the same input or torch.compile would have computed it again. Of a step of several batches a
layer rounds its weight once, in `cast_once`, and holds 2 bytes a value of it until the last one.
Without gradients, as in evaluation, a layer makes nothing for backward and keeps nothing.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

TENSORWISE, ROWWISE = "tensorwise", "rowwise"  # what has a scale of its own
MULTIPLE = 16  # of sizes that the card's FP8 products take
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
HIGH = torch.bfloat16  # what results are, and what is multiplied where FP8 cannot
SMALLEST = 1e-12  # a tensor of zeros has a scale too

# A tensor in FP8 for the products that sum over its columns, and for those over its rows:
# (values, scale, values transposed, their scale). Of one scale a tensor both scales are that one.
Factors = tuple[Tensor, ...]


class NothingToConvert(Exception):
    """A network without a linear layer of sizes that FP8 takes."""


class Float8Linear(nn.Linear):
    """A linear layer whose products are in FP8; `scaling` is TENSORWISE or ROWWISE.

    Inputs [..., in] give [..., out] in bfloat16. A number of rows that is no multiple of 16 is
    multiplied in bfloat16: backward sums over them.
    """

    scaling: str
    keeps = False  # whether the weight in FP8 is good for the next batch too
    kept: Factors | None = None

    def forward(self, input: Tensor) -> Tensor:
        rows = input.reshape(-1, self.in_features).to(HIGH)
        if len(rows) % MULTIPLE:
            product = rows @ self.weight.to(HIGH).t()
        else:
            product = self._product(rows, self.scaling == ROWWISE)
        output = product.view(*input.shape[:-1], self.out_features)
        bias = cast("Tensor | None", self.bias)
        return output if bias is None else output + bias.to(HIGH)

    def _product(self, rows: Tensor, rowwise: bool) -> Tensor:
        if not torch.is_grad_enabled():  # ctx asks for gradients even here
            weight = quantized(self.weight.to(HIGH), E4M3, rowwise)
            return multiplied(quantized(rows, E4M3, rowwise), weight, fast=True)
        factors = self.kept
        if factors is None:
            factors = Float8ProductWeight.apply(self.weight, rowwise)
        if self.keeps:
            self.kept = factors
        return Float8Product.apply(rows, self.weight, rowwise, *factors)


def convert(module: nn.Module, scaling: str) -> tuple[int, int]:
    """Make the linear layers of a network multiply in FP8, in place: (how many do, of how many).

    Left as they are: layers whose sizes are no multiples of 16, and subclasses of nn.Linear, whose
    weights others may read (attention's in torch.nn.MultiheadAttention). NothingToConvert where no
    layer is left.
    """
    linear = [child for child in module.modules() if isinstance(child, nn.Linear)]
    chosen = [child for child in linear if type(child) is nn.Linear and _fits(child)]
    if not chosen:
        raise NothingToConvert(
            f"FP8 is for linear layers with sizes that are multiples of {MULTIPLE}: it has none"
        )
    for child in chosen:
        child.__class__ = Float8Linear
        cast(Float8Linear, child).scaling = scaling
    return len(chosen), len(linear)


def _fits(layer: nn.Linear) -> bool:
    return layer.in_features % MULTIPLE == 0 and layer.out_features % MULTIPLE == 0


@contextmanager
def cast_once(module: nn.Module) -> Generator[None]:
    """Batches between which no weight changes: each layer rounds its weight in the first one."""
    layers = [child for child in module.modules() if isinstance(child, Float8Linear)]
    for layer in layers:
        layer.keeps = True
    try:
        yield
    finally:
        for layer in layers:
            layer.keeps, layer.kept = False, None


# The names of both begin alike: recorded steps tell their casts from others by that.


class Float8ProductWeight(torch.autograd.Function):
    """The factors of a weight [N, K]; no gradient goes through them."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rowwise: bool) -> Factors:
        found = factors_of(weight.to(HIGH), E4M3, rowwise)
        found = found if rowwise else found[:3]  # no output twice
        ctx.mark_non_differentiable(*found)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, None]:
        return None, None


class Float8Product(torch.autograd.Function):
    """bfloat16 rows [M, K] times a weight [N, K] transposed: [M, N], by the weight's `factors`.

    The weight itself is there for its gradient.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, rowwise: bool, *factors: Tensor) -> Tensor:
        low, scale, across = factors[:3]
        needed = factors_of if ctx.needs_input_grad[1] else quantized
        of_rows = needed(rows, E4M3, rowwise)
        ctx.save_for_backward(across, factors[3] if rowwise else scale, *of_rows[2:])
        ctx.rowwise, ctx.kind = rowwise, weight.dtype
        return multiplied(of_rows[:2], (low, scale), fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        weight, weight_scale, *rows = ctx.saved_tensors
        low, scale, across, across_scale = factors_of(
            gradient, E4M3 if ctx.rowwise else E5M2, ctx.rowwise
        )
        of_rows = of_weight = None
        if ctx.needs_input_grad[0]:
            of_rows = multiplied((low, scale), (weight, weight_scale))
        if ctx.needs_input_grad[1]:
            of_weight = multiplied((across, across_scale), tuple(rows)).to(ctx.kind)
        return of_rows, of_weight, *[None] * (len(ctx.needs_input_grad) - 2)


def factors_of(values: Tensor, kind: torch.dtype, rowwise: bool) -> Factors:
    """A bfloat16 matrix in FP8; see `Factors`."""
    low, scale = quantized(values, kind, rowwise)
    if rowwise:
        return (low, scale, *quantized(values.t(), kind, rowwise))
    return low, scale, low.t().contiguous(), scale


def multiplied(a: Factors, b: Factors, *, fast: bool = False) -> Tensor:
    """a [M, K] times b [N, K] transposed: [M, N] in bfloat16. Both are as of `quantized`.

    `fast`: sums are not carried to full precision.
    """
    (low, scale), (other, other_scale) = a, b
    multiply: Any = torch._scaled_mm  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    return multiply(
        low, other.t(), scale, other_scale.t() if other_scale.dim() else other_scale,
        out_dtype=HIGH, use_fast_accum=fast,
    )  # fmt: skip


def quantized(values: Tensor, kind: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor]:
    """(values in FP8, contiguous, and the float32 scale that gives them back when multiplied).

    The scale is a scalar, or [rows, 1]; the largest value becomes the largest of the type.
    """
    # The norm reads the values once; abs().amax() would write and read them again.
    along: dict[str, Any] = {"dim": 1, "keepdim": True} if rowwise else {}
    largest: Tensor = cast(Any, torch.linalg).vector_norm(values, math.inf, **along)
    limit = torch.finfo(kind).max
    scale = largest.float().clamp(min=SMALLEST) / limit
    low = (values / scale).clamp(-limit, limit).to(kind)
    return low.contiguous(), scale
