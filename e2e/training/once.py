"""Trains a variant once, from scratch, and says whether a recipe has converged."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import torch

from e2e.data.types import Data
from e2e.results.baselines import BASELINES
from e2e.results.types import Repeat, Training
from e2e.training.variant import Variant

EDGE_SHARE = 0.1  # of the steps, at each end, that `first_loss` and `train_loss` are means over
CURVE_POINTS = 100  # of a training's loss, at most; read from the device after the training
HEARTBEAT_S = 5.0  # seconds between signs of life
LUCK = 1e-4  # of guessing at least as many right answers: what is less likely was learnt
BEHIND_SHARE = 0.5  # of the baseline's gain over guessing; a recipe with less did not converge

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
        feed = data.open(case, trainer.device, seed)
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


# ---------------------------------------------------------------- by what trainings reached


def with_convergence(trainings: Sequence[Training], held_out: int | None) -> list[Training]:
    """The trainings with `converged` and, where they did not, the reason.

    `held_out` is the number of samples behind the accuracy. A recipe that learns far less than the
    baseline from the same seeds has not converged; if the baseline learns nothing, `converged` is
    None.
    """
    repeated = [t for t in trainings if t.repeats]
    names = chain(*BASELINES.values())
    baseline = next((t for name in names for t in repeated if t.case.recipe == name), None)
    return [_with_convergence(t, baseline, held_out) if t.repeats else t for t in trainings]


def _with_convergence(
    training: Training, baseline: Training | None, held_out: int | None
) -> Training:
    trouble = _not_learnt(training, held_out)
    if baseline is not None and baseline is not training:
        trouble = trouble or _behind(training, baseline)
        if trouble and not _not_finite(training.repeats) and _not_learnt(baseline, held_out):
            reason = f"{baseline.case.recipe} did not learn either; train longer"
            return replace(training, converged=None, convergence=reason)
    return replace(training, converged=trouble is None, convergence=trouble)


def _not_finite(repeats: Sequence[Repeat]) -> str | None:
    bad = sum(r.train_loss is None for r in repeats)
    return f"the loss is not finite in {bad} of {len(repeats)} trainings" if bad else None


def _not_learnt(training: Training, held_out: int | None) -> str | None:
    """Why nothing was learnt: a loss that is not finite, guesses, or a loss that did not fall."""
    if reason := _not_finite(training.repeats):
        return reason
    seen, chance = training.accuracy, training.chance
    if seen is not None and chance is not None and held_out:
        if _luck(seen[0], chance, held_out) < LUCK:
            return None
        return f"accuracy {seen[0]:.1%} is at chance level ({chance:.1%})"
    first = [r.first_loss for r in training.repeats if r.first_loss is not None]
    last = [r.train_loss for r in training.repeats if r.train_loss is not None]
    if first and last and sum(last) / len(last) >= sum(first) / len(first):
        return "the loss did not fall"
    return None


def _luck(accuracy: float, chance: float, count: int) -> float:
    """The probability of guessing at least this share of `count` answers right."""
    if not 0 < chance < 1:
        return 1.0
    all_ = math.lgamma(count + 1)
    logs = (
        all_ - math.lgamma(right + 1) - math.lgamma(count - right + 1)
        + right * math.log(chance) + (count - right) * math.log1p(-chance)
        for right in range(math.ceil(accuracy * count - 1e-9), count + 1)
    )  # fmt: skip
    return math.fsum(map(math.exp, logs))


def _behind(training: Training, baseline: Training) -> str | None:
    seen, best, chance = training.accuracy, baseline.accuracy, training.chance
    if seen is None or best is None or chance is None:
        return None
    if seen[0] - chance < BEHIND_SHARE * (best[0] - chance):
        return f"accuracy {seen[0]:.1%}, {baseline.case.recipe} reaches {best[0]:.1%}"
    return None
