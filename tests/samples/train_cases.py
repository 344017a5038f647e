"""Cases of networks, as tests of traces and predictions need them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from e2e.aten import WARM
from e2e.case import TrainCase
from e2e.networks import find
from e2e.networks.network import Network
from e2e.networks.table import written
from e2e.prediction.predictor import Trace


def case_of(network: Network, batch: int = 8, **settings: object) -> TrainCase:
    """A case in float32 and NCHW unless told otherwise; tokens have no layout."""
    made: dict[str, object] = {"recipe": "fp32", "layout": "nchw", "optimizer": network.optimizer}
    made |= settings
    if network.tokens is not None:
        made["layout"] = ""
    return TrainCase(network.name, batch=batch, input=written(network.input), **made)  # type: ignore[arg-type]


def quietly(key: str, stage: str) -> None:
    """Nobody listens to what a prediction announces."""


def differences(one: Trace, other: Trace) -> list[str]:
    """Where two recordings of a step are not the same list of calls, a line each."""
    if len(one.ops) != len(other.ops):
        return [f"{len(one.ops)} calls | {len(other.ops)} calls"]
    return [
        f"{i}: {a.call.key} | {b.call.key}"
        for i, (a, b) in enumerate(zip(one.ops, other.ops, strict=True))
        if replace(a, cold=WARM) != replace(b, cold=WARM)  # it follows from all before
    ]


def network_of(module: type[nn.Module], *args: object) -> Network:
    """A network of four numbers a sample, with a loss of its own."""
    return replace(
        find("cnn-cifar"), name="planted", build=partial(module, *args), input=(4,), classes=4,
        loss=lambda output, target: output.float().square().mean(), accuracy=None,
    )  # fmt: skip


class Undecided(nn.Module):
    """What it does depends on values."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.linear, self.reads = nn.Linear(4, 4), reads

    def forward(self, x: Tensor) -> Tensor:
        """Rows above zero, or all of them once more where the first is."""
        out = self.linear(x)
        if self.reads:
            return self.linear(out) if out[0, 0].item() > 0 else out
        return out[out.sum(1) > 0]
