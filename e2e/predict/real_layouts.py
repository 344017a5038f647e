"""What ATen calls return for real, where fake tensors are known to say otherwise.

Some calls are Python decompositions under fake tensors, and lay their result out unlike the kernel.
A layer after them then copies on a real device where the fake one does not, or the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor

BATCH_NORM = "aten.native_batch_norm.default"
EFFICIENT_ATTENTION = "aten._scaled_dot_product_efficient_attention.default"

# (a call's first result, its arguments) -> a tensor with the strides that this result has for real
Rule = Callable[[Tensor, Sequence[Any]], Tensor]


def as_when_real(name: str, args: Sequence[Any], out: Any) -> Any:
    """What the call `name` returns on a real device, from what it returned; allocates nothing.

    On a CPU batch-norm of 16-bit images with float32 weights keeps float32 statistics. On a GPU
    memory-efficient attention keeps seed and offset of its dropout on the host, unless captured.
    Layouts are those of `RULES` and, on a CPU, `CPU_RULES`.
    """
    if not args or not isinstance(args[0], FakeTensor):
        return out
    on_cpu = args[0].device.type == "cpu"
    if name == BATCH_NORM and args[1] is not None:
        if on_cpu and args[0].dtype != args[1].dtype:
            return (out[0], *(statistic.to(args[1].dtype) for statistic in out[1:]))
    elif name == EFFICIENT_ATTENTION:
        return (*out[:2], *(seed.to("cpu") for seed in out[2:]))
    rule = RULES.get(name) or (CPU_RULES.get(name) if on_cpu else None)
    return _laid_out(rule, args, out) if rule else out


def _laid_out(rule: Rule, args: Sequence[Any], out: Any) -> Any:
    """The first result as the rule says; a gradient that nobody asked for is None."""
    if isinstance(out, tuple):
        first, *others = out
        return (first if first is None else _laid_out(rule, args, first), *others)
    return out.new_empty_strided(out.shape, rule(out, args).stride())


def _as_sum_of(first: int, second: int) -> Rule:
    """As ATen's TensorIterator takes two arguments of one shape, in this order; so does a sum.

    Dimensions in the order of the first one's strides, or, where it is expanded, the second one's.
    """
    return lambda out, args: torch.add(args[first], args[second])


def _like(argument: int) -> Rule:
    return lambda out, args: torch.empty_like(args[argument])


def _in_format_of(argument: int) -> Rule:
    """Channels-last where this argument is, else contiguous."""
    return lambda out, args: torch.empty_like(
        out, memory_format=suggest_memory_format(args[argument])
    )


def _contiguous(out: Tensor, args: Sequence[Any]) -> Tensor:
    return torch.empty_like(out, memory_format=torch.contiguous_format)


def _rrelu_backward(out: Tensor, args: Sequence[Any]) -> Tensor:
    """In training the noise times the gradient, else the gradient of leaky ReLU."""
    training = args[5]
    return (_as_sum_of(2, 0) if training else _as_sum_of(1, 0))(out, args)


# From ATen/native: Activation.cpp, GatedLinearUnit.cpp, Loss.cpp, SoftMax.cpp, layer_norm.cpp, and
# cuda/ of these. On a CPU, tests/test_real_layouts.py compares each with the kernel.
RULES: dict[str, Rule] = {
    "aten.hardtanh_backward.default": _as_sum_of(0, 1),
    "aten.hardswish_backward.default": _as_sum_of(0, 1),
    "aten.hardsigmoid_backward.default": _as_sum_of(0, 1),
    "aten.softplus_backward.default": _as_sum_of(0, 1),
    "aten.elu_backward.default": _as_sum_of(0, 5),
    "aten.log_sigmoid_backward.default": _like(0),
    "aten.binary_cross_entropy_backward.default": _like(1),
    "aten.rrelu_with_noise_backward.default": _rrelu_backward,
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
    "aten.native_batch_norm_backward.default": _in_format_of(1),
}
