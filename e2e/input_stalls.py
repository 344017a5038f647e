"""Predicts the step of a recipe fed by a loader, and picks the numbers of workers to measure.

Input: measurements of recipe and loader alone. Pure functions.

After DS-Analyzer (Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021),
whose what-if is the slower of GPU and loader. Three terms are added: what busy workers cost the
training beside them, what the training costs the loader, and the processor time that both share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

import numpy as np

from e2e.case import TrainCase
from e2e.results.baselines import BASELINES, by_the_wall
from e2e.results.loader_types import Loading, load_case
from e2e.results.types import Predicted, Training
from e2e.training.speedups import FED_SHARE
from microbench.break_even import MIN_GAIN
from microbench.results.types import Ratio, Run

IN_FULL = 0.95  # of a recipe's throughput without a loader


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


# ---------------------------------------------------------------- recipes x workers of a run


class Gain(NamedTuple):
    """How many times faster one recipe is than another (a ratio), measured or predicted."""

    ratio: Ratio
    measured: bool

    @property
    def pays(self) -> bool:
        """Whether the ratio is at least MIN_GAIN and its interval, if known, is above 1."""
        ends = self.ratio.ci95
        return self.ratio.ratio >= MIN_GAIN and (ends is None or ends[0] > 1)


@dataclass(frozen=True)
class Joint:
    """A network fed by one loader: its trainings by recipe and number of workers, and its parts.

    `alone` are the trainings on a pinned batch (else on one that stays on the device), by recipe;
    `busy` those beside this number of busy workers.
    """

    loader: str
    trainings: tuple[Training, ...]
    alone: dict[str, Training]
    synthetic: dict[str, Training]
    busy: dict[tuple[str, int], Training]
    loading: dict[int, Loading]
    others: tuple[Loading, ...]  # cold files, and reading alone

    @property
    def recipes(self) -> list[str]:
        """The recipes, in order of appearance."""
        return list(dict.fromkeys(t.case.recipe for t in self.trainings))

    @property
    def workers(self) -> list[int]:
        """The numbers of workers, ascending."""
        return sorted({t.case.workers for t in self.trainings})

    def at(self, recipe: str, workers: int) -> Training | None:
        """The training of a recipe with this number of workers."""
        found = (t for t in self.trainings if (t.case.recipe, t.case.workers) == (recipe, workers))
        return next(found, None)

    @property
    def errors_pct(self) -> list[float]:
        """Errors of predicted throughput in per cent, where it was measured."""
        known = map(throughput_error_pct, self.trainings)
        return [error for error in known if error is not None]

    @property
    def median_error_pct(self) -> float | None:
        """The median absolute error in per cent; None without measurements."""
        return median(map(abs, self.errors_pct)) if self.errors_pct else None

    def speedup(self, recipe: str, base: str, workers: int) -> Gain | None:
        """The speed-up of a recipe over another with this number of workers; None if unknown.

        Measured if both were, else predicted.
        """
        ours, theirs = self.at(recipe, workers), self.at(base, workers)
        if ours is None or theirs is None:
            return None
        if ours.per_s and theirs.per_s:
            name = next((name for name, known in BASELINES.items() if base in known), base)
            paired = ours.speedup.get(name, Ratio(ours.per_s / theirs.per_s, None))
            return Gain(by_the_wall(paired, theirs, ours), measured=True)
        if ours.predicted_per_s and theirs.predicted_per_s:
            ratio = ours.predicted_per_s / theirs.predicted_per_s
            return Gain(Ratio(ratio, None), measured=False)
        return None

    def pays_from(self, recipe: str, base: str) -> int | None:
        """The fewest workers from which on a recipe is faster than another; None if it never is."""

        def pays(count: int) -> bool:
            gain = self.speedup(recipe, base, count)
            return gain is not None and gain.pays

        return fewest_from(self.workers, pays)

    def in_full_from(self, recipe: str) -> int | None:
        """The fewest workers at which a recipe has IN_FULL of its throughput without a loader."""
        alone = self.alone.get(recipe)
        if alone is None or not alone.per_s:
            return None
        wanted = IN_FULL * alone.per_s
        return fewest_from(
            self.workers, lambda count: (throughput(self.at(recipe, count)) or 0.0) >= wanted
        )


def fewest_from(counts: Iterable[int], fits: Callable[[int], bool]) -> int | None:
    """The smallest of these numbers of workers from which on all fit; None if the last does not."""
    found: int | None = None
    for count in sorted(counts, reverse=True):
        if not fits(count):
            break
        found = count
    return found


def throughput_error_pct(training: Training) -> float | None:
    """The error of predicted throughput in per cent (positive: too high); None if not known."""
    if not training.per_s or not training.predicted_per_s:
        return None
    return 100 * (training.predicted_per_s / training.per_s - 1)


def throughput(training: Training | None) -> float | None:
    """Units per second as measured, else as predicted; None if neither is known."""
    return (training.per_s or training.predicted_per_s) if training else None


def joints(run: Run) -> list[Joint]:
    """Each network, batch and loader of the run whose recipes were also measured alone."""
    found: dict[TrainCase, list[Training]] = {}
    for training in run.of(Training):
        case = training.case
        if case.fed and not case.cached and run.find(Loading, load_case(case).key):
            found.setdefault(_family(case), []).append(training)
    known = (_joint(run, family, tuple(trainings)) for family, trainings in found.items())
    return [joint for joint in known if joint.alone]


def _joint(run: Run, family: TrainCase, trainings: tuple[Training, ...]) -> Joint:
    def by_recipe(loader: str) -> dict[str, Training]:
        plain = replace(family, loader=loader, prefetch=0)
        return {t.case.recipe: t for t in run.of(Training) if _family(t.case) == plain}

    loadings = [
        loading
        for loading in run.of(Loading)
        if replace(loading.case, loader="", workers=0, cold=False)
        == replace(load_case(family), loader="", cold=False)
    ]
    synthetic = by_recipe("synthetic")
    return Joint(
        family.loader,
        trainings,
        alone=by_recipe("pinned") or synthetic,
        synthetic=synthetic,
        busy={
            (t.case.recipe, t.case.workers): t
            for t in run.of(Training)
            if t.case.cached and _family(t.case) == family
        },
        loading={
            loading.case.workers: loading
            for loading in loadings
            if loading.case.loader == family.loader and not loading.case.cold
        },
        others=tuple(one for one in loadings if one.case.cold or one.case.loader == "read"),
    )


def _family(case: TrainCase) -> TrainCase:
    """What trainings of one picture share."""
    return replace(case, recipe="", workers=0, cached=False, loss_scale=None)
