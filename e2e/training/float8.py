"""Linear layers that multiply in FP8: forward, and both products of backward, by torchao.

Inputs, weights and gradients are cast with scales from their largest values at that moment, one a
tensor ("tensorwise") or one a row of a product ("rowwise"): torchao's recipes of these names.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from torch import nn

MULTIPLE = 16  # of sizes that the card's FP8 products take


class NothingToConvert(Exception):
    """A network without a linear layer of sizes that FP8 takes."""


def convert(module: nn.Module, scaling: str, batch: int) -> tuple[nn.Module, tuple[int, int]]:
    """(the network with its linear layers in FP8, (how many of them, of how many)).

    Left as they are: layers whose sizes are no multiples of 16, and subclasses of nn.Linear, whose
    weights others may read (attention's in torch.nn.MultiheadAttention). NothingToConvert where no
    layer is left. Backward sums over the rows of a batch: unless `batch` is a multiple of 16, they
    are padded to one.
    """
    # torch warns of what torchao registers when it is imported
    logging.getLogger("torch.utils._pytree").addFilter(
        lambda record: "register_constant" not in record.getMessage()
    )
    from torchao.float8 import (  # pyright: ignore[reportMissingTypeStubs]
        Float8LinearConfig,
        convert_to_float8_training,
    )

    linear = [child for child in module.modules() if isinstance(child, nn.Linear)]
    chosen = [child for child in linear if _fits(child)]
    if not chosen:
        raise NothingToConvert(
            f"FP8 is for linear layers with sizes that are multiples of {MULTIPLE}: it has none"
        )
    config = Float8LinearConfig.from_recipe_name(scaling)
    converted = convert_to_float8_training(
        module,
        config=replace(config, pad_inner_dim=batch % MULTIPLE > 0),
        module_filter_fn=lambda child, _: _fits(child),
    )
    return converted, (len(chosen), len(linear))


def _fits(layer: nn.Module) -> bool:
    return (
        type(layer) is nn.Linear
        and layer.in_features % MULTIPLE == 0
        and layer.out_features % MULTIPLE == 0
    )
