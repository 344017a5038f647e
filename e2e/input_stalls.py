"""Predicts the step of a recipe fed by a loader, and picks the numbers of workers to measure.

Input: measurements of recipe and loader alone. Pure functions.

After DS-Analyzer (Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021),
whose what-if is the slower of GPU and loader. Three terms are added: what busy workers cost the
training beside them, what the training costs the loader, and the processor time that both share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from e2e.results.loader_types import Loading
from e2e.results.types import Predicted, Training
from e2e.training.speedups import LOADER_SHARE
from microbench.verdict import MIN_GAIN

Estimate = NDArray[np.float64]  # a value and the ends of its 95 % interval, or thrice the value


@dataclass(frozen=True)
class Alone:
    """One recipe measured without waiting for a loader; times in seconds per step.

    `pinned` is its training on a pinned batch; `busy`, by number of workers, the same while workers
    load batches that are discarded. `loadings` are those loaders without training. `host_s` is the
    CPU time of the training itself.
    """

    pinned: Training
    busy: Mapping[int, Training] = field(default_factory=dict[int, Training])
    host_s: float = 0.0
    loadings: Mapping[int, Loading] = field(default_factory=dict[int, Loading])


def predict_together(alone: Alone, loading: Loading, cores: int) -> Predicted | None:
    """The predicted step of a recipe fed by a loader, in seconds; None where either is unknown.

    It is the greatest of: training beside busy workers, loading beside training (both together at
    most one after the other), and all their CPU time over `cores`. The interval is that of its
    terms.
    """
    units, workers = alone.pinned.step_units, loading.case.workers
    pinned, load = _step(alone.pinned), _loads(loading, units)
    if pinned is None or load is None:
        return None
    steps = {count: step for count, t in alone.busy.items() if (step := _step(t)) is not None}
    busy = _between({0: pinned} | steps, workers)
    # The training itself is busy only part of the time.
    loads = load + (_slowed(alone, loading) - 1) * np.minimum(load, pinned)
    # Workers that the step waits for are always busy, others only in proportion.
    fed = pinned + np.minimum(1.0, loads / pinned) * (busy - pinned)
    shared_s = ((loading.cpu_s_per_image or 0.0) * units + alone.host_s) / cores
    # However they slow each other, both together take no longer than one after the other.
    estimate = np.maximum(np.minimum(np.maximum(fed, loads), pinned + load), shared_s)
    waits = estimate[0] > (1 + LOADER_SHARE) * pinned[0]  # as for measured steps
    limit = "data" if waits else alone.pinned.limit or "gpu"
    return Predicted(float(estimate[0]), (float(estimate.min()), float(estimate.max())), limit, {})


def _slowed(alone: Alone, loading: Loading) -> float:
    """How many times longer loading takes beside the training (a ratio of at least 1).

    Interpolated between the measured numbers of workers; 1 at no workers.
    """
    workers = loading.case.workers
    known = {0: np.ones(1)}
    for count, training in alone.busy.items():
        beside = training.steps.loaded_per_s if training.steps else None
        own = alone.loadings.get(count, loading if count == workers else None)
        if beside and own and own.per_s:
            known[count] = np.array([max(1.0, own.per_s / beside)])
    return float(_between(known, workers)[0])


def _between(known: Mapping[int, Estimate], at: int) -> Estimate:
    """The values at `at`, interpolated linearly; beyond the ends, the last values."""
    places = sorted(known)
    rows = zip(*(known[place] for place in places), strict=True)
    return np.array([np.interp(at, places, row) for row in rows])


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


# ---------------------------------------------------------------- points to measure


def busy_points(workers: Sequence[int]) -> list[int]:
    """Numbers of workers to keep busy beside a training: the greatest, and the one nearest half of
    it.
    """
    counts = sorted({count for count in workers if count > 0})
    if not counts:
        return []
    half = min(counts, key=lambda count: abs(count - counts[-1] / 2))
    return sorted({half, counts[-1]})


def measured_points(speedups: Mapping[int, float]) -> list[int]:
    """Numbers of workers to measure: the greatest, and both sides of the break-even.

    Without a break-even, both ends.

    `speedups` are predicted, by number of workers.
    """
    counts = sorted(speedups)
    if not counts:
        return []
    start = pays_from(speedups)
    if start is None:
        return sorted({counts[0], counts[-1]})
    at = counts.index(start)
    return sorted({counts[max(0, at - 1)], start, counts[-1]})


def pays_from(speedups: Mapping[int, float]) -> int | None:
    """The fewest workers from which on every speed-up is at least MIN_GAIN (a ratio); None for
    none.
    """
    return fewest_from(speedups, lambda count: speedups[count] >= MIN_GAIN)


def fewest_from(counts: Iterable[int], fits: Callable[[int], bool]) -> int | None:
    """The smallest of these numbers of workers from which on all fit; None if the last does not."""
    fewest: int | None = None
    for count in sorted(counts, reverse=True):
        if not fits(count):
            break
        fewest = count
    return fewest
