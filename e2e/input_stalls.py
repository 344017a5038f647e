"""Predicts the step of a recipe fed by a loader. Pure functions.

After DS-Analyzer (Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021),
whose what-if is the slower of GPU and loader. Two terms are added: the processor time that both
share, and what they cost each other, as measured with another number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from e2e.results.loader_types import Loading
from e2e.results.types import Predicted, Training
from e2e.training.speedups import LOADER_SHARE

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
    with more workers took more; at most one after the other. The interval is that of its terms.
    """
    units = pinned.step_units
    trains, loads = _step(pinned), _loads(loading, units)
    if trains is None or loads is None:
        return None
    longer = np.maximum(trains, loads) + _mutual(trains, loads, loading, known, units)
    shared_s = ((loading.cpu_s_per_image or 0.0) * units + host_s) / cores
    step = np.minimum(np.maximum(longer, shared_s), trains + loads)
    waits = step[0] > (1 + LOADER_SHARE) * trains[0]  # as for measured steps
    limit = "data" if waits else pinned.limit or "gpu"
    return Predicted(float(step[0]), (float(step.min()), float(step.max())), limit, {})


def _mutual(
    trains: Estimate, loads: Estimate, loading: Loading, known: Fed | None, units: int
) -> Estimate:
    """Seconds of a step that training and loading cost each other.

    As in the known training, in proportion to the seconds that workers load beside training.
    """
    step = known and _step(known.training)
    loads_there = known and _loads(known.loading, units)
    if known is None or step is None or loads_there is None:
        return np.zeros(3)
    trains_s, there_s = trains[0], loads_there[0]
    beside_s = min(trains_s, there_s)
    cost = np.clip(step - max(trains_s, there_s), 0.0, beside_s)
    share = loading.case.workers / known.loading.case.workers
    return cost * share * min(trains_s, loads[0]) / beside_s


def _step(training: Training) -> Estimate | None:
    timed = training.timed
    return timed and np.array([timed.median_s, *(timed.ci95_s or 2 * (timed.median_s,))])


def _loads(loading: Loading, images: int) -> Estimate | None:
    """Seconds that the loader takes for a step's images."""
    per_s = loading.per_s
    if not per_s:
        return None
    low, high = loading.ci95_per_s or (per_s, per_s)
    return images / np.array([per_s, max(high, per_s), max(1e-9, min(low, per_s))])


def fewest_from(counts: Iterable[int], fits: Callable[[int], bool]) -> int | None:
    """The smallest of these numbers of workers from which on all fit; None if the last does not."""
    fewest: int | None = None
    for count in sorted(counts, reverse=True):
        if not fits(count):
            break
        fewest = count
    return fewest
