"""Networks that classify images: torchvision's, and those for images of CIFAR's size, 3x32x32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from e2e.networks.losses import classification_loss
from e2e.networks.network import Network, check_input
from e2e.networks.table import NetworkFacts, facts_of
from kernels.messages import one_line
from microbench.errors import UserError
from microbench.network.networks import SIZE_ARGUMENTS, build_torchvision, torchvision_models

# Channels of VGG's 13 convolutions (configuration D); "pool" halves the image.
VGG16 = [64, 64, "pool", 128, 128, "pool", 256, 256, 256, "pool", 512, 512, 512, "pool",
         512, 512, 512, "pool"]  # fmt: skip
SMALL_CNN = [32, "pool", 64, "pool", 128, "pool", 128]

# Wide residual networks: Zagoruyko & Komodakis, BMVC 2016, https://arxiv.org/abs/1605.07146.
STEM_WIDTH = 16  # channels of the first convolution, table 1 of the paper
FIRST_STRIDES = (1, 2, 2)  # of the three groups: 32x32, 16x16 and 8x8 pixels on CIFAR

# Weight of an auxiliary classifier's loss beside the main one.
AUXILIARY_WEIGHTS: dict[str, float] = {
    # Szegedy et al., "Going Deeper with Convolutions", 2015, section 5: each of the two by 0.3
    "googlenet": 0.3,
    # the weight of "AuxLogits" in TF-Slim's train_image_classifier.py, by the network's authors'
    # colleagues, and in PyTorch's tutorial on fine-tuning; the paper gives none
    "inception_v3": 0.4,
}


def image_network(facts: NetworkFacts, classes: int | None) -> Network:
    """A network of the table that classifies images. UserError for an input it does not take."""
    usual = facts_of(facts.name)
    facts = replace(facts, classes=classes or facts.classes)
    assert facts.classes is not None
    builder = BUILDERS.get(facts.name)
    loss = partial(classification_loss, auxiliary_weight=AUXILIARY_WEIGHTS.get(facts.name, 0.0))
    network = Network(
        **vars(facts),
        build=partial(builder, facts.classes) if builder else partial(_of_torchvision, facts),
        loss=loss,
    )
    if facts.input != usual.input:
        check_input(facts.name, network.build, facts.input)
    return network


def _of_torchvision(facts: NetworkFacts) -> nn.Module:
    _, height, width = facts.input
    if height != width and (
        torchvision_models().get_model_builder(facts.name).__module__ in SIZE_ARGUMENTS
    ):
        raise UserError(f"{facts.name} takes square images, not {height}x{width}")
    options: dict[str, Any] = {"num_classes": facts.classes}
    if facts.name in AUXILIARY_WEIGHTS:
        # torchvision warns where it has to choose; these are the published truncated normals.
        options["init_weights"] = True
    try:
        return build_torchvision(facts.name, height, **options).train()
    except (AssertionError, ValueError) as error:
        raise UserError(
            f"{facts.name} cannot be built for {height}x{width} px: {one_line(error)}"
        ) from None


# ---------------------------------------------------------------- CIFAR


def resnet(torchvision_name: str, classes: int) -> nn.Module:
    """torchvision's ResNet with a 3x3 stem of stride 1 and no max-pool, for images of 32x32.

    Images [N, 3, H, W] to logits [N, classes]. He et al. (2016, section 4.2) begin so on CIFAR: the
    ImageNet stem would reduce 32x32 to 8x8.
    """
    network: Any = build_torchvision(torchvision_name, 32, num_classes=classes)
    network.conv1 = _conv3x3(3, 64)
    network.maxpool = nn.Identity()
    return network


def plain_cnn(layers: list[int | str], classes: int) -> nn.Module:
    """3x3 convolutions, each with batch-norm and ReLU, then the mean and one linear classifier.

    `layers` are the convolutions' channels, or "pool" for a 2x2 max-pool.
    """
    made: list[nn.Module] = []
    width = 3
    for layer in layers:
        if isinstance(layer, str):
            made.append(nn.MaxPool2d(2))
        else:
            made += [_conv3x3(width, layer), nn.BatchNorm2d(layer), nn.ReLU(inplace=True)]
            width = layer
    return nn.Sequential(*made, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def _conv3x3(width_in: int, width_out: int) -> nn.Conv2d:
    conv = nn.Conv2d(width_in, width_out, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


class WideBlock(nn.Module):
    """One block B(3,3): batch-norm, ReLU, 3x3, batch-norm, ReLU, 3x3, added to the shortcut.

    [N, width_in, H, W] to [N, width_out, H/stride, W/stride]. Where the shape changes, the
    shortcut is a 1x1 convolution of the activated input, as in the authors' code. Dropout is of the
    input of the second convolution, where the paper has it: none unless `e2e.networks` sets it.
    """

    def __init__(self, width_in: int, width_out: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(width_in)
        self.conv1 = nn.Conv2d(width_in, width_out, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width_out)
        self.dropout = nn.Dropout(0.0)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, padding=1, bias=False)
        self.shortcut: nn.Module | None = None
        if width_in != width_out or stride != 1:
            self.shortcut = nn.Conv2d(width_in, width_out, 1, stride, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """[N, width_in, H, W] to [N, width_out, H/stride, W/stride]."""
        activated = F.relu(self.norm1(images))
        kept = images if self.shortcut is None else self.shortcut(activated)
        inner = F.relu(self.norm2(self.conv1(activated)))
        if self.dropout.p:
            inner = self.dropout(inner)
        return kept + self.conv2(inner)


class WideResNet(nn.Module):
    """WRN-depth-widening of the paper: images [N, 3, H, W] to logits [N, classes].

    `depth` is 6n + 4 for n blocks in each of three groups, `widening` the paper's k.
    """

    def __init__(self, depth: int, widening: int, classes: int) -> None:
        super().__init__()
        assert depth % 6 == 4, f"depth {depth} is not 6n + 4"
        self.stem = nn.Conv2d(3, STEM_WIDTH, 3, padding=1, bias=False)
        width = STEM_WIDTH
        blocks: list[nn.Module] = []
        for group, first_stride in enumerate(FIRST_STRIDES):
            group_width = STEM_WIDTH * widening * 2**group
            for block in range((depth - 4) // 6):
                blocks.append(WideBlock(width, group_width, first_stride if block == 0 else 1))
                width = group_width
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(width)
        self.classifier = nn.Linear(width, classes)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):  # "MSR", by fan-out, as in the authors' code
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] to logits [N, classes]."""
        features = F.relu(self.norm(self.blocks(self.stem(images))))
        pooled = F.adaptive_avg_pool2d(features, 1).flatten(1)
        return self.classifier(pooled)


# What builds the networks of the table CIFAR, called with the number of classes.
BUILDERS: dict[str, Callable[[int], nn.Module]] = {
    "cnn-cifar": partial(plain_cnn, SMALL_CNN),
    "resnet18-cifar": partial(resnet, "resnet18"),
    "resnet34-cifar": partial(resnet, "resnet34"),
    "resnet50-cifar": partial(resnet, "resnet50"),
    "vgg16-cifar": partial(plain_cnn, VGG16),
    "wrn-16-4": partial(WideResNet, 16, 4),
    "wrn-28-10": partial(WideResNet, 28, 10),
}
