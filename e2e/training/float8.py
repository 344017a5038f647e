"""Linear layers that multiply in FP8: forward, and both products of backward.

Inputs and weights are E4M3 with a scale from their largest value at that moment, as in "dynamic
scaling" of https://arxiv.org/abs/2209.05433. One scale a tensor, with E5M2 for gradients, or one
for each row of a product, where E4M3 has range enough for gradients too. Weights stay as they are:
a layer only reads them in FP8. torch._scaled_mm multiplies, with sums in float32 and results in
bfloat16.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

TENSORWISE, ROWWISE = "tensorwise", "rowwise"  # what has a scale of its own
MULTIPLE = 16  # of sizes that the card's FP8 products take
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
HIGH = torch.bfloat16  # what results are, and what is multiplied where FP8 cannot
SMALLEST = 1e-12  # a tensor of zeros has a scale too


class NothingToConvert(Exception):
    """A network without a linear layer of sizes that FP8 takes."""


class Float8Linear(nn.Linear):
    """A linear layer whose products are in FP8; `scaling` is TENSORWISE or ROWWISE.

    Inputs [..., in] give [..., out] in bfloat16. A number of rows that is no multiple of 16 is
    multiplied in bfloat16: backward sums over them.
    """

    scaling: str

    def forward(self, input: Tensor) -> Tensor:
        rows = input.reshape(-1, self.in_features).to(HIGH)
        weight = self.weight.to(HIGH)
        if len(rows) % MULTIPLE:
            product = rows @ weight.t()
        else:
            found: Any = Float8Product.apply(rows, weight, self.scaling == ROWWISE)
            product = cast(Tensor, found)
        output = product.view(*input.shape[:-1], self.out_features)
        bias = cast("Tensor | None", self.bias)
        return output if bias is None else output + bias.to(HIGH)


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


class Float8Product(torch.autograd.Function):
    """rows [M, K] times weight [N, K] transposed: [M, N]; all bfloat16, products in FP8."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, rowwise: bool) -> Tensor:
        ctx.save_for_backward(rows, weight)
        ctx.rowwise = rowwise
        return multiplied(rows, weight, rowwise=rowwise, fast=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, Tensor, None]:
        (gradient,) = gradients
        rows, weight = ctx.saved_tensors
        kind, rowwise = E4M3 if ctx.rowwise else E5M2, ctx.rowwise
        of_rows = multiplied(gradient, weight.t(), rowwise=rowwise, first=kind)
        of_weight = multiplied(gradient.t(), rows.t(), rowwise=rowwise, first=kind)
        return of_rows, of_weight, None


def multiplied(
    a: Tensor, b: Tensor, *, rowwise: bool, first: torch.dtype = E4M3, fast: bool = False
) -> Tensor:
    """a [M, K] times b [N, K] transposed, in FP8: [M, N] in bfloat16.

    `first` is the type of `a`; `b` is E4M3. `fast`: sums are not carried to full precision.
    """
    (low, scale), (other, other_scale) = quantized(a, first, rowwise), quantized(b, E4M3, rowwise)
    multiply: Any = torch._scaled_mm  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
    return multiply(
        low, other.t(), scale, other_scale.t() if rowwise else other_scale,
        out_dtype=HIGH, use_fast_accum=fast,
    )  # fmt: skip


def quantized(values: Tensor, kind: torch.dtype, rowwise: bool) -> tuple[Tensor, Tensor]:
    """(values in FP8, contiguous, and the float32 scale that gives them back when multiplied).

    The scale is a scalar, or [rows, 1]; the largest value becomes the largest of the type.
    """
    largest = values.abs().amax(dim=1, keepdim=True) if rowwise else values.abs().amax()
    limit = torch.finfo(kind).max
    scale = largest.float().clamp(min=SMALLEST) / limit
    low = (values / scale).clamp(-limit, limit).to(kind)
    return low.contiguous(), scale
