"""What a forward pass saves for its backward pass: made by running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.aten.arena import writable
from kernels.aten.call import Argument, Call, CannotReplay, TensorSpec
from kernels.error_words import first_line

Values = Mapping[str, Any]  # arguments as they are passed, by name


@dataclass(frozen=True)
class Saved:
    """Arguments of a backward pass that its forward pass returned.

    `outputs` maps each to its place in what `forward` returns. The forward pass takes the backward
    pass's own arguments of the same names, and those that `given` makes of them.
    """

    forward: str
    outputs: Mapping[str, int]
    given: Mapping[str, Callable[[Values], Any]]


def _constant(value: Any) -> Callable[[Values], Any]:
    return lambda _: value


_SEEDS = {"out": 0, "logsumexp": 1, "cum_seq_q": 2, "cum_seq_k": 3,
          "philox_seed": 6, "philox_offset": 7}  # fmt: skip
_WITH_LOGSUMEXP = {"compute_log_sumexp": _constant(True)}

SAVED: dict[str, Saved] = {
    "max_pool2d_with_indices_backward": Saved("max_pool2d_with_indices", {"indices": 1}, {}),
    "max_pool3d_with_indices_backward": Saved("max_pool3d_with_indices", {"indices": 1}, {}),
    "adaptive_max_pool2d_backward": Saved(
        "adaptive_max_pool2d", {"indices": 1},
        {"output_size": lambda values: list(values["grad_output"].shape[-2:])},
    ),
    "_scaled_dot_product_flash_attention_backward": Saved(
        "_scaled_dot_product_flash_attention", _SEEDS, {}
    ),
    "_scaled_dot_product_cudnn_attention_backward": Saved(
        "_scaled_dot_product_cudnn_attention", _SEEDS, _WITH_LOGSUMEXP
    ),
    "_scaled_dot_product_efficient_attention_backward": Saved(
        "_scaled_dot_product_efficient_attention",
        {"out": 0, "logsumexp": 1, "philox_seed": 2, "philox_offset": 3}, _WITH_LOGSUMEXP,
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward": Saved(
        "_scaled_dot_product_flash_attention_for_cpu", {"out": 0, "logsumexp": 1}, {}
    ),
    "_flash_attention_backward": Saved(
        "_flash_attention_forward",
        {"out": 0, "logsumexp": 1, "rng_state": 2, "unused": 3},
        {"return_debug_mask": _constant(False)},
    ),
    "_efficient_attention_backward": Saved(
        "_efficient_attention_forward",
        {"out": 0, "logsumexp": 1, "philox_seed": 2, "philox_offset": 3}, _WITH_LOGSUMEXP,
    ),
    # Its reserved space is opaque, and under fake tensors recorded as empty.
    "cudnn_batch_norm_backward": Saved(
        "cudnn_batch_norm",
        {"save_mean": 1, "save_var": 2, "reserveSpace": 3},
        {
            "bias": lambda values: values["weight"],
            "running_mean": _constant(None),
            "running_var": _constant(None),
            "training": _constant(True),
            "exponential_average_factor": _constant(0.0),
        },
    ),
    "_cudnn_rnn_backward": Saved("_cudnn_rnn", {"output": 0, "reserve": 3}, {}),
}  # fmt: skip


def run_forward(
    saved: Saved, call: Call, arguments: Mapping[str, Argument], values: Mapping[str, Any]
) -> dict[str, Any]:
    """What the forward pass of a backward pass returns for its other arguments, by name."""
    forward = getattr(torch.ops.aten, saved.forward).default
    schema: Any = forward._schema
    args, kwargs = [], {}
    for argument in schema.arguments:
        if argument.name in saved.given:
            value = saved.given[argument.name](values)
        elif argument.name in values:
            value = values[argument.name]
        else:
            value = argument.default_value
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    try:
        returned = forward(*args, **kwargs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise CannotReplay(
            f"{call.name}: its forward pass does not run here: {first_line(error)}"
        ) from None
    return {
        name: _fit(returned[place], arguments[name])
        for name, place in saved.outputs.items()
        if isinstance(arguments.get(name), TensorSpec)
    }


def _fit(tensor: Tensor | None, wanted: Argument) -> Tensor | None:
    """The tensor with the recorded strides; as it is where its shape is the forward's own affair.

    Under fake tensors, seeds and reserved space are recorded with other shapes than they have.
    """
    assert isinstance(wanted, TensorSpec)
    if tensor is None or tuple(tensor.shape) != wanted.shape or tensor.stride() == wanted.stride:
        return tensor
    fitted = torch.empty_strided(
        wanted.shape, wanted.stride, dtype=tensor.dtype, device=tensor.device
    )
    writable(fitted).copy_(writable(tensor.expand_as(fitted)))
    return fitted
