"""Trains the arms of a comparison from scratch, after they have been timed, and judges whether they
converged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from e2e.case import TrainCase
from e2e.commands.plan import Comparison
from e2e.results.baselines import BASELINES
from e2e.results.types import Repeat, Training
from microbench.results.types import Run
from microbench.worker import WorkerDied

if TYPE_CHECKING:
    from e2e.commands.scheduler import Job


def trained(job: Job, run: Run, comparison: Comparison, steps: int) -> Run:
    """The run with each arm trained for `steps` steps from each seed, turn by turn."""
    request = job.work.request
    todo = [
        (case, request.settings.seed + (0 if request.same_seed else repeat))
        for repeat in range(request.repeats)
        for case in comparison.cases
        if (timed := _timed_arm(run, case)) and repeat >= len(timed.repeats)
    ]
    if todo:
        job.worker.use(comparison.cases[0].gpus)
        run = _hold(job, run, [case for case, _ in todo])
    for case, seed in todo:
        training = _timed_arm(run, case)
        if training is not None:  # else it broke with an earlier seed
            run = _train(job, run, comparison, training, seed, steps)
    return run


def _hold(job: Job, run: Run, cases: Sequence[TrainCase]) -> Run:
    """Make the child hold these arms, as it does unless resumed or restarted after a fault.

    Those that fail now have failed in the run that is returned.
    """
    left = list(dict.fromkeys(cases))
    while left:
        try:
            found, died = job.worker.set_up(left, job.progress.stage), False
        except WorkerDied as death:
            job.worker.restart()
            blamed = next((case for case in left if case.key == death.key), left[0])
            found, died = [Training(blamed, "failed", death.reason)], True
        reasons = {t.case.key: t.reason for t in found if t.status != "ok"}
        for training in (run.find(Training, key) for key in reasons):
            if training is not None:
                reason = f"setting up its training: {reasons[training.case.key]}"
                run = job.saved(run, replace(training, status="failed", reason=reason))
        if not died:
            break
        left = [case for case in left if case.key not in reasons]
    return run


def _train(
    job: Job, run: Run, comparison: Comparison, training: Training, seed: int, steps: int
) -> Run:
    case = training.case
    try:
        epochs = job.work.request.epochs
        epoch = steps // epochs if epochs else None
        counted = job.work.request.count_gradients
        repeat = job.worker.train(case.key, seed, steps, job.progress.stage, epoch, counted)
    except WorkerDied as death:
        job.worker.restart()
        reason = f"training from seed {seed}: {death.reason}"
        run = job.saved(run, replace(training, status="failed", reason=reason))
        return _hold(job, run, [c for c in comparison.cases if _timed_arm(run, c)])
    chance = 1 / job.work.facts.classes if repeat.accuracy is not None else None
    training = replace(training, repeats=(*training.repeats, repeat), chance=chance)
    run = run.with_other(training)
    found = [t for c in comparison.cases if (t := run.find(Training, c.key)) is not None]
    run = job.saved(run, *judged(found, case.held_out or job.work.facts.held_out))
    job.progress.trained(case, repeat)
    return run


def _timed_arm(run: Run, case: TrainCase) -> Training | None:
    """A case's training, if it could be timed and has not failed since."""
    training = run.find(Training, case.key)
    return training if training is not None and training.status == "ok" else None


# ---------------------------------------------------------------- whether a recipe converged

LUCK = 1e-4  # of guessing at least as many right answers: what is less likely was learnt
BEHIND_SHARE = 0.5  # of the baseline's gain over guessing; a recipe with less did not converge


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
