"""What the training process must know of a network, a check of its input, and its dropout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

from e2e.networks.losses import DefaultLoss, classification_loss, count_right, scored
from e2e.networks.table import DROPOUT, NetworkFacts, written
from kernels.messages import one_line
from microbench.errors import UserError
from microbench.network.networks import BuildMode, silent

TRIED_BATCH = 2  # batch-norm in training needs more than one value a channel


@dataclass(frozen=True, kw_only=True)
class Network(NetworkFacts):
    """A network that can be trained, and how it usually is: a classifier, unless stated otherwise.

    `build` makes it in float32 on the CPU, in training mode, from torch's global random numbers, so
    that the caller's seed decides. The target is int64 [batch]; for tokens it is the input itself,
    int64 [batch, T], which the loss shifts.

    `loss(output, target)` is a scalar in float32. `accuracy(output, target)` is
    the number of right answers, an int64 scalar on the device, or None when the output is not
    [batch, classes]; `accuracy` is None where the network has no such count.
    """

    build: Callable[[], nn.Module]
    loss: Callable[[Any, Tensor], Tensor] = classification_loss
    accuracy: Callable[[Any, Tensor], Tensor | None] | None = count_right

    @property
    def facts(self) -> NetworkFacts:
        """What another process may know of it."""
        return NetworkFacts(**{f.name: getattr(self, f.name) for f in fields(NetworkFacts)})

    def stands_in(self, output: Any, target: Tensor) -> bool:
        """Whether the loss of this output is a stand-in, from which nothing useful is learnt."""
        return isinstance(self.loss, DefaultLoss) and scored(output, target) is None


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


def model_bytes(module: nn.Module) -> int:
    """Bytes of parameters and buffers; what two layers share counts once."""
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return sum(tensor.nbytes for tensor in tensors.values())


def with_dropout(network: Network, share: float) -> Network:
    """The network with this dropout in all its layers of that kind. UserError if it has none."""

    def build() -> nn.Module:
        module = network.build()
        layers = [layer for layer in module.modules() if isinstance(layer, _DropoutNd)]
        for layer in layers:
            layer.p = share
        if not layers:
            raise UserError(f"{network.name} has no dropout to set; leave out {option}")
        return module

    option = f"{DROPOUT}{share:g}"
    with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
        build()
    return replace(network, name=f"{network.name}{option}", build=build)
