"""How many floating-point operations a recorded call is at least."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import flop_registry

from e2e.aten.call import Argument, Call, CannotReplay, TensorSpec
from kernels import flops as flop_counts


def flops(call: Call) -> int | None:
    """FLOPs of a GEMM or convolution, a multiply-add as two; None for other calls, or if unknown.

    Attention counts masked elements too; in its backward pass the four products of the algorithm,
    not the scores that a kernel computes again. Else the formulas are torch.utils.flop_counter's
    but for convolutions, where it ignores groups in the weights' gradients.
    """
    if call.operator.startswith("_scaled_dot_product_"):
        backward = call.operator.endswith("_backward")
        shapes = (_tensor(value).shape for value in call.args[backward : backward + 3])
        return (1 + backward) * flop_counts.attention(*shapes)
    own = _FORMULAS.get(call.operator)
    if own is not None:
        return own(call.args)
    try:
        formula: Any = flop_registry.get(call.func.overloadpacket)
    except CannotReplay:
        return None
    if formula is None:
        return None
    args, kwargs = tree_map(_meta, (call.args, dict(call.kwargs)))
    return int(formula(*args, **kwargs, out_val=None))


def _meta(value: Argument) -> Any:
    """The argument; a tensor with its shape and no memory, as the formulas take it."""
    return torch.empty(value.shape, device="meta") if isinstance(value, TensorSpec) else value


def _convolution(args: Sequence[Argument]) -> int:
    source, weight = map(_tensor, args[:2])
    stride, padding, dilation, transposed = args[3:7]
    if transposed:
        return flop_counts.convolution(source.shape[0], source.shape[2:], weight.shape)
    sizes = zip(
        source.shape[2:], weight.shape[2:],
        *(_each(value, len(source.shape) - 2) for value in (stride, padding, dilation)),
        strict=True,
    )  # fmt: skip
    grid = [(n + 2 * p - d * (r - 1) - 1) // s + 1 for n, r, s, p, d in sizes]
    return flop_counts.convolution(source.shape[0], grid, weight.shape)


def _convolution_backward(args: Sequence[Argument]) -> int:
    """As many as the forward pass for each of the input's and the weight's gradient."""
    gradient, source, weight = map(_tensor, args[:3])
    mask = args[10]
    assert isinstance(mask, tuple)
    grid = (source if args[7] else gradient).shape[2:]
    gradients = bool(mask[0]) + bool(mask[1])
    return gradients * flop_counts.convolution(source.shape[0], grid, weight.shape)


def _tensor(value: Argument) -> TensorSpec:
    assert isinstance(value, TensorSpec)
    return value


def _each(value: Argument, dims: int) -> list[int]:
    """A convolution's stride, padding or dilation; one number stands for all dimensions."""
    numbers = [int(n) for n in value] if isinstance(value, tuple) else [value]  # pyright: ignore
    return numbers * dims if len(numbers) == 1 else numbers  # pyright: ignore[reportReturnType]


def _product(first: int) -> Callable[[Sequence[Argument]], int]:
    """Of two factors, the left of which is argument `first`: 2 FLOPs an element and column."""

    def count(args: Sequence[Argument]) -> int:
        left, right = map(_tensor, args[first : first + 2])
        return 2 * left.numel * math.prod(right.shape[1:])

    return count


_FORMULAS: Mapping[str, Callable[[Sequence[Argument]], int]] = {
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_overrideable": _convolution,
    "convolution_backward": _convolution_backward,
    "_int_mm": _product(0),
    "mv": _product(0),
    "dot": _product(0),
    "addmv": _product(1),
    "_addmm_activation": _product(1),
}
