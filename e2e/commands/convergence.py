"""Whether a recipe converged, by what its trainings from scratch reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from e2e.results.baselines import BASELINES
from e2e.results.types import Repeat, Training

LUCK = 1e-4  # of guessing at least as many right answers: what is less likely was learnt
BEHIND_SHARE = 0.5  # of the baseline's gain over guessing; a recipe with less did not converge


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
