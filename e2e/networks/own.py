"""A user's own network: module:function, with an optional loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from e2e.networks.losses import DefaultLoss, count_right, is_stand_in
from e2e.networks.network import Network, check_classes
from e2e.networks.table import facts_of, written
from microbench.errors import UserError
from microbench.network.networks import call_function, find_function, kind_of

TOKEN_TRAINING: dict[str, Any] = dict(optimizer="adamw", lr=3e-4, weight_decay=0.1)


def own_network(name: str, input: tuple[int, ...] | None, classes: int | None) -> Network:
    """The network that the user's function `name`, "module:function", returns.

    It is called without arguments and returns an nn.Module, or (nn.Module, example input) with the
    batch as first dimension. `input` is the shape of one sample; by default the example's, else
    3x224x224. An integer example means tokens in [0, its greatest + 1). The loss is `DefaultLoss`.
    UserError, with the function's own error in one line, when any of this fails.
    """
    function = find_function(name)
    # Building it here must not change the random numbers of a later build.
    with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
        module, example = _call(name, function)
    _check_trainable(name, module)
    tokens = _tokens(name, example)
    if input is not None and (not input or min(input) < 1):
        raise UserError(f"--input of {name} must have sides of at least 1, not {written(input)}")
    shape = input or (tuple(example.shape[1:]) if example is not None else None)
    facts = facts_of(name, shape)
    if tokens is not None:
        facts = replace(facts, **TOKEN_TRAINING, tokens=tokens)
    else:
        check_classes(name, classes)
        facts = replace(facts, classes=classes)
    return Network(
        **vars(facts),
        build=partial(_build, name, function),
        loss=DefaultLoss(name, facts.classes if tokens is None else tokens),
        accuracy=count_right if tokens is None else None,
        stands_in=is_stand_in,
    )


def _build(name: str, function: Callable[[], object]) -> nn.Module:
    module, _ = _call(name, function)
    return module.float().cpu().train()


def _call(name: str, function: Callable[[], object]) -> tuple[nn.Module, Tensor | None]:
    module, inputs = call_function(name, function)
    return module, None if inputs is None else _example(name, inputs)


def _example(name: str, inputs: tuple[object, ...]) -> Tensor:
    """The one example input."""
    if len(inputs) != 1:
        raise UserError(
            f"{name}() returned {len(inputs)} example inputs; training feeds one tensor: "
            "wrap the module in one that takes it"
        )
    (tensor,) = inputs
    if not isinstance(tensor, Tensor):
        raise UserError(f"{name}() returned {kind_of(tensor)} as its example input, not a tensor")
    if tensor.dim() < 2 or tensor.numel() == 0:
        raise UserError(
            f"{name}() returned an example input of shape {list(tensor.shape)}; "
            "it must be a batch of samples"
        )
    return tensor


def _tokens(name: str, example: Tensor | None) -> int | None:
    """The number of token ids that an example stands for; None when it is floating."""
    if example is None or example.is_floating_point():
        return None
    if example.dtype not in (torch.int64, torch.int32) or int(example.min()) < 0:
        kind = str(example.dtype).removeprefix("torch.")
        raise UserError(
            f"{name}() returned an example input of {kind}, at least {example.min().item()}; "
            "it must be floating-point, or tokens (int64 from 0)"
        )
    return int(example.max()) + 1


def _check_trainable(name: str, module: nn.Module) -> None:
    weights = list(module.parameters())
    remedy = None
    if any(is_lazy(weight) for weight in weights):
        remedy = "lazy weights; call it once on its example input before returning it"
    elif any(weight.is_meta for weight in weights):
        remedy = "weights on the meta device; build it on the CPU"
    elif not any(weight.requires_grad for weight in weights):
        remedy = "no weight that requires a gradient: there is nothing to train"
    if remedy:
        raise UserError(f"the network of {name}() has {remedy}")
