"""Networks that the user names: "timm:NAME", "hf:path/config.json", "module:function"."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from e2e.networks.losses import DefaultLoss, count_right, first_token_loss, next_token_loss
from e2e.networks.network import Network, check_input
from e2e.networks.table import TOKEN_TRAINING, facts_of, image_input, trained_as, written
from microbench.errors import UserError
from microbench.network import networks

# Both make a network with random weights; `input` is the shape of one sample, (3, H, W) or (T,),
# None the network's own. UserError for a missing package, an unknown name (with near ones), a file
# that is no configuration, or an input that the network does not take.


def timm_network(name: str, input: tuple[int, ...] | None, classes: int | None) -> Network:
    """The network that timm has under this name."""
    full_name, usual = f"{networks.TIMM}:{name}", networks.timm_image(name)
    shape = image_input(full_name, input, usual[1]) if input else usual
    build = partial(networks.build_timm, name, shape, classes or networks.CLASSES)
    check_input(full_name, build, shape)
    facts = facts_of(full_name, shape)
    trained = trained_as(name, facts.batch)
    return Network(
        **vars(replace(facts, classes=classes or networks.CLASSES, **trained)), build=build
    )


def text_network(place: str, input: tuple[int, ...] | None, classes: int | None) -> Network:
    """The network of a configuration of transformers: a file, or the folder of config.json."""
    name, config = networks.text_config(place)
    shape, most = input or (networks.usual_tokens(config),), networks.most_tokens(config)
    if len(shape) != 1 or shape[0] < 1:
        raise UserError(f"{name} takes tokens: --input 128, not {written(shape)}")
    if most is not None and shape[0] > most:
        raise UserError(f"{name} takes at most {most} tokens: not --input {shape[0]}")
    build = partial(networks.build_text, config, name)
    check_input(name, build, shape, torch.int64)
    facts = replace(facts_of(name, shape), **TOKEN_TRAINING, tokens=config.vocab_size)
    loss = next_token_loss if networks.is_causal(config) else first_token_loss
    return Network(**vars(facts), build=build, loss=loss, accuracy=None)


HUBS = {networks.TIMM: timm_network, networks.HF: text_network}

# ---------------------------------------------------------------- module:function


def own_network(name: str, input: tuple[int, ...] | None, classes: int | None) -> Network:
    """The network that the user's function `name`, "module:function", returns.

    It is called without arguments and returns an nn.Module, or (nn.Module, example input) with the
    batch as first dimension. `input` is the shape of one sample; by default the example's, else
    3x224x224. An integer example means tokens in [0, its greatest + 1). The loss is `DefaultLoss`.
    UserError, with the function's own error in one line, when any of this fails.
    """
    function = networks.find_function(name)
    # Building it here must not change the random numbers of a later build.
    with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
        module, inputs = networks.call_function(name, function)
    example = None if inputs is None else _example(f"{name}() returned", inputs)
    if reason := _untrainable(module):
        raise UserError(f"the network of {name}() has {reason}")
    if input is not None and (not input or min(input) < 1):
        raise UserError(f"--input of {name} must have sides of at least 1, not {written(input)}")
    facts = facts_of(name, input or (None if example is None else tuple(example.shape[1:])))
    if example is not None and not example.is_floating_point():
        facts = replace(facts, **TOKEN_TRAINING, tokens=int(example.max()) + 1)
    else:
        facts = replace(facts, classes=classes)

    def build() -> nn.Module:
        return networks.call_function(name, function)[0].float().cpu().train()

    loss = DefaultLoss(name, facts.tokens or facts.classes)
    return Network(
        **vars(facts), build=build, loss=loss, accuracy=None if facts.tokens else count_right
    )


def _example(returned: str, inputs: tuple[object, ...]) -> Tensor:
    """The one example input: floating-point, or tokens from 0."""
    if len(inputs) != 1:
        raise UserError(
            f"{returned} {len(inputs)} example inputs; training feeds one tensor: "
            "wrap the module in one that takes it"
        )
    (example,) = inputs
    if not isinstance(example, Tensor):
        raise UserError(
            f"{returned} {networks.kind_of(example)} as its example input, not a tensor"
        )
    if example.dim() < 2 or example.numel() == 0:
        raise UserError(
            f"{returned} an example input of shape {list(example.shape)}; "
            "it must be a batch of samples"
        )
    if example.is_floating_point():
        return example
    if example.dtype not in (torch.int64, torch.int32) or int(example.min()) < 0:
        kind = str(example.dtype).removeprefix("torch.")
        raise UserError(
            f"{returned} an example input of {kind}, at least {example.min().item()}; "
            "it must be floating-point, or tokens (int64 from 0)"
        )
    return example


def _untrainable(module: nn.Module) -> str | None:
    weights = list(module.parameters())
    if any(is_lazy(weight) for weight in weights):
        return "lazy weights; call it once on its example input before returning it"
    if any(weight.is_meta for weight in weights):
        return "weights on the meta device; build it on the CPU"
    if not any(weight.requires_grad for weight in weights):
        return "no weight that requires a gradient: there is nothing to train"
    return None
