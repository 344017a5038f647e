"""`python -m e2e predict`: every step that is planned, predicted; none is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from e2e.case import TrainCase
from e2e.commands.plan import Comparison
from e2e.commands.requests import links_in
from e2e.prediction.exchange import not_predicted, with_exchange
from e2e.prediction.prediction import Prediction
from e2e.results.baselines import baselines
from e2e.results.types import PREDICTED, Training
from e2e.training.speed_readings import slowdown_range
from microbench.results.types import Run
from microbench.results.values import Warning
from microbench.worker import WorkerDied

if TYPE_CHECKING:
    from e2e.commands.scheduler import Job


def predict_steps(job: Job, run: Run, comparisons: Sequence[Comparison]) -> Run:
    """The run with the cases of these comparisons predicted, but for those that were measured."""
    asked = job.work.request
    links = links_in(asked.exchange, asked.arms) if asked.exchange else {}
    job.progress.expect(len(comparisons))
    steps: dict[str, Prediction] = {}
    for comparison in comparisons:
        if all(
            _is_done(run, case, allow_run=asked.settings.allow_run) for case in comparison.cases
        ):
            continue
        job.progress.about(comparison.cases)
        found = [_predicted(job, case, steps) for case in comparison.cases]
        # All at one host speed: that of all readings together.
        slowdowns = slowdown_range({seen for one in found for seen in one.speed_readings})
        found = [one.predicted_for(slowdowns) for one in found]
        found = [
            with_exchange(one, links[one.case.gpus]) if one.case.gpus > 1 and one.predicted else one
            for one in found
        ]
        trainings = _trainings(job, found)
        measured = {t.case.key for t in run.of(Training) if t.steps is not None}
        run = job.saved(run, *(t for t in trainings if t.case.key not in measured))
        job.progress.timed(trainings)
    return run


def _is_done(run: Run, case: TrainCase, *, allow_run: bool) -> bool:
    """Whether it was measured or predicted, and no more is allowed now than was then."""
    known = run.find(Training, case.key)
    if known is None or known.status == "failed":
        return False
    lacks = known.predicted.uncovered if known.predicted else known.status == "skipped"
    return known.steps is not None or not (allow_run and lacks)


def _predicted(job: Job, case: TrainCase, steps: dict[str, Prediction]) -> Prediction:
    """A case's step over one GPU; where predicting fails or kills the process, the reason."""
    if reason := not_predicted(case):
        return Prediction(case, reason=reason)
    plain = replace(case, gpus=1)
    if plain.key not in steps:
        try:
            steps[plain.key] = job.worker.predict(plain, job.progress.stage)
        except WorkerDied as death:
            job.worker.restart()
            steps[plain.key] = Prediction(plain, reason=death.reason, broke=True)
    return replace(steps[plain.key], case=case)


def _trainings(job: Job, predictions: Sequence[Prediction]) -> list[Training]:
    """A training for each prediction of a comparison, with its speed-ups."""
    known = {one.case: one.predicted for one in predictions if one.predicted}
    network = job.work.network
    found: list[Training] = []
    for one in predictions:
        case, predicted = one.case, one.predicted
        if predicted:
            others = baselines(case, list(known)).items()
            ratios = {name: known[other].step_s / predicted.step_s for name, other in others}
            predicted = replace(predicted, speedup=ratios)
        status = PREDICTED if predicted else "failed" if one.broke else "skipped"
        units = network.units_per_sample * case.batch * case.accumulate * case.gpus
        warnings = tuple(map(_warning, one.notes))
        found.append(
            Training(
                case, status, one.reason, network.unit, units, predicted=predicted,
                warnings=warnings,
            )
        )  # fmt: skip
    return found


def _warning(note: str) -> Warning:
    return Warning(
        f"the prediction was {note}",
        "fake tensors cannot trace operations whose shapes depend on values",
        "nothing to do: a real step was recorded, and its operations timed as usual",
    )
