"""Recipes x workers: each recipe's throughput with a loader, from the run's results.

Pure functions of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from e2e.case import TrainCase
from e2e.results.baselines import BASELINES, by_the_wall
from e2e.results.loader_types import Loading, load_case
from e2e.results.types import Training
from microbench.break_even import MIN_GAIN
from microbench.results.types import Ratio, Run

IN_FULL = 0.95  # of a recipe's throughput without a loader


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
