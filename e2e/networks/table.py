"""The networks that have a name: how each is usually trained. Nothing here needs torch.

To add one, put a row into `GROUPS`, and what builds it into images.py or gpt.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from kernels.messages import suggest
from microbench.errors import UserError


@dataclass(frozen=True, kw_only=True)
class NetworkFacts:
    """What a run must know of a network to plan its training.

    `input` is the shape of one sample, without the batch. `tokens` is the number of ids of an int64
    input, None for a float32 input; `classes` that of the target, None when the output decides.
    `batch` and `cpu_batch` are default batch sizes in samples; `lr` suits `batch`.
    """

    name: str
    input: tuple[int, ...]
    optimizer: str
    lr: float
    weight_decay: float
    batch: int
    cpu_batch: int
    tokens: int | None = None
    classes: int | None = None

    @property
    def takes_images(self) -> bool:
        """Whether a sample is an image: [channels, height, width]."""
        return self.tokens is None and len(self.input) == 3

    @property
    def unit(self) -> str:
        """What a sample has `units_per_sample` of: "img", "tok" or "sample"."""
        if self.takes_images:
            return "img"
        return "sample" if self.tokens is None or len(self.input) > 1 else "tok"

    @property
    def units_per_sample(self) -> int:
        """1, but for a sequence of tokens."""
        return self.input[0] if self.unit == "tok" else 1


# ---------------------------------------------------------------- torchvision's


LR_BATCH = 256  # the batch that the learning rates of FAMILIES are for
# Families that are not trained by SGD at 0.1 with a weight decay of 1e-4, by how the names begin:
# (optimizer, learning rate for a batch of LR_BATCH, weight decay). Learning rates of torchvision's
# own recipes (github.com/pytorch/vision, references/classification), scaled to LR_BATCH.
USUAL = ("sgd", 0.1, 1e-4)
FAMILIES: dict[str, tuple[str, float, float]] = {
    "alexnet": ("sgd", 0.01, 1e-4),
    "vgg": ("sgd", 0.01, 1e-4),
    "squeezenet": ("sgd", 0.01, 2e-4),
    "mobilenet_v2": ("sgd", 0.045, 4e-5),
    "shufflenet": ("sgd", 0.125, 4e-5),
    "regnet": ("sgd", 0.2, 5e-5),
    "efficientnet_v2": ("sgd", 0.125, 2e-5),
    "vit": ("adamw", 1.9e-4, 0.3),
    "swin": ("adamw", 2.5e-4, 0.05),
    "convnext": ("adamw", 2.5e-4, 0.05),
    "maxvit": ("adamw", 1.9e-4, 0.05),
}
# torchvision's classification networks by batch: 256, or less so that what the backward pass keeps
# stays below 60 GiB in float32.
BATCHES: dict[int, str] = {
    256: """
        alexnet convnext_tiny densenet121 densenet169 efficientnet_b0 efficientnet_b1
        efficientnet_b2 googlenet inception_v3 mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3
        mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf regnet_x_1_6gf
        regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_16gf regnet_y_1_6gf
        regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18
        resnet34 resnet50 resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0
        shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_t
        wide_resnet101_2 wide_resnet50_2
    """,
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
# The sides of images, in pixels, that are not IMAGE.
IMAGE = 224
SIDES: dict[int, str] = {
    240: "efficientnet_b1", 256: "swin_v2_b swin_v2_s swin_v2_t", 288: "efficientnet_b2",
    299: "inception_v3", 300: "efficientnet_b3", 380: "efficientnet_b4",
    384: "efficientnet_v2_s regnet_y_128gf", 456: "efficientnet_b5",
    480: "efficientnet_v2_l efficientnet_v2_m", 518: "vit_h_14", 528: "efficientnet_b6",
    600: "efficientnet_b7",
}  # fmt: skip


def trained_as(name: str, batch: int) -> dict[str, Any]:
    """How a network of this name is trained with a batch: optimizer, lr and weight decay."""
    settings = next((FAMILIES[start] for start in FAMILIES if name.startswith(start)), USUAL)
    optimizer, lr, weight_decay = settings
    return dict(optimizer=optimizer, lr=lr * batch / LR_BATCH, weight_decay=weight_decay)


def _torchvision(name: str, batch: int) -> NetworkFacts:
    side = next((side for side, names in SIDES.items() if name in names.split()), IMAGE)
    return NetworkFacts(
        name=name, input=(3, side, side), classes=1000, batch=batch,
        cpu_batch=4 if batch == max(BATCHES) else 2, **trained_as(name, batch),
    )  # fmt: skip


# ---------------------------------------------------------------- ours


def _cifar(name: str, *, lr: float = 0.1, cpu_batch: int = 32) -> NetworkFacts:
    """For images of CIFAR's size, trained by SGD."""
    return NetworkFacts(
        name=name, input=(3, 32, 32), classes=10, optimizer="sgd", lr=lr, weight_decay=5e-4,
        batch=128, cpu_batch=cpu_batch,
    )  # fmt: skip


TOKEN_TRAINING: dict[str, Any] = dict(optimizer="adamw", lr=3e-4, weight_decay=0.1)


def _gpt(name: str, *, lr: float, batch: int = 16) -> NetworkFacts:
    """A decoder of the shape of GPT-2's; fewer tokens than its embedding has rows are real ids."""
    facts = NetworkFacts(
        name=name, input=(1024,), tokens=50257, batch=batch, cpu_batch=1, **TOKEN_TRAINING
    )  # fmt: skip
    return replace(facts, lr=lr)


_ROWS: dict[str, Iterable[NetworkFacts]] = {
    "ImageNet, from torchvision": (
        _torchvision(name, batch)
        for name, batch in sorted((n, b) for b, names in BATCHES.items() for n in names.split())
    ),
    "CIFAR, 3x32x32": (
        # 0.24 M parameters and 13 M multiply-adds an image: for tests, and for a laptop.
        _cifar("cnn-cifar", cpu_batch=128),
        _cifar("resnet18-cifar"),
        _cifar("resnet34-cifar", cpu_batch=16),
        _cifar("resnet50-cifar", cpu_batch=16),
        _cifar("vgg16-cifar", lr=0.05),
        _cifar("wrn-16-4"),
        _cifar("wrn-28-10", cpu_batch=4),
    ),
    "Text, tokens": (
        _gpt("gpt", lr=6e-4),
        _gpt("gpt-medium", lr=3e-4),
        _gpt("gpt-xl", lr=2e-4, batch=8),
        # For tests and for trying things on a laptop.
        replace(_gpt("gpt-tiny", lr=3e-3), tokens=256, input=(64,), cpu_batch=16),
    ),
}
GROUPS = {title: {row.name: row for row in rows} for title, rows in _ROWS.items()}
GPTS = GROUPS["Text, tokens"]


# ---------------------------------------------------------------- by a user's words


DROPOUT = "@dropout="
UNKNOWN_BATCH, UNKNOWN_CPU_BATCH = 64, 4


def facts_of(name: str, input: tuple[int, ...] | None = None) -> NetworkFacts:
    """What is known of a network before it is built: all, where the table has its name.

    The name is in any case and with "-" or "_". Of "timm:NAME", "hf:FILE" and "module:function" it
    is what holds of most, until one is built. `input` is the shape of a sample, None the usual one.
    UserError for an unknown name, with near ones, and an input that does not do.
    """
    plain, share = dropout_of(name)
    if ":" in name:
        return NetworkFacts(
            name=name, input=input or (3, IMAGE, IMAGE), optimizer="sgd", lr=0.01,
            weight_decay=1e-4, batch=UNKNOWN_BATCH, cpu_batch=UNKNOWN_CPU_BATCH,
        )  # fmt: skip
    known = {_spelling(key): facts for rows in GROUPS.values() for key, facts in rows.items()}
    facts = known.get(_spelling(plain))
    if facts is None:
        raise UserError(_unknown(plain))
    if input is not None and facts.tokens is None:
        facts = replace(facts, input=image_input(facts.name, input, facts.input[1]))
    elif input is not None:
        if len(input) != 1 or input[0] < 2:
            raise UserError(
                f"{facts.name} takes tokens: --input {written(facts.input)} (at least 2), "
                f"not {written(input)}"
            )
        facts = replace(facts, input=input)
    return facts if share is None else replace(facts, name=f"{facts.name}{DROPOUT}{share:g}")


def _spelling(name: str) -> str:
    return name.lower().replace("-", "_")


def _unknown(name: str) -> str:
    near = suggest(name.lower(), [known for rows in GROUPS.values() for known in rows])
    if not near or name.endswith(".py"):
        own = f"{name.removesuffix('.py').replace('/', '.')}:build"
        near = f"; `halfway list` names them; your own is module:function, for example {own}"
    return f"no network {name!r}{near}"


def dropout_of(name: str) -> tuple[str, float | None]:
    """(the network's name, the dropout that is asked for), None for its usual one.

    UserError for a dropout that is not from 0 to below 1.
    """
    plain, option, share = name.partition(DROPOUT)
    if option and not re.fullmatch(r"0?\.\d{1,6}|0", share):
        raise UserError(
            f"{name}: dropout is a number from 0 to below 1, such as {plain}@dropout=0.3"
        )
    return plain, float(share) if option else None


def written(shape: tuple[int, ...]) -> str:
    """A shape as --input takes it: 3x224x224."""
    return "x".join(str(side) for side in shape)


def image_input(name: str, input: tuple[int, ...], usual: int) -> tuple[int, int, int]:
    """The shape of a network's images, which usually have `usual` pixels a side.

    UserError when it is not (3, H, W) with sides of at least 1.
    """
    if len(input) != 3 or input[0] != 3 or min(input) < 1:
        raise UserError(
            f"{name} takes images of 3 channels: --input 3x{usual}x{usual}, not {written(input)}"
        )
    return 3, input[1], input[2]
