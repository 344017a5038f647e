"""Recipes x workers of a run: what was measured and predicted, as a table and in sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import NamedTuple

from e2e.case import TrainCase
from e2e.input_stalls import fewest_from
from e2e.report.arms import SHORT_MARK, SHORT_NOTE, SHORT_WORDS, grouped, is_short
from e2e.report.figures import bottleneck_of
from e2e.results.baselines import BASELINES, by_the_wall
from e2e.results.loader_types import Loading, load_case
from e2e.results.types import Training
from microbench import fmt
from microbench.report.table import Column, Part, Row, Table
from microbench.results.types import Ratio, Run
from microbench.verdict import MIN_GAIN

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
        known = map(_error_pct, self.trainings)
        return [error for error in known if error is not None]

    def title(self, recipe: str, short: str = SHORT_WORDS) -> str:
        """A recipe that others are held against; `short` follows as in `View.title`."""
        return fmt.clean(recipe) + short * is_short(recipe, self.trainings)

    def per_s(self, recipe: str, workers: int) -> float:
        """Units per second as measured, else as predicted; 0 if neither is known."""
        training = self.at(recipe, workers)
        return (training and (training.per_s or training.predicted_per_s)) or 0.0

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
        return fewest_from(self.workers, lambda count: self.per_s(recipe, count) >= wanted)


def joints(run: Run) -> list[Joint]:
    """Each network, batch and loader of the run whose recipes were also measured alone."""
    fed = grouped(
        (_family(t.case), t)
        for t in run.of(Training)
        if t.case.fed and not t.case.cached and run.find(Loading, load_case(t.case).key)
    )
    known = (_joint(run, family, trainings) for family, trainings in fed.items())
    return [joint for joint in known if joint.alone]


def _joint(run: Run, family: TrainCase, trainings: list[Training]) -> Joint:
    def by_recipe(loader: str) -> dict[str, Training]:
        plain = replace(family, loader=loader, prefetch=0)
        return {t.case.recipe: t for t in run.of(Training) if _family(t.case) == plain}

    loadings = [
        loading
        for loading in run.of(Loading)
        if replace(loading.case, loader="", workers=0, cold=False)
        == replace(load_case(family), loader="", cold=False)
    ]
    own = [one for one in loadings if one.case.loader == family.loader and not one.case.cold]
    busy = [t for t in run.of(Training) if t.case.cached and _family(t.case) == family]
    synthetic = by_recipe("synthetic")
    return Joint(
        family.loader,
        tuple(trainings),
        alone=by_recipe("pinned") or synthetic,
        synthetic=synthetic,
        busy={(t.case.recipe, t.case.workers): t for t in busy},
        loading={loading.case.workers: loading for loading in own},
        others=tuple(one for one in loadings if one.case.cold or one.case.loader == "read"),
    )


def _family(case: TrainCase) -> TrainCase:
    """What trainings of one picture share."""
    return replace(case, recipe="", workers=0, cached=False, loss_scale=None)


# ---------------------------------------------------------------- the table


def joint_title(joint: Joint) -> str:
    """The network, batch size and loader of all its trainings."""
    case = joint.trainings[0].case
    return f"{fmt.clean(case.network)}, batch {case.batch}, loader {fmt.clean(joint.loader)}"


def joint_table(joint: Joint) -> Table[int]:
    """Workers x recipes, in images per second."""
    base, *others = joint.recipes

    def cell(name: str, read: Callable[[Training], str]) -> Callable[[int], str]:
        """What a recipe's training with a number of workers says; "" where there is none."""
        return lambda count: read(arm) if (arm := joint.at(name, count)) else ""

    columns: list[Column[int]] = [
        Column("workers", str, right=True, key=True),
        Column("loader\nalone", lambda count: _rate(joint.loading.get(count)), right=True, drop=3),
    ]
    columns += [
        Column(f"{fmt.clean(name)}\nimg/s", cell(name, _rates), right=True)
        for name in joint.recipes
    ]
    columns += [
        Column(f"{fmt.clean(name)}\nbottleneck", cell(name, bottleneck_of), drop=2)
        for name in joint.recipes
    ]
    for name in others:
        gain = partial(joint.speedup, name, base)
        title = f"{fmt.clean(name)}\nx {joint.title(base, SHORT_MARK)}"
        columns.append(Column(title, partial(_gain_cell, gain), right=True, drop=1))
    return Table(columns, [Row(count) for count in joint.workers])


def joint_part(joint: Joint) -> Part:
    """The table with its notes; pairs are predicted / measured."""
    return Part(f"Together: {joint_title(joint)}", joint_table(joint), _notes(joint))


def _point(training: Training) -> str:
    return f"{fmt.clean(training.case.recipe)} with {fmt.count(training.case.workers, 'worker')}"


def _error_pct(arm: Training) -> float | None:
    """The error of predicted throughput in per cent (positive: too high); None if not known."""
    if not arm.per_s or not arm.predicted_per_s:
        return None
    return 100 * (arm.predicted_per_s / arm.per_s - 1)


def _predicted(arm: Training) -> str:
    return fmt.throughput(arm.predicted_per_s) if arm.predicted_per_s else ""


def _rate(measured: Training | Loading | None) -> str:
    return fmt.throughput(measured.per_s) if measured and measured.per_s else ""


def _rates(arm: Training) -> str:
    """ "2,000 / 1,960": predicted / measured."""
    predicted = _predicted(arm)
    if arm.status == "failed":
        return f"{predicted} / failed" if predicted else "failed"
    return f"{predicted or '-'} / {_rate(arm)}" if arm.per_s else predicted or "-"


def _gain_cell(gain_with: Callable[[int], Gain | None], workers: int) -> str:
    """ "2.00 ±0.03" where it was measured, "(2.00)" where it is predicted, "" where neither."""
    gain = gain_with(workers)
    if gain is None:
        return ""
    return fmt.interval(gain.ratio) if gain.measured else f"({fmt.short_ratio(gain.ratio)})"


def _notes(joint: Joint) -> list[str]:
    notes = [
        "two values: predicted / measured, by the wall clock; one value, or one in brackets: "
        "predicted"
    ]
    notes += [SHORT_NOTE] * is_short(joint.recipes[0], joint.trainings)
    lost = [t for t in joint.trainings if t.status == "failed"]
    failed = grouped((fmt.clean(t.reason or ""), _point(t)) for t in lost)
    notes += [f"{fmt.listed(names)} failed: {reason}" for reason, names in failed.items()]
    if errors := joint.errors_pct:
        notes.append(
            f"prediction error: median {median(map(abs, errors)):.1f} %, largest "
            f"{max(errors, key=abs):+.1f} %, over {fmt.count(len(errors), 'point')}"
        )
    return notes


def joint_sentences(joint: Joint) -> list[str]:
    """The results in sentences."""
    base, *others = joint.recipes
    most = joint.workers[-1]
    return [
        *(_pays(joint, name, base, most) for name in others),
        *(said for name in joint.recipes if (said := _in_full(joint, name, most))),
        *_parts(joint, most),
    ]


def _pays(joint: Joint, name: str, base: str, most: int) -> str:
    low, high = fmt.clean(name), joint.title(base)
    start = joint.pays_from(name, base)
    if start is None:
        only = _times(joint.speedup(name, base, most), high, most)
        return f"{low} is not faster at any number of workers tried{only}."
    there = _times(joint.speedup(name, base, start), high, start)
    if start == joint.workers[0]:
        return f"{low} is faster at every number of workers tried{there}."
    return f"{low} needs {fmt.count(start, 'worker')} to be faster{there}."


def _times(gain: Gain | None, base: str, workers: int) -> str:
    """ ": 2.00 ±0.03 times fp32 with 4 workers (measured)"; "" when not known."""
    if gain is None:
        return ""
    known = fmt.interval(gain.ratio) if gain.ratio.ci95 else fmt.short_ratio(gain.ratio)
    source = "measured" if gain.measured else "predicted"
    return f": {known} times {base} with {fmt.count(workers, 'worker')} ({source})"


def _in_full(joint: Joint, name: str, most: int) -> str:
    alone, recipe = joint.alone.get(name), fmt.clean(name)
    if alone is None or not alone.per_s:
        return ""
    start, share = joint.in_full_from(name), f"{IN_FULL:.0%}"
    text = f"{recipe} trains {fmt.throughput(alone.per_s)} img/s without a loader; "
    if start is not None:
        return f"{text}{fmt.count(start, 'worker')} reach {share} of it."
    left = joint.per_s(name, most)
    share_left = f": {most} reach {left / alone.per_s:.0%}" if left else ""
    return f"{text}no number of workers reaches {share} of it{share_left}."


def _parts(joint: Joint, most: int) -> list[str]:
    """What copying and busy workers cost, by difference; and how fast files are read."""
    said: list[str] = []
    for name in joint.recipes:
        pinned, synthetic = joint.alone.get(name), joint.synthetic.get(name)
        busy = joint.busy.get((name, most))
        if pinned is None or synthetic is None or pinned is synthetic:
            continue
        if not (pinned.step_s and synthetic.step_s):
            continue
        copy = 100 * (pinned.step_s / synthetic.step_s - 1)
        text = f"{fmt.clean(name)}: copying and normalising a batch adds {copy:+.1f} % to a step"
        if busy and busy.step_s:
            slower = 100 * (busy.step_s / pinned.step_s - 1)
            text += f", {fmt.count(most, 'busy worker')} {slower:+.1f} %"
        said.append(text)
    rates = {(one.case.loader, one.case.cold): one.per_s for one in joint.others if one.per_s}
    for cold, where in ((False, "from the page cache"), (True, "from disk")):
        if read := rates.get(("read", cold)):
            said.append(f"Reading files {where}, without decoding: {fmt.throughput(read)} img/s")
    if loaded := rates.get((joint.loader, True)):
        said.append("With files that are not in the page cache the loader delivers "
                    f"{fmt.throughput(loaded)} img/s")  # fmt: skip
    return [f"  {text}." for text in said]
