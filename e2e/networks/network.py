"""What the training process must know of a network, and a check on the shape of its input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from e2e.networks.table import NetworkFacts, written
from kernels.error_words import one_line
from microbench.errors import UserError
from microbench.network.networks import BuildMode, silent

TRIED_BATCH = 2  # batch-norm in training needs more than one value a channel


def never(output: object, target: Tensor | None) -> bool:
    """Whether a loss is a stand-in: never, whatever the output."""
    return False


@dataclass(frozen=True, kw_only=True)
class Network(NetworkFacts):
    """A network that can be trained, and how it usually is.

    `build` makes it in float32 on the CPU, in training mode, from torch's global random numbers, so
    that the caller's seed decides. The target is int64 [batch]; for tokens it is the input itself,
    int64 [batch, T], which the loss shifts.

    `loss(output, target, label_smoothing)` is a scalar in float32. `accuracy(output, target)` is
    the number of right answers, an int64 scalar on the device, or None when the output is not
    [batch, classes]; `accuracy` is None where the network has no such count. `stands_in(output,
    target)`: the loss is a stand-in, whose steps take as long but learn nothing useful.
    """

    build: Callable[[], nn.Module]
    loss: Callable[[Any, Tensor | None, float], Tensor]
    accuracy: Callable[[Any, Tensor], Tensor | None] | None = None
    stands_in: Callable[[Any, Tensor | None], bool] = never

    @property
    def facts(self) -> NetworkFacts:
        """What another process may know of it."""
        return NetworkFacts(**{one.name: getattr(self, one.name) for one in fields(NetworkFacts)})


def check_classes(name: str, classes: int | None) -> None:
    """UserError for a number of classes below 1."""
    if classes is not None and classes < 1:
        raise UserError(f"{name} needs at least 1 class, not {classes}")


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
