"""Cases of networks, calls of a step as they are recorded, and what a launch of one gives back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from e2e.aten import WARM, Call, Replay, TensorSpec, describe, resolve, spec_of, tensors_among
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


# ---------------------------------------------------------------- calls as they are recorded

NUMBER = TensorSpec((), (), "int64", "cpu")


@dataclass(frozen=True)
class Recorded:
    """A call, and what it returned."""

    call: Call
    outputs: tuple[TensorSpec, ...]


class Recorder(TorchDispatchMode):
    """Keeps every call, but no marks of ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Recorded] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if str(func).startswith(("prim.", "profiler.")):
            return func(*args, **(kwargs or {}))
        call = describe(func, args, kwargs or {})
        returned = func(*args, **(kwargs or {}))
        self.ops.append(Recorded(call, specs(returned)))
        return returned


class Checkpointed(nn.Module):
    """A block whose forward runs again in the backward pass, and a layer: [N, 4] to [N, 4]."""

    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
        self.head, self.reentrant = nn.Linear(4, 4), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=self.reentrant))


def specs(returned: Any) -> tuple[TensorSpec, ...]:
    return tuple(spec_of(tensor) for tensor in tensors_among(returned))


def declared(call: Call, replay: Replay, returned: Any) -> tuple[TensorSpec, ...]:
    """The tensors that the operator gives by its schema.

    A binding of torch's may also give back the list that it changed, and make tensors of numbers;
    nothing else, or the test fails.
    """
    kinds = [str(value.type) for value in resolve(call.name)._schema.returns]
    if not kinds:
        assert returned is None or specs(returned) == specs(replay.plain.args[0]), call.key
        return ()
    values = list(zip(returned if len(kinds) > 1 else [returned], kinds, strict=True))
    numbers = specs([value for value, kind in values if "Tensor" not in kind])
    assert set(numbers) <= {NUMBER}, call.key
    return specs([value for value, kind in values if "Tensor" in kind])


def finite(returned: Any) -> bool:
    floats = [t for t in tensors_among(returned) if t.is_floating_point()]
    return all(bool(t.isfinite().all()) for t in floats)
