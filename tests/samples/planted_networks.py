"""Networks with calls that cannot be launched alone, planted for tests of real steps."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from e2e.networks import find
from e2e.networks.network import Network

SLEEP_S = 5e-3


@torch.library.custom_op("halfway_tests::slowly_picked", mutates_args=())
def slowly_picked(x: Tensor, rows: Tensor) -> Tensor:
    """Some rows, and a rest: its integers make it a call that nobody knows how to launch alone."""
    time.sleep(SLEEP_S)
    return x[rows].clone()


@slowly_picked.register_fake
def _(x: Tensor, rows: Tensor) -> Tensor:
    return x.new_empty((rows.shape[0], *x.shape[1:]))


def _backward(ctx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
    (rows,) = ctx.saved_tensors
    return torch.zeros(ctx.shape, device=grad.device, dtype=grad.dtype).index_add(
        0, rows, grad
    ), None


def _keep(ctx, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(inputs[1])
    ctx.shape = inputs[0].shape


slowly_picked.register_autograd(_backward, setup_context=_keep)


class Picking(nn.Module):
    """Picks rows slowly, `times` times."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.linear, self.times = nn.Linear(4, 4), times

    def forward(self, x: Tensor) -> Tensor:
        """Half of the rows."""
        out = self.linear(x)
        for _ in range(self.times):
            out = slowly_picked(out, torch.arange(len(out), device=x.device))
        return out


def network_of(module: type[nn.Module], *args: object) -> Network:
    """A network of four numbers a sample, with a loss of its own."""
    base = find("cnn-cifar")
    return replace(
        base, name="planted", build=partial(module, *args), input=(4,), classes=4,
        loss=lambda output, target, smoothing: output.float().square().mean(), accuracy=None,
    )  # fmt: skip
