"""Predicts the step of a recipe fed by a loader, and picks the numbers of workers to measure.

Input: measurements of recipe and loader alone. Pure functions.

After DS-Analyzer (Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021),
whose what-if is the slower of GPU and loader. Three terms are added: what busy workers cost the
training beside them, what the training costs the loader, and the processor time that both share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from e2e.explain.joint import fewest_from
from e2e.results.loader_types import Loading
from e2e.results.types import Predicted, Training
from e2e.training.speedups import FED_SHARE
from microbench.break_even import MIN_GAIN


class Estimate(NamedTuple):
    """A value and the ends of its 95 % interval (the value itself where there is none)."""

    value: float
    low: float
    high: float


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
    pinned = _step(alone.pinned)
    load = _loads(loading, alone.pinned.step_units)
    if pinned is None or load is None:
        return None
    workers = loading.case.workers
    busy = _beside(alone, workers, pinned)
    slowed = _slowed(alone, loading, workers)
    cpu_s = (loading.cpu_s_per_image or 0.0) * alone.pinned.step_units
    shared_s = (cpu_s + alone.host_s) / cores
    beside = Estimate(*(_loaded(p, s, slowed) for p, s in zip(pinned, load, strict=True)))
    in_turn = [p + s for p, s in zip(pinned, load, strict=True)]
    parts = zip(pinned, busy, beside, in_turn, strict=True)
    steps = [_together(*part, shared_s) for part in parts]
    waits = steps[0] > (1 + FED_SHARE) * pinned.value  # as for measured steps
    limit = "data" if waits else alone.pinned.limit or "gpu"
    return Predicted(steps[0], (min(steps), max(steps)), limit, {})


def _together(
    pinned_s: float, busy_s: float, load_s: float, in_turn_s: float, shared_s: float
) -> float:
    """Step seconds: workers that the step waits for are always busy, others only in proportion.

    However they slow each other, both together take no longer than one after the other.
    """
    at_work = min(1.0, load_s / pinned_s)
    side_by_side_s = max(pinned_s + at_work * (busy_s - pinned_s), load_s)
    return max(min(side_by_side_s, in_turn_s), shared_s)


def _loaded(pinned_s: float, load_s: float, slowed: float) -> float:
    """Seconds of loading beside a training that itself is busy only part of the time."""
    return load_s + (slowed - 1) * min(load_s, pinned_s)


def _beside(alone: Alone, workers: int, pinned: Estimate) -> Estimate:
    """The step beside `workers` busy workers: interpolated between the measured numbers."""
    known = {0: pinned}
    known |= {count: step for count, one in alone.busy.items() if (step := _step(one)) is not None}
    parts = ({count: step[i] for count, step in known.items()} for i in range(len(pinned)))
    return Estimate(*(_between(part, workers) for part in parts))


def _slowed(alone: Alone, loading: Loading, workers: int) -> float:
    """How many times longer loading takes beside the training (a ratio of at least 1).

    Interpolated between the measured numbers of workers; 1 at no workers.
    """
    known = {0: 1.0}
    for count, one in alone.busy.items():
        beside = one.steps.loaded_per_s if one.steps else None
        own = alone.loadings.get(count, loading if count == workers else None)
        if beside and own and own.per_s:
            known[count] = max(1.0, own.per_s / beside)
    return _between(known, workers)


def _between(known: Mapping[int, float], at: int) -> float:
    """The value at `at`, interpolated linearly; beyond the ends, the last value."""
    places = sorted(known)
    return float(np.interp(at, places, [known[place] for place in places]))


def _step(training: Training) -> Estimate | None:
    timed = training.timed
    return Estimate(timed.median_s, *(timed.ci95_s or 2 * (timed.median_s,))) if timed else None


def _loads(loading: Loading, images: int) -> Estimate | None:
    """Seconds that the loader takes for a step's images."""
    per_s = loading.per_s
    if not per_s:
        return None
    low, high = loading.ci95_per_s or (per_s, per_s)
    return Estimate(images / per_s, images / max(high, per_s), images / max(1e-9, min(low, per_s)))


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
    """Numbers of workers to measure: both ends, and both sides of the break-even.

    `speedups` are predicted, by number of workers.
    """
    counts = sorted(speedups)
    if not counts:
        return []
    chosen = {counts[0], counts[-1]}
    start = pays_from(speedups)
    if start is not None:
        at = counts.index(start)
        chosen |= {counts[max(0, at - 1)], start}
    return sorted(chosen)


def pays_from(speedups: Mapping[int, float]) -> int | None:
    """The fewest workers from which on every speed-up is at least MIN_GAIN (a ratio); None for
    none.
    """
    return fewest_from(speedups, lambda count: speedups[count] >= MIN_GAIN)
