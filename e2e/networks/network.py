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
    """Whether a loss is a stand-in: never, whatever the output."""
    return False


@dataclass(frozen=True)
class Network:
    """A network that can be trained, and how it usually is.

    `build` makes it in float32 on the CPU, in training mode, from torch's global random numbers, so
    that the caller's seed decides. `input` is the shape of one sample, without the batch. `tokens`
    is the number of ids of an int64 input, None for a float32 input; `classes` that of the target,
    None when the output decides. The target is int64 [batch]; for tokens it is the input itself,
    int64 [batch, T], which the loss shifts.

    `loss(output, target, label_smoothing)` is a scalar in float32. `accuracy(output, target)` is
    the number of right answers, an int64 scalar on the device, or None when the output is not
    [batch, classes]; `accuracy` is None where the network has no such count. `stands_in(output,
    target)`: the loss is a stand-in, whose steps take as long but learn nothing useful.

    `unit` is "img", "tok" or "sample", of which a sample has `units_per_sample`. `batch` and
    `cpu_batch` are default batch sizes in samples; `lr` suits `batch`.
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
    """The shape (3, H, W) of a network's images; `usual` pixels a side by default.

    UserError when `input` is not 3xHxW with sides of at least 1.
    """
    if input is None:
        return 3, usual, usual
    if len(input) != 3 or input[0] != 3 or min(input) < 1:
        raise UserError(
            f"{name} takes images of 3 channels: --input 3x{usual}x{usual}, not {written(input)}"
        )
    return input[0], input[1], input[2]


def class_count(name: str, classes: int | None, usual: int) -> int:
    """The number of classes to build a network for, `usual` by default. UserError below 1."""
    if classes is not None and classes < 1:
        raise UserError(f"{name} needs at least 1 class, not {classes}")
    return classes or usual


def check_input(
    name: str,
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
) -> None:
    """Raise UserError when the network rejects a batch of samples of this shape and type.

    It is built and called on fake tensors: about a second, and no memory for tensors.
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
