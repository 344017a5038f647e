"""Predicts the step of a recipe fed by a loader. Pure functions.

After DS-Analyzer (Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021),
whose what-if is the slower of GPU and loader. Two terms are added: the processor time that both
share, and what they cost each other, as measured with another number of workers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from e2e.results.loader_types import Loading
from e2e.results.types import Predicted, Training
from e2e.training.speedups import LOADER_SHARE
from microbench.timing.stats import median_interval

Estimate = NDArray[np.float64]  # a value and the ends of its 95 % interval, or thrice the value


class Fed(NamedTuple):
    """A recipe's training fed by a loader, and that loader alone."""

    training: Training
    loading: Loading


def predict_together(
    pinned: Training, loading: Loading, host_s: float, cores: int, known: Fed | None = None
) -> Predicted | None:
    """The predicted step of a recipe fed by a loader, in seconds; None where either is unknown.

    `pinned` is its training on a pinned batch, `host_s` the CPU time of a step of that. The step is
    the longer of training and loading, or all their CPU time over `cores`; more, if what is `known`
    with more workers surely took more; at most one after the other. The interval is that of its
    terms, with `host_s` as given.
    """
    images = pinned.case.batch * pinned.case.accumulate  # a step's, of whatever units
    trains, loads = _step(pinned), _loads(loading, images)
    if trains is None or loads is None:
        return None
    longer = np.maximum(trains, loads) + _mutual(trains, loads, loading, known, images)
    each = [((block.cpu_s or 0.0) / block.images,) for block in loading.blocks]  # 0: not known
    cpu_s = _estimate(loading.cpu_s_per_image or 0.0, median_interval(each))
    shared = (cpu_s * images + host_s) / cores
    step = np.minimum(np.maximum(longer, shared), trains + loads)
    waits = step[0] > (1 + LOADER_SHARE) * trains[0]  # as for measured steps
    limit = "data" if waits else pinned.limit
    return Predicted(float(step[0]), (float(step.min()), float(step.max())), limit, {})


def _mutual(
    trains: Estimate, loads: Estimate, loading: Loading, known: Fed | None, images: int
) -> Estimate:
    """Seconds of a step that training and loading cost each other.

    As in the known training, in proportion to the seconds that workers load beside training. The
    value is what its step is beyond both for sure: less may be chance.
    """
    step = known and _step(known.training)
    there = known and _loads(known.loading, images)
    if known is None or step is None or there is None:
        return np.zeros(3)
    beside_s = min(trains[0], there[0])
    beyond = step[[1, 1, 2]] - np.maximum(trains, there)[[0, 2, 1]]
    share = loading.case.workers / known.loading.case.workers
    return np.clip(beyond, 0.0, beside_s) * share * min(trains[0], loads[0]) / beside_s


def _step(training: Training) -> Estimate | None:
    timed = training.timed
    return timed and _estimate(timed.median_s, timed.ci95_s)


def _loads(loading: Loading, images: int) -> Estimate | None:
    """Seconds that the loader takes for a step's images."""
    image = loading.timed
    return image and images * _estimate(image.median_s, image.ci95_s)


def _estimate(value: float, ends: tuple[float, float] | None) -> Estimate:
    low, high = ends or (value, value)
    return np.array([value, min(low, value), max(high, value)])
