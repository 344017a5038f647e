"""Trains the arms of a comparison from scratch, after they have been timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from e2e.case import TrainCase
from e2e.commands.plan import Comparison
from e2e.results.types import Training
from e2e.training.convergence import judged
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
