"""The CPU's current launch speed, measured by a step of one small network.

The CPU of a shared or virtual machine may take twice as long for the same work a second later. Run
files call the slowdown `host_pace`: a ratio, 1.25 means that a launch takes 25 % longer than where
the small step takes REFERENCE_S.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean

import torch
from torch import nn

from e2e.case import TrainCase
from e2e.data.loaders.device_copy import FixedBatch
from e2e.networks.network import Network
from e2e.networks.table import written
from e2e.recipes import recipe_of
from e2e.training.trainer import Trainer, set_tf32
from microbench.timing.stats import median

RECIPE = "amp"
REFERENCE_S = 2e-3  # seconds of the small step at a slowdown of 1, by definition
# After other work or a rest a step is up to 1.4 times as long; the seventh shows nothing of it.
WARM_STEPS, STEPS = 6, 3
LAYERS, CHANNELS, WIDTH, BATCH = 8, 8, 32, 2


class SmallStepSpeed:
    """Times the launch of a small training step that a GPU finishes sooner than the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._step: Callable[[], object] | None = None
        self._searched: set[bool] = set()

    def slowdown(self) -> float:
        """The slowdown now: the median of STEPS steps after WARM_STEPS, over REFERENCE_S.

        RuntimeError if the device has no memory for its step.
        """
        step = self._searched_step()
        for _ in range(WARM_STEPS):
            step()
        return median([self._seconds(step) for _ in range(STEPS)]) / REFERENCE_S

    def forget(self) -> None:
        """Release the small network; it is built again when needed."""
        self._step = None
        self._searched.clear()

    def _seconds(self, step: Callable[[], object]) -> float:
        torch.cuda.synchronize(self._device)
        began_s = time.perf_counter()
        step()
        return time.perf_counter() - began_s

    def _searched_step(self) -> Callable[[], object]:
        """The step, after cuDNN has searched its algorithms for the current TF32 setting.

        They are searched even where the measured recipe turns that off; the switch is restored.
        """
        tf32, search = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
        if self._step is None:
            self._step = _small_step(self._device)
            set_tf32(tf32)
        if tf32 not in self._searched:
            torch.backends.cudnn.benchmark = True
            try:
                self._step()
            finally:
                torch.backends.cudnn.benchmark = search
            self._searched.add(tf32)
        return self._step


class SpeedByTurn:
    """The slowdown of interleaved variants, read where a turn ends and the next begins.

    If the device has no memory for the small step there are no readings; the turns go on.
    """

    def __init__(self, host_speed: SmallStepSpeed) -> None:
        self._host_speed: SmallStepSpeed | None = host_speed
        self._readings: list[tuple[str, float]] = []

    def begin(self, turn: str) -> None:
        """Begin the turn of this variant and end that of another."""
        if self._host_speed is None:
            return
        try:
            self._readings.append((turn, self._host_speed.slowdown()))
        except RuntimeError:
            self._host_speed = None
            self._readings.clear()

    def of(self, turn: str) -> float | None:
        """The median over its turns of the mean of both ends, a ratio; None without readings."""
        pairs = pairwise(self._readings)
        means = [fmean((first, last)) for (name, first), (_, last) in pairs if name == turn]
        return median(means) if means else None


def _small_step(device: torch.device) -> Callable[[], object]:
    """A function that launches a training step of a few small convolutions, always on one batch."""
    network = Network(
        name="small-pace", build=_convolutions, input=(3, 8, 8), tokens=None, classes=WIDTH,
        loss=lambda output, target: output.float().square().mean(), accuracy=None,
        optimizer="sgd", lr=1e-3, weight_decay=0.0,
        batch=BATCH, cpu_batch=BATCH,
    )  # fmt: skip
    case = TrainCase(network.name, RECIPE, BATCH, written(network.input))
    trainer = Trainer(network, case, recipe_of(case), device, seed=1)
    images = torch.randn(BATCH, *network.input, device=device)
    feed = FixedBatch(images, torch.zeros(BATCH, dtype=torch.int64, device=device))
    return lambda: trainer.step(feed)


def _convolutions() -> nn.Module:
    parts = [
        nn.Sequential(
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
            nn.BatchNorm2d(CHANNELS),
            nn.ReLU(inplace=True),
        )
        for _ in range(LAYERS)
    ]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, WIDTH))
    return nn.Sequential(nn.Conv2d(3, CHANNELS, 3, padding=1), *parts, head)
