"""What ATen calls return on a real device, where fake tensors are known to differ.

Some calls are Python decompositions under fake tensors, and lay out their result unlike the kernel.
A layer after them then copies on a real device but not in the trace, or the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import make_contiguous_strides_for, suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from e2e.aten.call import schema_of

# Calls that `_is_elementwise` cannot tell by torch's tags and the names of overloads.
ELEMENTWISE = {
    "aten.hardswish.default",
    "aten.leaky_relu.default",
    "aten.leaky_relu_backward.default",
    "aten.mish_backward.default",
    "aten.lerp.Scalar",
    "aten.pow.Tensor_Scalar",
}
ALIKE = ("aten.clone.default", "aten.hardtanh.default")  # tagged, yet made like their argument
# Where their weight is among their arguments.
NORMS = {
    "aten.native_batch_norm.default": 1,
    "aten.native_layer_norm.default": 2,
    "aten.native_group_norm.default": 1,
}
GROUP_NORM_BACKWARD = "aten.native_group_norm_backward.default"
EFFICIENT_ATTENTION = "aten._scaled_dot_product_efficient_attention.default"

# (a call's first result, its arguments) -> a tensor with the strides that this result has for real
Rule = Callable[[Tensor, Sequence[Any]], Tensor]


def as_when_real(func: OpOverload, args: Sequence[Any], out: Any) -> Any:
    """What a call of `func` returns on a real device, from what it returned; allocates nothing.

    On a CPU a norm of 16-bit values with float32 weights keeps float32 statistics. The gradient of
    group-norm's input has the input's type. On a GPU memory-efficient attention keeps the seed and
    offset of its dropout on the host, unless captured. Layouts are those of `RULES` and, on a CPU,
    `CPU_RULES`, else of `_as_if_contiguous`.
    """
    if not args or not isinstance(args[0], FakeTensor):
        return out
    name, on_cpu = str(func), args[0].device.type == "cpu"
    if on_cpu and name in NORMS:
        weight = args[NORMS[name]]
        if weight is not None and weight.dtype != args[0].dtype:
            out = (out[0], *(statistic.to(weight.dtype) for statistic in out[1:]))
    elif name == EFFICIENT_ATTENTION:
        return (*out[:2], *(seed.to("cpu") for seed in out[2:]))
    elif name == GROUP_NORM_BACKWARD and out[0] is not None:
        out = (out[0].to(args[1].dtype), *out[1:])
    rule = RULES.get(name) or (CPU_RULES.get(name) if on_cpu else None)
    if rule is None and _is_elementwise(func, args):
        rule = _as_if_contiguous
    return _laid_out(rule, args, out) if rule else out


def _laid_out(rule: Rule, args: Sequence[Any], out: Any) -> Any:
    """The first result as the rule says; a gradient that was not asked for is None."""
    if isinstance(out, tuple):
        first, *others = cast("tuple[Any, ...]", out)
        return (first if first is None else _laid_out(rule, args, first), *others)
    stride = rule(out, args).stride()
    return out if stride == out.stride() else out.new_empty_strided(out.shape, stride)


def _is_elementwise(func: OpOverload, args: Sequence[Any]) -> bool:
    """Whether ATen's TensorIterator makes the result, and of these tensors alone.

    Where the kernel takes tensors and is given a number, that is one of no dimensions.
    """
    name = str(func)
    if name in ELEMENTWISE:
        return True
    schema = schema_of(func)
    if torch.Tag.pointwise not in func.tags or schema.is_mutable:
        return False
    if name in ALIKE or "Scalar" in schema.overload_name:
        return False
    kinds = [argument.type.kind() for argument in schema.arguments]
    return all(
        isinstance(arg, Tensor)
        for kind, arg in zip(kinds, args, strict=False)
        if kind == "TensorType"
    )


def _as_if_contiguous(out: Tensor, args: Sequence[Any]) -> Tensor:
    """As TensorIterator has it: [N, C, 1, 1], contiguous and channels-last at once, is contiguous.

    Only where all arguments are so, and of the result's shape (`compute_fast_setup_type` in ATen's
    TensorIterator.cpp, for every device). A convolution takes such strides for a layout.
    """
    if out.stride() == make_contiguous_strides_for(out.shape) or not out.is_contiguous():
        return out
    tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
    if not all(tensor.shape == out.shape and tensor.is_contiguous() for tensor in tensors):
        return out
    return _contiguous(out, args)


def _as_sum_of(first: int, second: int) -> Rule:
    """As ATen's TensorIterator takes two arguments of one shape, in this order; so does a sum.

    Dimensions in the order of the first one's strides, or, where it is expanded, the second one's.
    """

    def rule(out: Tensor, args: Sequence[Any]) -> Tensor:
        taken = args[first], args[second]
        return _as_if_contiguous(torch.add(*taken), taken)

    return rule


def _like(argument: int) -> Rule:
    return lambda out, args: torch.empty_like(args[argument])


def _in_format_of(argument: int) -> Rule:
    """Channels-last where this argument is so and is not contiguous as well, else contiguous."""

    def rule(out: Tensor, args: Sequence[Any]) -> Tensor:
        if args[argument].is_contiguous():
            return _contiguous(out, args)
        return torch.empty_like(out, memory_format=suggest_memory_format(args[argument]))

    return rule


def _contiguous(out: Tensor, args: Sequence[Any]) -> Tensor:
    return torch.empty_like(out, memory_format=torch.contiguous_format)


# From ATen/native: Activation.cpp, GatedLinearUnit.cpp, Loss.cpp, SoftMax.cpp, layer_norm.cpp, and
# cuda/ of these. On a CPU, tests/e2e/test_recorded_calls.py compares each with the kernel.
RULES: dict[str, Rule] = {
    "aten.hardtanh_backward.default": _as_sum_of(0, 1),
    "aten.hardswish_backward.default": _as_sum_of(0, 1),
    "aten.hardsigmoid_backward.default": _as_sum_of(0, 1),
    "aten.softplus_backward.default": _as_sum_of(0, 1),
    "aten.elu_backward.default": _as_sum_of(0, 5),
    "aten.log_sigmoid_backward.default": _like(0),
    "aten.binary_cross_entropy_backward.default": _like(1),
    # In training the noise times the gradient, else the gradient of leaky ReLU.
    "aten.rrelu_with_noise_backward.default": lambda out, args: (
        _as_sum_of(2, 0) if args[5] else _as_sum_of(1, 0)
    )(out, args),
    "aten.rrelu_with_noise.default": _contiguous,
    "aten.glu_backward.default": _contiguous,
    "aten.mse_loss_backward.default": _contiguous,
    "aten.smooth_l1_loss_backward.default": _contiguous,
    "aten.huber_loss_backward.default": _contiguous,
    "aten._log_softmax_backward_data.default": _contiguous,
    "aten.native_layer_norm_backward.default": _contiguous,
}
CPU_RULES: dict[str, Rule] = {  # CUDA's kernels of these do otherwise
    "aten.native_dropout_backward.default": _as_sum_of(0, 1),
    "aten.native_batch_norm.default": _in_format_of(0),
    "aten.native_group_norm.default": _in_format_of(0),
    "aten.native_batch_norm_backward.default": _in_format_of(1),
    "aten.native_group_norm_backward.default": _in_format_of(1),
}
