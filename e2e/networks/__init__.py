"""Networks to train, by name: torchvision's, CIFAR's, a GPT, timm's, transformers', or the user's.

`e2e.networks.table` has those with a name. What builds them needs torch, and loads when it is used.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from e2e.networks.table import GPTS, dropout_of, facts_of
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
    from e2e.networks.gpt import gpt_network
    from e2e.networks.images import image_network
    from e2e.networks.losses import UserLoss
    from e2e.networks.network import with_dropout
    from e2e.networks.own import HUBS, own_network

    plain, share = dropout_of(name)
    if classes is not None and classes < 1:
        raise UserError(f"{plain} needs at least 1 class, not {classes}")
    kind, colon, rest = plain.partition(":")
    if colon:
        make = HUBS.get(kind)
        network = make(rest, input, classes) if make else own_network(plain, input, classes)
    else:
        facts = facts_of(plain, input)
        network = (
            gpt_network(facts, classes) if facts.name in GPTS else image_network(facts, classes)
        )
    if share is not None:
        network = with_dropout(network, share)
    return network if loss is None else replace(network, loss=UserLoss(loss))
