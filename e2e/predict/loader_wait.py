"""A step that is fed by a loader: what is foretold of it, from its operations and the loader."""

from __future__ import annotations

from dataclasses import replace

from e2e.predict.foretold import Foretold
from microbench.load_results import Loading
from microbench.train_results import Training

DATA = "data"


def with_loader(told: Foretold, loading: Loading, images: int) -> Foretold:
    """What is foretold of a step of so many images when a loader may be what it waits for."""
    predicted = told.predicted
    if predicted is None or not loading.per_s:
        return told
    load_s = images / loading.per_s
    wait_s = load_s - predicted.step_s
    if wait_s <= 0:
        return told
    low, high = loading.ci95_per_s or (loading.per_s, loading.per_s)
    ends = predicted.interval_s or (predicted.step_s, predicted.step_s)
    slower = replace(
        predicted,
        step_s=load_s,
        interval_s=(max(ends[0], images / high), max(ends[1], images / low)),
        limit=DATA,
    )
    return replace(told, predicted=slower, wait_s=wait_s)


def measured_wait_s(training: Training) -> float:
    """How much longer a measured step took because it was fed, than on a batch that was there."""
    if training.steps is None or training.steps.unfed_s is None:
        return 0.0
    return max(0.0, training.steps.median_s - training.steps.unfed_s)
