"""How networks of timm and transformers are trained: "timm:NAME", "hf:path/config.json"."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from e2e.networks.losses import classification_loss, count_right, next_token_loss
from e2e.networks.network import Network, check_classes, check_input
from e2e.networks.own import TOKEN_TRAINING
from e2e.networks.table import facts_of, image_input, trained_as, written
from microbench.errors import UserError
from microbench.network.networks import (
    CLASSES,
    HF,
    TIMM,
    build_text,
    build_timm,
    is_causal,
    most_tokens,
    text_config,
    timm_image,
    usual_tokens,
)


def hub_network(name: str, input: tuple[int, ...] | None, classes: int | None) -> Network:
    """The network of "timm:NAME" or "hf:path/to/config.json", with random weights.

    `input` is the shape of one sample, (3, H, W) or (T,); None is the network's own. UserError for
    a missing package, an unknown name (with near ones), a file that is no configuration, or an
    input that the network does not take.
    """
    kind, _, rest = name.partition(":")
    return _MAKERS[kind](rest, input, classes)


def _timm_network(name: str, input: tuple[int, ...] | None, classes: int | None) -> Network:
    asked = f"{TIMM}:{name}"
    usual = timm_image(name)
    shape = image_input(asked, input, usual[1]) if input else usual
    check_classes(asked, classes)
    classes = classes or CLASSES
    build = partial(build_timm, name, shape, classes)
    check_input(asked, build, shape)
    facts = facts_of(asked, shape)
    facts = replace(facts, classes=classes, **trained_as(name, facts.batch))
    return Network(
        **vars(facts), build=build, loss=classification_loss, accuracy=count_right
    )  # fmt: skip


def _hf_network(place: str, input: tuple[int, ...] | None, classes: int | None) -> Network:
    name, config = text_config(place)
    shape = _sequence(name, config, input)
    build = partial(build_text, config, name)
    check_input(name, build, shape, torch.int64)
    facts = replace(facts_of(name, shape), **TOKEN_TRAINING, tokens=config.vocab_size)
    loss = next_token_loss if is_causal(config) else class_of_first_token_loss
    return Network(**vars(facts), build=build, loss=loss)


def class_of_first_token_loss(output: Any, target: Tensor | None, label_smoothing: float) -> Tensor:
    """Cross-entropy of logits [batch, labels], where the class of tokens [batch, T] is their first
    token modulo the number of labels: a scalar in float32. Data of tokens have no other classes.
    """
    assert target is not None, "a text classifier is trained with tokens"
    labels = target[:, 0] % output.shape[-1]
    return F.cross_entropy(output.float(), labels, label_smoothing=label_smoothing)


def _sequence(name: str, config: Any, input: tuple[int, ...] | None) -> tuple[int]:
    """The shape of a sample: (T,)."""
    if input is None:
        return (usual_tokens(config),)
    if len(input) != 1 or input[0] < 1:
        raise UserError(f"{name} takes tokens: --input 128, not {written(input)}")
    most = most_tokens(config)
    if most is not None and input[0] > most:
        raise UserError(f"{name} takes at most {most} tokens: not --input {input[0]}")
    return (input[0],)


_MAKERS: dict[str, Callable[[str, tuple[int, ...] | None, int | None], Network]] = {
    TIMM: _timm_network,
    HF: _hf_network,
}
