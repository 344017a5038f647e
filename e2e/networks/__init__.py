"""Networks to train, by name: torchvision's, CIFAR's, a GPT, timm's, transformers', or the user's.

To add one, put an entry into `CIFAR` (cifar.py) or `GPTS` (gpt.py); a new kind goes into `_GROUPS`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from e2e.networks.cifar import CIFAR, cifar_network
from e2e.networks.dropout import dropout_of, with_dropout
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
