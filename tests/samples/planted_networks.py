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
CYCLES = 20_000_000  # that a GPU spins


@torch.library.custom_op("halfway_tests::slowly_picked", mutates_args=())
def slowly_picked(x: Tensor, rows: Tensor) -> Tensor:
    """Some rows, and a rest: its integers make it a call that nobody knows how to launch alone."""
    if x.is_cuda:
        torch.cuda._sleep(CYCLES)
    else:
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
    """Picks rows slowly, `times` times; breaks in its call number `breaks`."""

    def __init__(self, times: int = 1, breaks: int | None = None) -> None:
        super().__init__()
        self.linear, self.times, self.breaks, self.calls = nn.Linear(4, 4), times, breaks, 0

    def forward(self, x: Tensor) -> Tensor:
        """Half of the rows."""
        self.calls += 1
        if self.calls == self.breaks:
            raise ValueError("the step broke")
        out = self.linear(x)
        for _ in range(self.times):
            out = slowly_picked(out, torch.arange(len(out), device=x.device))
        return out


class Undecided(nn.Module):
    """Its second half has as many rows as are above zero."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Rows above zero, and one more."""
        out = self.linear(x)
        return torch.cat([out[out.sum(1) > 0], out[:1]])


class Recurring(nn.Module):
    """A recurrent layer over the four numbers of a sample, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(1, 8, num_layers=2, dropout=0.1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 4] -> [N, 4]"""
        hidden, _ = self.lstm(x.t()[:, :, None])
        return self.linear(hidden[-1])


def network_of(module: type[nn.Module], *args: object) -> Network:
    """A network of four numbers a sample, with a loss of its own."""
    base = find("cnn-cifar")
    return replace(
        base, name="planted", build=partial(module, *args), input=(4,), classes=4,
        loss=lambda output, target, smoothing: output.float().square().mean(), accuracy=None,
    )  # fmt: skip
