"""Training from scratch: one repeat, and whether a recipe converged over several."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, pairwise

import torch

from e2e.data.types import Data
from e2e.results.baselines import BASELINES
from e2e.results.types import Evaluation, Repeat, Training
from e2e.training.arms import Held
from e2e.training.feeds import feed_of

EDGE_SHARE = 0.1  # of the steps, at each end, that `first_loss` and `train_loss` are means over
CURVE_POINTS = 100  # of a training's loss, at most; read from the device after the training
BEAT_S = 5.0  # seconds between signs of life
LUCK = 1e-4  # of guessing at least as many right answers: what is less likely was learnt
BEHIND_SHARE = 0.5  # of the baseline's gain over guessing; a recipe with less did not converge

OnStep = Callable[[int], None]


def train_once(
    held: Held,
    data: Data,
    seed: int,
    steps: int,
    on_step: OnStep,
    epoch: int | None = None,
    count_every: int | None = None,
) -> Repeat:
    """Train `steps` steps from `seed`, evaluating on held-out data after each `epoch` steps.

    Without `epoch` it evaluates once, after the last step. Gradients are counted each `count_every`
    steps, which never waits for the device. `train_s` in seconds, without the evaluations. Loss and
    accuracy are None for data without a held-out part. Raises torch's errors (out of memory, CUDA
    faults) as they are.
    """
    trainer, case = held.trainer, held.training.case
    trainer.switch()
    trainer.restart(seed, steps)
    with trainer.part():
        feed = feed_of(data, case, trainer.device, seed)
    losses = torch.zeros(steps, dtype=torch.float32, device=trainer.device)
    counts = torch.zeros(3, dtype=torch.int64, device=trainer.device)
    evaluations: list[Evaluation] = []
    train_s = 0.0
    ends = (*range(epoch or steps, steps, epoch or steps), steps)
    try:
        for begin, end in pairwise((0, *ends)):
            _wait(trainer.device)
            start_s = beat_s = time.perf_counter()
            for i in range(begin, end):
                losses[i] = trainer.step(feed)
                if count_every and (i + 1) % count_every == 0:
                    counts += trainer.optimizer.gradient_counts()
                if time.perf_counter() - beat_s > BEAT_S:
                    beat_s = time.perf_counter()
                    on_step(i + 1)
            _wait(trainer.device)
            train_s += time.perf_counter() - start_s
            if data.train_samples is not None:
                if epoch:
                    on_step(end)
                found = trainer.evaluate(data.held_out(case.batch, trainer.device, case.held_out))
                evaluations.append(Evaluation(end, train_s, *found))
    finally:
        feed.close()
    if trainer.ranks:  # each has the losses of its own batches
        trainer.ranks.sums(losses)
        losses /= trainer.ranks.world
    edge = max(1, int(EDGE_SHARE * steps))
    zeros, not_finite, counted = (int(count.item()) for count in counts)
    last = evaluations[-1] if evaluations else None
    return Repeat(
        seed=seed,
        steps=steps,
        train_s=train_s,
        first_loss=_mean(losses[:edge]),
        train_loss=_mean(losses[-edge:]),
        loss=last and last.loss,
        accuracy=last and last.accuracy,
        skipped_steps=trainer.skipped_steps,
        curve=tuple(_mean(part) for part in losses.tensor_split(min(steps, CURVE_POINTS))),
        last_loss=_mean(losses[-1:]),
        mean_loss=_mean(losses),
        evaluations=tuple(evaluations) if epoch else (),
        zero_gradients=zeros / counted if counted else None,
        infinite_gradients=not_finite / counted if counted else None,
    )


def judged(trainings: Sequence[Training], held_out: int | None) -> list[Training]:
    """The trainings with `converged` and, where they did not, the reason.

    `held_out` is the number of samples behind the accuracy. A recipe that learns far less than the
    baseline from the same seeds has not converged; if the baseline learns nothing, `converged` is
    None.
    """
    repeated = [t for t in trainings if t.repeats]
    names = chain(*BASELINES.values())
    baseline = next((t for name in names for t in repeated if t.case.recipe == name), None)
    return [_judged(t, baseline, held_out) if t.repeats else t for t in trainings]


def _judged(training: Training, baseline: Training | None, held_out: int | None) -> Training:
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


def _mean(losses: torch.Tensor) -> float | None:
    mean = losses.double().mean().item()
    return mean if math.isfinite(mean) else None


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
