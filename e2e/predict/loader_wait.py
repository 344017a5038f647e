"""The predicted step of a training that is fed by a loader."""

from __future__ import annotations

from dataclasses import replace

from e2e.predict.prediction import Prediction
from e2e.results.loader_types import Loading
from e2e.results.types import Training

DATA = "data"


def with_loader(
    prediction: Prediction, loading: Loading, images: int, *, on_gpu: bool
) -> Prediction:
    """The prediction of a step of `images` images when a loader feeds it.

    The slower of both decides. A loader that makes batches `on_gpu` takes time of the device that
    the step needs; how much is not known, so the interval reaches to one after the other.
    """
    predicted = prediction.predicted
    if predicted is None or not loading.per_s:
        return prediction
    load_s = images / loading.per_s
    low, high = loading.ci95_per_s or (loading.per_s, loading.per_s)
    ends = predicted.interval_s or (predicted.step_s, predicted.step_s)
    longest_s = ends[1] + images / low if on_gpu else max(ends[1], images / low)
    both = replace(
        predicted,
        step_s=max(predicted.step_s, load_s),
        interval_s=(max(ends[0], images / high), longest_s),
        limit=DATA if load_s > predicted.step_s else predicted.limit,
    )
    return replace(prediction, predicted=both, wait_s=max(0.0, load_s - predicted.step_s))


def measured_wait_s(training: Training) -> float:
    """How much longer a measured step took because it was fed, than on a batch that was there."""
    if training.steps is None or training.steps.unfed_s is None:
        return 0.0
    return max(0.0, training.steps.median_s - training.steps.unfed_s)
