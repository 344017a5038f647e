"""torchvision's classification networks, by name, without trained weights."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from e2e.networks.losses import classification_loss, count_right
from e2e.networks.network import Network
from e2e.networks.table import NetworkFacts
from kernels.error_words import one_line
from microbench.errors import UserError
from microbench.network.networks import (
    SIZE_ARGUMENTS,
    build_torchvision,
    torchvision_models,
)

# Weight of an auxiliary classifier's loss beside the main one.
AUXILIARY_WEIGHTS: dict[str, float] = {
    # Szegedy et al., "Going Deeper with Convolutions", 2015, section 5: each of the two by 0.3
    "googlenet": 0.3,
    # the weight of "AuxLogits" in TF-Slim's train_image_classifier.py, by the network's authors'
    # colleagues, and in PyTorch's tutorial on fine-tuning; the paper gives none
    "inception_v3": 0.4,
}
# Said, because torchvision warns when left to choose. These are the published truncated normals.
OPTIONS: dict[str, dict[str, Any]] = {
    "googlenet": {"init_weights": True},
    "inception_v3": {"init_weights": True},
}


def torchvision_network(facts: NetworkFacts) -> Network:
    """A classification network of torchvision's."""
    assert facts.classes is not None
    weight = AUXILIARY_WEIGHTS.get(facts.name, 0.0)
    return Network(
        **vars(facts),
        build=partial(_build, facts.name, facts.input[1:], facts.classes),
        loss=partial(classification_loss, auxiliary_weight=weight),
        accuracy=count_right,
    )


def _build(name: str, size: tuple[int, ...], classes: int) -> nn.Module:
    height, width = size
    builder = torchvision_models().get_model_builder(name)
    if height != width and builder.__module__ in SIZE_ARGUMENTS:
        raise UserError(f"{name} takes square images, not {height}x{width}")
    try:
        network = build_torchvision(name, height, num_classes=classes, **OPTIONS.get(name, {}))
    except (AssertionError, ValueError) as error:
        raise UserError(
            f"{name} cannot be built for {height}x{width} px: {one_line(error)}"
        ) from None
    return network.train()
