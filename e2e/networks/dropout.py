"""Sets the dropout of a network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from e2e.networks.cifar import WideBlock
from e2e.networks.network import Network
from e2e.networks.table import DROPOUT
from microbench.errors import UserError
from microbench.network.networks import BuildMode, silent


def with_dropout(network: Network, share: float) -> Network:
    """The network with this dropout in all its layers of that kind. UserError if it has none."""
    if not _set(_built(network), share):
        raise UserError(f"{network.name} has no dropout to set; leave out {DROPOUT}{share:g}")
    return dataclasses.replace(
        network,
        name=f"{network.name}{DROPOUT}{share:g}",
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
    with silent(), torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
        try:
            with BuildMode(FakeTensorMode(allow_non_fake_inputs=True)):
                return network.build()
        except Exception:
            return network.build()
