"""Trains a variant once, from scratch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from e2e.data.types import Data
from e2e.results.types import Repeat
from e2e.training.feeds import loader_of
from e2e.training.variant import Variant

EDGE_SHARE = 0.1  # of the steps, at each end, that `first_loss` and `train_loss` are means over
CURVE_POINTS = 100  # of a training's loss, at most; read from the device after the training
HEARTBEAT_S = 5.0  # seconds between signs of life

OnStep = Callable[[int], None]


def train_once(variant: Variant, data: Data, seed: int, steps: int, on_step: OnStep) -> Repeat:
    """Train `steps` steps from `seed`, then evaluate on held-out data.

    `train_s` in seconds, without the evaluation. Loss and accuracy are None for data without a
    held-out part. Raises torch's errors (out of memory, CUDA faults) as they are.
    """
    trainer, case = variant.trainer, variant.training.case
    trainer.set_backend_flags()
    trainer.restart(seed, steps)
    with trainer.ranks.fail_together():
        feed = loader_of(data, case, trainer.device, seed)
    losses = torch.zeros(steps, dtype=torch.float32, device=trainer.device)
    loss = accuracy = None
    try:
        _wait(trainer.device)
        start_s = heartbeat_s = time.perf_counter()
        for i in range(steps):
            losses[i] = trainer.step(feed)
            if time.perf_counter() - heartbeat_s > HEARTBEAT_S:
                heartbeat_s = time.perf_counter()
                on_step(i + 1)
        _wait(trainer.device)
        train_s = time.perf_counter() - start_s
        if data.train_samples is not None:
            held_out = data.held_out(case.batch, trainer.device, case.held_out)
            loss, accuracy = trainer.evaluate(held_out)
    finally:
        feed.close()
    trainer.ranks.sums(losses)  # each has those of its own batches
    losses /= trainer.ranks.world
    edge = max(1, int(EDGE_SHARE * steps))
    return Repeat(
        seed=seed,
        steps=steps,
        train_s=train_s,
        first_loss=_mean(losses[:edge]),
        train_loss=_mean(losses[-edge:]),
        loss=loss,
        accuracy=accuracy,
        skipped_steps=trainer.skipped_steps,
        curve=tuple(_mean(part) for part in losses.tensor_split(min(steps, CURVE_POINTS))),
        last_loss=_mean(losses[-1:]),
        mean_loss=_mean(losses),
    )


def _mean(losses: torch.Tensor) -> float | None:
    mean = losses.double().mean().item()
    return mean if math.isfinite(mean) else None


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
