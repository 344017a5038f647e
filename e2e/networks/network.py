"""What the benchmark must know of a network to train it, and checks on the shape of its input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels.error_words import one_line
from microbench.errors import UserError
from microbench.network.networks import BuildMode, silent

TRIED_BATCH = 2  # batch-norm in training needs more than one value a channel


def never(output: object, target: Tensor | None) -> bool:
    """Say that a loss is no stand-in, whatever the output."""
    return False


@dataclass(frozen=True)
class Network:
    """A network that can be trained, and how people train it.

    `build` makes it with real weights on the CPU in float32 and in training mode, from torch's
    global random numbers, so that the caller's seed decides. `input` is the shape of one sample
    without the batch. `tokens` is the number of ids when the input is int64 in [0, tokens), None
    for float32 input. `classes` is the number of classes of the target, None when the output
    decides. `loss(output, target, label_smoothing)` is a scalar in float32; the target is int64
    [batch] for classes, and for tokens the token batch itself, int64 [batch, T], which the loss
    shifts. `accuracy(output, target)` is the number of right ones, int64 without dimensions on the
    device; None when the output, of a user's network, is not [batch, classes]. `accuracy` itself is
    None for a network that has none. `unit` is "img", "tok" or "sample". `batch` and `cpu_batch`
    are defaults, and `lr` suits `batch`. `stands_in(output, target)` says whether the loss of this
    output is only a stand-in: its speed is that of training, but nothing useful is learnt.
    """

    name: str
    build: Callable[[], nn.Module]
    input: tuple[int, ...]
    loss: Callable[[Any, Tensor | None, float], Tensor]
    optimizer: str
    lr: float
    weight_decay: float
    batch: int
    cpu_batch: int
    tokens: int | None = None
    classes: int | None = None
    accuracy: Callable[[Any, Tensor], Tensor | None] | None = None
    unit: str = "img"
    units_per_sample: int = 1
    stands_in: Callable[[Any, Tensor | None], bool] = never


def written(shape: tuple[int, ...]) -> str:
    """A shape as --input takes it: 3x224x224."""
    return "x".join(str(side) for side in shape)


def image_input(name: str, input: tuple[int, ...] | None, usual: int) -> tuple[int, int, int]:
    """The shape of one image of a network that takes 3 channels, `usual` pixels a side by default.

    UserError when `input` is not 3xHxW.
    """
    if input is None:
        return 3, usual, usual
    if len(input) != 3 or input[0] != 3 or min(input) < 1:
        raise UserError(
            f"{name} takes images of 3 channels: --input 3x{usual}x{usual}, not {written(input)}"
        )
    return input[0], input[1], input[2]


def class_count(name: str, classes: int | None, usual: int) -> int:
    """The number of classes to build a network for. UserError below 1."""
    if classes is not None and classes < 1:
        raise UserError(f"{name} needs at least 1 class, not {classes}")
    return classes or usual


def check_input(
    name: str,
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Raise UserError when the network does not take a batch of samples of this shape and type.

    It is built and called on fake tensors, which takes a second or so and no memory.
    """
    # small constants that a constructor computes are real
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with silent():
        try:
            with BuildMode(fake):
                module = build()
            with fake, torch.no_grad():
                module.train()(torch.empty(TRIED_BATCH, *shape, dtype=dtype))
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"{name} does not take --input {written(shape)}: {one_line(error)}"
            ) from None
