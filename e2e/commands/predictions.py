"""`python -m e2e predict`: every step that is planned, predicted; none is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from e2e.case import TrainCase
from e2e.commands.plan import Comparison
from e2e.prediction import Prediction
from e2e.results.baselines import baselines
from e2e.results.types import PREDICTED, Training
from microbench.results.types import Run
from microbench.worker import WorkerDied

if TYPE_CHECKING:
    from e2e.commands.scheduler import Job


def predict_steps(job: Job, run: Run, comparisons: Sequence[Comparison]) -> Run:
    """The run with the cases of these comparisons predicted, but for those that it has already."""
    job.progress.expect(len(comparisons))
    for comparison in comparisons:
        known = [run.find(Training, case.key) for case in comparison.cases]
        if all(one is not None and one.status != "failed" for one in known):
            continue
        job.progress.about(comparison.cases)
        found = {case: _predicted(job, case) for case in comparison.cases}
        trainings = _trainings(job, found)
        measured = {t.case.key for t in run.of(Training) if t.steps is not None}
        run = job.saved(run, *(t for t in trainings if t.case.key not in measured))
        job.progress.timed(trainings)
    return run


def _predicted(job: Job, case: TrainCase) -> Prediction:
    """A case's step; where predicting kills the process, the reason."""
    try:
        return job.worker.predict(case, job.progress.stage)
    except WorkerDied as death:
        job.worker.restart()
        return Prediction(reason=death.reason, broke=True)


def _trainings(job: Job, predictions: Mapping[TrainCase, Prediction]) -> list[Training]:
    """A training for each prediction of a comparison, with its speed-ups."""
    known = {case: one.predicted for case, one in predictions.items() if one.predicted}
    network = job.work.network
    found: list[Training] = []
    for case, one in predictions.items():
        predicted = one.predicted
        if predicted:
            others = baselines(case, list(known)).items()
            ratios = {name: known[other].step_s / predicted.step_s for name, other in others}
            predicted = replace(predicted, speedup=ratios)
        status = PREDICTED if predicted else "failed" if one.broke else "skipped"
        units = network.units_per_sample * case.batch * case.accumulate
        found.append(Training(case, status, one.reason, network.unit, units, predicted=predicted))
    return found
