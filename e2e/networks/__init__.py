"""Networks to train, by name: torchvision's, CIFAR's, a GPT, timm's, transformers', or the user's.

`e2e.networks.table` has those with a name. What builds them needs torch, and loads when it is used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from e2e.networks.table import CIFAR, GPTS, dropout_of, facts_of
from microbench.errors import UserError

if TYPE_CHECKING:
    from e2e.networks.network import Network

__all__ = ["facts_of", "find"]


def find(
    name: str,
    *,
    input: tuple[int, ...] | None = None,
    classes: int | None = None,
    loss: str | None = None,
) -> Network:
    """The network of this name; or that of "timm:NAME", "hf:path/to/config.json" or
    "module:function".

    "NAME@dropout=0.3" is the network with this dropout, where it has any (`WideBlock` can).

    `input` is the shape of one sample, (3, H, W) or (T,), `classes` the number of the data's
    classes, `loss` the user's "module:function", called as loss(output, target): None is the
    network's own of each. UserError as of `facts_of`, and for an input, loss or function that does
    not do.
    """
    from e2e.networks.dropout import with_dropout
    from e2e.networks.hub import hub_network
    from e2e.networks.losses import user_loss
    from e2e.networks.network import never
    from e2e.networks.own import own_network
    from microbench.network.networks import is_hub

    plain, share = dropout_of(name)
    if is_hub(plain):
        network = hub_network(plain, input, classes)
    else:
        network = (own_network if ":" in plain else _named)(plain, input, classes)
    if share is not None:
        network = with_dropout(network, share)
    if loss is None:
        return network
    return replace(network, loss=user_loss(loss), stands_in=never)


def _named(name: str, input: tuple[int, ...] | None, classes: int | None) -> Network:
    from e2e.networks.cifar import cifar_network
    from e2e.networks.gpt import gpt_network
    from e2e.networks.network import check_classes, check_input
    from e2e.networks.torchvision_nets import torchvision_network

    facts = facts_of(name, input)
    if facts.name in GPTS:
        if classes is not None:
            raise UserError(
                f"{facts.name} has no classes: it predicts the next of {facts.tokens} tokens"
            )
        return gpt_network(facts)
    check_classes(facts.name, classes)
    facts = replace(facts, classes=classes or facts.classes)
    network = (cifar_network if facts.name in CIFAR else torchvision_network)(facts)
    if facts.input != facts_of(name).input:
        check_input(facts.name, network.build, facts.input)
    return network
