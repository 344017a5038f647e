"""torchvision's classification networks, by name, without trained weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from torch import nn

from e2e.networks.losses import classification_loss, count_right
from e2e.networks.network import Network, check_input, class_count, image_input
from kernels.error_words import one_line
from microbench.errors import UserError
from microbench.network.networks import (
    SIZE_ARGUMENTS,
    build_torchvision,
    torchvision_models,
    usual_image,
)

CLASSES = 1000
LR_BATCH = 256  # the batch that the learning rates of FAMILIES are for
BATCH = 256
CPU_BATCH, LARGE_CPU_BATCH = 4, 2  # large: networks in BATCHES


@dataclass(frozen=True)
class Training:
    """How a family is trained: `lr` is for a batch of LR_BATCH images."""

    optimizer: str
    lr: float
    weight_decay: float


USUAL = Training("sgd", 0.1, 1e-4)
# By how the names begin; the first that fits. Learning rates of torchvision's own recipes
# (github.com/pytorch/vision, references/classification), scaled to LR_BATCH.
FAMILIES: dict[str, Training] = {
    "alexnet": Training("sgd", 0.01, 1e-4),
    "vgg": Training("sgd", 0.01, 1e-4),
    "squeezenet": Training("sgd", 0.01, 2e-4),
    "mobilenet_v2": Training("sgd", 0.045, 4e-5),
    "shufflenet": Training("sgd", 0.125, 4e-5),
    "regnet": Training("sgd", 0.2, 5e-5),
    "efficientnet_v2": Training("sgd", 0.125, 2e-5),
    "vit": Training("adamw", 1.9e-4, 0.3),
    "swin": Training("adamw", 2.5e-4, 0.05),
    "convnext": Training("adamw", 2.5e-4, 0.05),
    "maxvit": Training("adamw", 1.9e-4, 0.05),
}

# Smaller than BATCH so that what the backward pass keeps stays below 60 GiB in float32.
SMALLER: dict[int, str] = {
    128: """
        convnext_base convnext_small densenet161 densenet201 efficientnet_b3
        efficientnet_v2_s maxvit_t resnext101_32x8d resnext101_64x4d swin_b swin_s swin_v2_s
        swin_v2_t vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn vit_b_16
        vit_b_32
    """,
    64: """
        convnext_large efficientnet_b4 regnet_x_32gf regnet_y_32gf swin_v2_b vit_l_16
        vit_l_32
    """,
    32: "efficientnet_b5 efficientnet_v2_m regnet_y_128gf",
    16: "efficientnet_b6 efficientnet_b7 efficientnet_v2_l",
    8: "vit_h_14",
}
BATCHES = {name: batch for batch, names in SMALLER.items() for name in names.split()}

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


@cache
def torchvision_names() -> tuple[str, ...]:
    """The names of torchvision's classification networks, sorted."""
    models = torchvision_models()
    return tuple(models.list_models(module=models))


def is_other_torchvision(name: str) -> bool:
    """Whether torchvision has this network, but not for classification."""
    every = torchvision_models().list_models()
    return name.lower() in every and name.lower() not in torchvision_names()


def torchvision_network(name: str, input: tuple[int, ...] | None, classes: int | None) -> Network:
    """The network of this name, one of `torchvision_names()`; `input` is (3, H, W), None its usual
    size.

    UserError for an input that it cannot take, or fewer than 1 class.
    """
    classes = class_count(name, classes, CLASSES)
    usual = usual_image(name)
    shape = image_input(name, input, usual)
    build = partial(_build, name, shape[1:], classes)
    if shape != (3, usual, usual):
        check_input(name, build, shape)
    training = next((FAMILIES[start] for start in FAMILIES if name.startswith(start)), USUAL)
    batch = BATCHES.get(name, BATCH)
    return Network(
        name=name,
        build=build,
        input=shape,
        classes=classes,
        loss=partial(classification_loss, auxiliary_weight=AUXILIARY_WEIGHTS.get(name, 0.0)),
        accuracy=count_right,
        optimizer=training.optimizer,
        lr=training.lr * batch / LR_BATCH,
        weight_decay=training.weight_decay,
        batch=batch,
        cpu_batch=LARGE_CPU_BATCH if name in BATCHES else CPU_BATCH,
    )


def _build(name: str, size: tuple[int, int], classes: int) -> nn.Module:
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
