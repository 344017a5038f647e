"""What the host does around the calls of a step: modules, autograd, the optimizer's own Python.

Calls are timed alone; what surrounds them is learnt once a machine from small networks, whose steps
are timed on the host and traced: the difference is fitted to what there is to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from e2e.networks import Network
from e2e.predict.trace import Trace
from kernels.aten import kind_of

# Views launch nothing; forward calls that autograd notes have a node in the backward pass.
COUNTED = ("step", "module", "noted call", "backward call", "view", "weight")
RIDGE = 1e-4  # keeps a count that the calibration hardly varies from taking a wild value
WIDTH = 32


@dataclass(frozen=True)
class Framework:
    """Seconds of the host for each of COUNTED, and how well they fitted.

    `error` is the root mean square of (fitted - measured) / measured over the host's whole time of
    the calibration's steps.
    """

    seconds: tuple[float, ...]
    error: float

    def of(self, trace: Trace) -> float:
        """Seconds a step of this trace needs beside its calls; not negative."""
        counted = zip(counts(trace), self.seconds, strict=True)
        return max(0.0, sum(count * each_s for count, each_s in counted))


@dataclass(frozen=True)
class Sample:
    """A small network's step: its trace, the host's whole time, the sum over its calls alone."""

    trace: Trace
    host_s: float
    calls_s: float


def counts(trace: Trace) -> tuple[float, ...]:
    """How many of each of COUNTED a step has."""
    noted = sum(op.noted for op in trace.ops)
    backward = sum(op.phase == "backward" for op in trace.ops)
    views = sum(kind_of(op.call, op.outputs) == "view" for op in trace.ops)
    return 1.0, trace.module_calls, noted, backward, views, trace.weights


def fitted(samples: Sequence[Sample]) -> Framework:
    """Least squares over relative errors, so that a short step counts as much as a long one."""
    rows = torch.tensor([counts(sample.trace) for sample in samples], dtype=torch.float64)
    whole = torch.tensor([sample.host_s for sample in samples], dtype=torch.float64)
    rest = whole - torch.tensor([sample.calls_s for sample in samples], dtype=torch.float64)
    scaled, wanted = rows / whole[:, None], rest / whole
    typical = scaled.square().mean(0).sqrt().clamp_min(1e-12)
    ridge = torch.diag(RIDGE * typical * len(samples) ** 0.5)
    system = torch.cat([scaled, ridge])
    target = torch.cat([wanted, torch.zeros(rows.shape[1], dtype=torch.float64)])
    found = torch.linalg.lstsq(system, target[:, None]).solution[:, 0]
    error = (scaled @ found - wanted).square().mean().sqrt().item()
    return Framework(tuple(found.tolist()), error)


# ---------------------------------------------------------------- the small networks


class _Sums(nn.Module):
    """Calls without modules."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """[N, WIDTH] -> [N, WIDTH]"""
        for _ in range(self.calls):
            x = (x * self.weight).tanh()
        return x


class _Weights(nn.Module):
    """Many weights, each used once."""

    def __init__(self, weights: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.ones(WIDTH) for _ in range(weights)])

    def forward(self, x: Tensor) -> Tensor:
        """[N, WIDTH] -> [N, WIDTH]"""
        for weight in self.weights:
            x = x + weight
        return x


def _nested(module: nn.Module, depth: int) -> nn.Module:
    """Modules that only call the next one."""
    for _ in range(depth):
        module = nn.Sequential(module)
    return module


def _dense(layers: int) -> nn.Module:
    pairs = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(layers)]
    return nn.Sequential(*pairs)


def _convolutions(layers: int) -> nn.Module:
    parts = [
        nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(True))
        for _ in range(layers)
    ]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, WIDTH))
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *parts, head)


def _attention(layers: int) -> nn.Module:
    block = [
        nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        for _ in range(layers)
    ]
    return nn.Sequential(nn.Unflatten(1, (4, WIDTH)), *block, nn.Flatten(), nn.Linear(4 * WIDTH, 8))


_SMALL: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "modules": (lambda: _nested(nn.Linear(WIDTH, WIDTH), 150), (WIDTH,)),
    "calls": (lambda: _Sums(60), (WIDTH,)),
    "weights": (lambda: _Weights(150), (WIDTH,)),
    "dense": (lambda: _dense(40), (WIDTH,)),
    "convolutions": (lambda: _convolutions(25), (3, 8, 8)),
    "attention": (lambda: _attention(6), (4 * WIDTH,)),
    "little": (lambda: nn.Linear(WIDTH, WIDTH), (WIDTH,)),
}


def small_networks() -> list[Network]:
    """Networks whose steps hardly keep a device busy and differ in what the host must do."""
    return [_small(name, build, shape) for name, (build, shape) in _SMALL.items()]


def _small(name: str, build: Callable[[], nn.Module], shape: tuple[int, ...]) -> Network:
    return Network(
        name=f"small-{name}",
        build=build,
        input=shape,
        tokens=None,
        classes=8,
        loss=lambda output, target, smoothing: output.float().square().mean(),
        accuracy=None,
        unit="sample",
        units_per_sample=1,
        optimizer="sgd",
        lr=1e-3,
        weight_decay=0.0,
        batch=2,
        cpu_batch=2,
    )
