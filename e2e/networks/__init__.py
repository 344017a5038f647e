"""Networks to train, by name: torchvision's, CIFAR's, a GPT, timm's, transformers', or the user's.

To add one, put an entry into `CIFAR` (cifar.py) or `GPTS` (gpt.py); a new kind goes into `_GROUPS`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from functools import partial

from torch import nn
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from e2e.networks.cifar import CIFAR, WideBlock, cifar_network
from e2e.networks.gpt import GPTS, gpt_network
from e2e.networks.hub import hub_network
from e2e.networks.losses import user_loss
from e2e.networks.network import Network, never
from e2e.networks.own import own_network
from e2e.networks.torchvision_nets import (
    is_other_torchvision,
    torchvision_names,
    torchvision_network,
)
from kernels.error_words import suggest
from microbench.errors import UserError
from microbench.network.hub import is_hub
from microbench.network.networks import silent

__all__ = ["Network", "find", "names"]

Maker = Callable[[str, tuple[int, ...] | None, int | None], Network]


def names() -> dict[str, list[str]]:
    """The names of the networks that need no prefix, by the group's title."""
    return {title: list(known()) for title, (known, _) in _GROUPS.items()}


def find(
    name: str,
    *,
    input: tuple[int, ...] | None = None,
    classes: int | None = None,
    loss: str | None = None,
) -> Network:
    """The network of this name, in any case and with "-" or "_"; or that of "timm:NAME",
    "hf:path/to/config.json" or "module:function".

    "NAME@dropout=0.3" is the network with this dropout, where it has any (`WideBlock` can).

    `input` is the shape of one sample, (3, H, W) or (T,), `classes` the number of the data's
    classes, `loss` the user's "module:function", called as loss(output, target): None is the
    network's own of each. UserError for an unknown name, with near ones, and for an input, loss or
    function that does not do.
    """
    plain, share = dropout_of(name)
    if share is not None:
        network = find(plain, input=input, classes=classes, loss=loss)
        return with_dropout(network, share)
    if is_hub(name):
        network = hub_network(name, input, classes)
    else:
        network = own_network(name, input, classes) if ":" in name else _named(name, input, classes)
    if loss is None:
        return network
    return dataclasses.replace(network, loss=user_loss(loss), stands_in=never)


# Each group's title, its names, and what makes a Network of one of them.
_GROUPS: dict[str, tuple[Callable[[], Iterable[str]], Maker]] = {
    "ImageNet, from torchvision": (torchvision_names, torchvision_network),
    "CIFAR, 3x32x32": (CIFAR.keys, cifar_network),
    "Text, tokens": (GPTS.keys, gpt_network),
}


def _named(name: str, input: tuple[int, ...] | None, classes: int | None) -> Network:
    others: list[str] = []
    for known, make in reversed(_GROUPS.values()):  # torchvision takes seconds to load
        spelled = {_spelling(one): one for one in known()}
        if _spelling(name) in spelled:
            return make(spelled[_spelling(name)], input, classes)
        others = [*known(), *others]
    if is_other_torchvision(name):
        raise UserError(
            f"torchvision's {name} is not a classification network; "
            "to train it, give your own module:function that builds it"
        )
    near = suggest(name.lower(), others)
    if not near or name.endswith(".py"):
        own = f"{name.removesuffix('.py').replace('/', '.')}:build"
        near = f"; `halfway list` names them; your own is module:function, for example {own}"
    raise UserError(f"no network {name!r}{near}")


def _spelling(name: str) -> str:
    return name.lower().replace("-", "_")


# ---------------------------------------------------------------- dropout


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
