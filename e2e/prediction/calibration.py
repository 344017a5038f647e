"""Calibrates a machine once: the host time around ATen calls, from steps of small networks.

The steps are limited by CPU launches and differ in what the host does. Each round times every step
and then its calls alone, so that a slow second of the host affects all networks alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from e2e.case import TrainCase
from e2e.networks import Network, find
from e2e.networks.network import written
from e2e.prediction.framework_overhead import CalibrationStep, FrameworkOverhead, fitted
from e2e.prediction.op_timer.launch_times import warm
from e2e.prediction.op_timer.op_costs import CallTimer
from e2e.prediction.trace.fake_trace import CannotTrace, Trace, fixed_feed, trace
from e2e.recipes import RECIPES, cannot_run, recipe_of, switch_process
from e2e.training.speed_readings import HostSpeed, SpeedBetween
from e2e.training.trainer import Trainer
from e2e.validation_sets import CALIBRATED_ON
from microbench.timing.stats import median

STEPS = 10  # in a row
ROUNDS, LEAST_ROUNDS, CALIBRATING_S = 7, 3, 12.0  # over all networks; where these take long
WIDTH = 32
CLASSES = 8
PACED_LAYERS = 8
ADAM = ("attention",)
TINY = (3, 32, 32)
# Of these, under autocast without a loss scaler too, or instead: the others have one.
SMALL_RECIPES = {
    "small-modules": ("fp32", "amp-bf16"),
    "small-calls": ("fp32", "amp-bf16"),
    "small-dense": ("fp32", "amp", "amp-bf16"),
    "small-little": ("fp32", "amp", "amp-bf16"),
}
USUAL_RECIPES = ("fp32", "amp")


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
    """A chain of modules that only call the next one."""
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
    blocks = [
        nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        for _ in range(layers)
    ]
    return nn.Sequential(
        nn.Unflatten(1, (4, WIDTH)), *blocks, nn.Flatten(), nn.Linear(4 * WIDTH, 8)
    )


_SMALL: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "modules": (lambda: _nested(nn.Linear(WIDTH, WIDTH), 150), (WIDTH,)),
    "calls": (lambda: _Sums(60), (WIDTH,)),
    "weights": (lambda: _Weights(150), (WIDTH,)),
    "dense": (lambda: _dense(40), (WIDTH,)),
    "convolutions": (lambda: _convolutions(25), (3, 8, 8)),
    "attention": (lambda: _attention(6), (4 * WIDTH,)),
    "little": (lambda: nn.Linear(WIDTH, WIDTH), (WIDTH,)),
}


def small_networks(kind: str) -> list[Network]:
    """The calibration networks for a kind of device, "cuda" or "cpu"."""
    made = [_small(name, build, shape) for name, (build, shape) in _SMALL.items()]
    if kind == "cuda":
        made += [replace(find(name, input=TINY), batch=2) for name in CALIBRATED_ON]
    return made


def small_recipes(small: Network, kind: str, *, bf16: bool = True) -> tuple[str, ...]:
    """The recipes to calibrate one of them with; on a CPU fp32 only.

    On a card without bfloat16 (`bf16` False), every recipe with autocast has a loss scaler.
    """
    if kind != "cuda":
        return ("fp32",)
    return SMALL_RECIPES.get(small.name, USUAL_RECIPES) if bf16 else USUAL_RECIPES


def paced_network() -> Network:
    """The network whose step measures the host's launch speed: a few small convolutions."""
    return _small("pace", lambda: _convolutions(PACED_LAYERS), (3, 8, 8))


def _small(name: str, build: Callable[[], nn.Module], shape: tuple[int, ...]) -> Network:
    return Network(
        name=f"small-{name}",
        build=build,
        input=shape,
        tokens=None,
        classes=CLASSES,
        loss=lambda output, target, smoothing: output.float().square().mean(),
        accuracy=None,
        unit="sample",
        units_per_sample=1,
        optimizer="adamw" if name in ADAM else "sgd",
        lr=1e-3,
        weight_decay=0.0,
        batch=2,
        cpu_batch=2,
    )


def small_case(small: Network, recipe: str) -> TrainCase:
    """The calibration case of one of them under a recipe."""
    return TrainCase(
        small.name, recipe, small.batch, written(small.input), optimizer=small.optimizer
    )


def small_step(small: Network, recipe: str, device: torch.device) -> Callable[[], object]:
    """A function that launches one of its training steps, always on the same batch."""
    case = small_case(small, recipe)
    trainer = Trainer(small, case, recipe_of(case), device, seed=1)
    feed = fixed_feed(small, case, device, CLASSES)
    return lambda: trainer.step(feed)


# ------------------------------------------------------------ the fit


@dataclass
class _Prepared:
    """A small network's step, and its calls alone, ready to be timed.

    `calls_s` and `steps_s` are at the reference speed.
    """

    traced: Trace
    launch_calls: Callable[[], float]
    step: Callable[[], object]
    calls_s: list[float] = field(default_factory=list[float])
    steps_s: list[float] = field(default_factory=list[float])


def calibrated(calls: CallTimer, host_speed: HostSpeed) -> FrameworkOverhead:
    """Measure and fit the framework overhead of `calls`' device: seconds at the reference speed.

    cuDNN takes its first algorithm here, in steps as in calls alone: searching for each convolution
    would take most of the time.
    """
    prepared = list(_prepared(calls))
    between = SpeedBetween(host_speed)
    until_s = time.perf_counter() + CALIBRATING_S
    for number in range(ROUNDS):
        if number >= LEAST_ROUNDS and time.perf_counter() > until_s:
            break
        for one in prepared:
            switch_process(recipe_of(one.traced.case), calls.device.type, None)
            warm(one.launch_calls)
            calls_s = one.launch_calls()
            one.calls_s.append(calls_s / between.ends())
            step_s = _step_s(one.step, calls.device)
            one.steps_s.append(step_s / between.ends())
    return fitted(
        [CalibrationStep(one.traced, median(one.steps_s), median(one.calls_s)) for one in prepared]
    )


def _prepared(calls: CallTimer) -> Iterator[_Prepared]:
    kind = calls.device.type
    card = torch.cuda.get_device_capability(calls.device) if kind == "cuda" else None
    bf16 = cannot_run(RECIPES["amp-bf16"], kind, card) is None
    for small in small_networks(kind):
        for recipe in small_recipes(small, kind, bf16=bf16):
            with suppress(CannotTrace):  # fit the others
                traced = trace(small, small_case(small, recipe), calls.device, CLASSES)
                step = small_step(small, recipe, calls.device)
                yield _Prepared(traced, calls.passes(traced), step)


def _step_s(step: Callable[[], object], device: torch.device) -> float:
    """Seconds per step over consecutive steps, short enough for the device to keep up."""
    warm(step)
    began_s = _now_s(device)
    for _ in range(STEPS):
        step()
    return (_now_s(device) - began_s) / STEPS


def _now_s(device: torch.device) -> float:
    """The time in seconds, after the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
