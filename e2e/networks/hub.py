"""How networks of timm and transformers are trained: "timm:NAME", "hf:path/config.json"."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from e2e.networks.losses import first_token_loss, next_token_loss
from e2e.networks.network import Network, check_input
from e2e.networks.table import TOKEN_TRAINING, facts_of, image_input, trained_as, written
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

# Both make a network with random weights; `input` is the shape of one sample, (3, H, W) or (T,),
# None the network's own. UserError for a missing package, an unknown name (with near ones), a file
# that is no configuration, or an input that the network does not take.


def timm_network(name: str, input: tuple[int, ...] | None, classes: int | None) -> Network:
    """The network that timm has under this name."""
    full_name, usual = f"{TIMM}:{name}", timm_image(name)
    shape = image_input(full_name, input, usual[1]) if input else usual
    build = partial(build_timm, name, shape, classes or CLASSES)
    check_input(full_name, build, shape)
    facts = facts_of(full_name, shape)
    trained = trained_as(name, facts.batch)
    return Network(**vars(replace(facts, classes=classes or CLASSES, **trained)), build=build)


def text_network(place: str, input: tuple[int, ...] | None, classes: int | None) -> Network:
    """The network of a configuration of transformers: a file, or the folder of config.json."""
    name, config = text_config(place)
    shape, most = input or (usual_tokens(config),), most_tokens(config)
    if len(shape) != 1 or shape[0] < 1:
        raise UserError(f"{name} takes tokens: --input 128, not {written(shape)}")
    if most is not None and shape[0] > most:
        raise UserError(f"{name} takes at most {most} tokens: not --input {shape[0]}")
    build = partial(build_text, config, name)
    check_input(name, build, shape, torch.int64)
    facts = replace(facts_of(name, shape), **TOKEN_TRAINING, tokens=config.vocab_size)
    loss = next_token_loss if is_causal(config) else first_token_loss
    return Network(**vars(facts), build=build, loss=loss, accuracy=None)


HUBS = {TIMM: timm_network, HF: text_network}
