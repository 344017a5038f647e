"""A network with another dropout than its usual one: NAME@dropout=0.3."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import partial

from torch import nn
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from e2e.networks.cifar import WideBlock
from e2e.networks.network import Network
from microbench.errors import UserError
from microbench.network.networks import silent

OPTION = "@dropout="


def dropout_of(name: str) -> tuple[str, float | None]:
    """(the network's name, the dropout that is asked for), None for its usual one.

    UserError for a dropout that is not from 0 to below 1.
    """
    plain, option, share = name.partition(OPTION)
    if not option:
        return name, None
    if not re.fullmatch(r"0?\.\d{1,6}|0", share):
        raise UserError(
            f"{name}: dropout is a number from 0 to below 1, such as {plain}@dropout=0.3"
        )
    return plain, float(share)


def with_dropout(network: Network, share: float) -> Network:
    """The network with this dropout in all its layers of that kind. UserError if it has none."""
    if not _set(_built(network), share):
        raise UserError(f"{network.name} has no dropout to set; leave out {OPTION}{share:g}")
    return dataclasses.replace(
        network,
        name=f"{network.name}{OPTION}{share:g}",
        build=partial(_build, network.build, share),
    )


def _build(build: Callable[[], nn.Module], share: float) -> nn.Module:
    module = build()
    _set(module, share)
    return module


def _set(module: nn.Module, share: float) -> int:
    """Set all dropout layers, and the blocks that may have one; returns how many there are."""
    layers = [one for one in module.modules() if isinstance(one, (_DropoutNd, WideBlock))]
    for layer in layers:
        if isinstance(layer, WideBlock):
            layer.dropout = share
        else:
            layer.p = share
    return len(layers)


def _built(network: Network) -> nn.Module:
    """The network without memory: only its layers count."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from microbench.network.networks import BuildMode

    with silent(), torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
        try:
            with BuildMode(FakeTensorMode(allow_non_fake_inputs=True)):
                return network.build()
        except Exception:
            return network.build()
