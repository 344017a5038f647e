"""Recipes x workers: what a loader leaves of each recipe, as a table and in sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from rich.text import Text

from e2e.case import TrainCase
from e2e.report.figures import limit_words
from e2e.results.baselines import BASELINES
from e2e.results.loader_types import Loading, load_case
from e2e.results.types import Training
from microbench import fmt
from microbench.payoff import MIN_GAIN
from microbench.report.table import Column, Row, Table, blank, screen
from microbench.results.types import Ratio, Run

IN_FULL = 0.95  # of a recipe's throughput without a loader


class Gain(NamedTuple):
    """How many times faster one recipe is than another, measured or predicted."""

    ratio: Ratio
    measured: bool

    @property
    def pays(self) -> bool:
        """Whether it is a gain, by more than chance where an interval is known."""
        ends = self.ratio.ci95
        return self.ratio.ratio >= MIN_GAIN and (ends is None or ends[0] > 1)


@dataclass(frozen=True)
class Joint:
    """A network fed by one loader: its trainings by recipe and number of workers, and its parts.

    `alone` are the trainings on a pinned batch (without one: on one that lies on the device), by
    recipe; `busy` those beside this number of busy workers.
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
        """In the order in which they came."""
        return list(dict.fromkeys(t.case.recipe for t in self.trainings))

    @property
    def workers(self) -> list[int]:
        """The numbers of workers, fewest first."""
        return sorted({t.case.workers for t in self.trainings})

    def at(self, recipe: str, workers: int) -> Training | None:
        """A recipe with this number of workers."""
        found = (t for t in self.trainings if (t.case.recipe, t.case.workers) == (recipe, workers))
        return next(found, None)

    @property
    def errors_pct(self) -> list[float]:
        """Of predicted throughput, where it was measured."""
        known = (throughput_error_pct(training) for training in self.trainings)
        return [error for error in known if error is not None]

    @property
    def median_error_pct(self) -> float | None:
        """The median of the errors' sizes."""
        return median(abs(e) for e in self.errors_pct) if self.errors_pct else None

    def speedup(self, recipe: str, base: str, workers: int) -> Gain | None:
        """Of a recipe over another with this number of workers, as measured where both were, else
        as predicted.
        """
        ours, theirs = self.at(recipe, workers), self.at(base, workers)
        if ours is None or theirs is None:
            return None
        if ours.per_s and theirs.per_s:
            name = next((name for name, known in BASELINES.items() if base in known), base)
            paired = ours.speedup.get(name)
            return Gain(paired or Ratio(ours.per_s / theirs.per_s, None), measured=True)
        if ours.predicted_per_s and theirs.predicted_per_s:
            ratio = ours.predicted_per_s / theirs.predicted_per_s
            return Gain(Ratio(ratio, None), measured=False)
        return None

    def pays_from(self, recipe: str, base: str) -> int | None:
        """The fewest workers from which on a recipe beats another; None when it never does."""

        def pays(count: int) -> bool:
            gain = self.speedup(recipe, base, count)
            return gain is not None and gain.pays

        return self._from(pays)

    def in_full_from(self, recipe: str) -> int | None:
        """The fewest workers that leave IN_FULL of what the recipe does without a loader."""
        alone = self.alone.get(recipe)
        if alone is None or not alone.per_s:
            return None
        wanted = IN_FULL * alone.per_s
        return self._from(lambda count: (throughput(self.at(recipe, count)) or 0.0) >= wanted)

    def _from(self, fits: Callable[[int], bool]) -> int | None:
        found: int | None = None
        for count in reversed(self.workers):
            if not fits(count):
                break
            found = count
        return found


def throughput_error_pct(training: Training) -> float | None:
    """How far its predicted throughput is above the measured one."""
    if not training.per_s or not training.predicted_per_s:
        return None
    return 100 * (training.predicted_per_s / training.per_s - 1)


def throughput(training: Training | None) -> float | None:
    """As measured, else as predicted; None where neither is known."""
    return (training.per_s or training.predicted_per_s) if training else None


def joints(run: Run) -> list[Joint]:
    """Every network, batch and loader of the run of which the recipes were measured alone too."""
    found: dict[TrainCase, list[Training]] = {}
    for training in run.of(Training):
        case = training.case
        if case.fed and not case.cached and run.find(Loading, load_case(case).key):
            found.setdefault(_family(case), []).append(training)
    pictures = [_joint(run, family, trainings) for family, trainings in found.items()]
    return [picture for picture in pictures if picture.alone]


def _joint(run: Run, family: TrainCase, trainings: Sequence[Training]) -> Joint:
    pinned, synthetic = (_without_loader(run, family, name) for name in ("pinned", "synthetic"))
    busy = {
        (t.case.recipe, t.case.workers): t
        for t in run.of(Training)
        if t.case.cached and _family(t.case) == family
    }
    loadings = [
        loading
        for loading in run.of(Loading)
        if replace(loading.case, loader="", workers=0, cold=False)
        == replace(load_case(family), loader="", cold=False)
    ]
    own = {
        loading.case.workers: loading
        for loading in loadings
        if loading.case.loader == family.loader and not loading.case.cold
    }
    others = tuple(one for one in loadings if one.case.cold or one.case.loader == "read")
    return Joint(family.loader, tuple(trainings), pinned or synthetic, synthetic, busy, own, others)


def _without_loader(run: Run, family: TrainCase, loader: str) -> dict[str, Training]:
    plain = replace(family, loader=loader, prefetch=0)
    return {t.case.recipe: t for t in run.of(Training) if _family(t.case) == plain}


def _family(case: TrainCase) -> TrainCase:
    """What trainings of one picture share."""
    return replace(case, recipe="", workers=0, cached=False, loss_scale=None)


# ---------------------------------------------------------------- the table


def joint_table(joint: Joint) -> Table[int]:
    """Workers x recipes, in images a second."""
    base, *others = joint.recipes
    return Table(
        [
            Column("workers", str, right=True, key=True),
            Column("loader\nalone", lambda count: _rate(joint.loading.get(count)), right=True,
                   drop=2),
            *(_rates_column(joint, name) for name in joint.recipes),
            *(column for name in joint.recipes for column in _apart_columns(joint, name)),
            *(_limit_column(joint, name) for name in joint.recipes),
            *(_gain_column(joint, name, base) for name in others),
        ],
        [Row(count) for count in joint.workers],
    )  # fmt: skip


def joint_lines(joint: Joint, width: int) -> list[Text]:
    """The table with its notes; pairs are predicted / measured."""
    shown = screen(joint_table(joint), width)
    return [*shown.lines, *(Text(line, "dim") for line in _notes(joint))]


def _rates_column(joint: Joint, name: str) -> Column[int]:
    """On the screen, as a pair."""
    title = f"{fmt.clean(name)}\nimg/s"
    return Column(title, lambda count: _rates(joint.at(name, count)), right=True, markdown=blank)


def _apart_columns(joint: Joint, name: str) -> list[Column[int]]:
    """In Markdown: predicted, measured, and the error."""

    def predicted(count: int) -> str:
        arm = joint.at(name, count)
        return fmt.throughput(arm.predicted_per_s) if arm and arm.predicted_per_s else ""

    def off(count: int) -> str:
        arm = joint.at(name, count)
        error = throughput_error_pct(arm) if arm else None
        return fmt.signed_pct(error) if error is not None else ""

    return [
        Column(f"{fmt.clean(name)}, foretold", markdown=predicted, right=True),
        Column("measured", markdown=lambda count: _rate(joint.at(name, count)), right=True),
        Column("error", markdown=off, right=True),
    ]


def _limit_column(joint: Joint, name: str) -> Column[int]:
    def limit(count: int) -> str:
        arm = joint.at(name, count)
        return limit_words(arm) if arm else ""

    return Column(f"{fmt.clean(name)}\nlimited by", limit, drop=1)


def _gain_column(joint: Joint, name: str, base: str) -> Column[int]:
    title = f"{fmt.clean(name)}\nx {fmt.clean(base)}"
    return Column(title, lambda count: _gain(joint.speedup(name, base, count)), right=True)


def _rate(measured: Training | Loading | None) -> str:
    return fmt.throughput(measured.per_s) if measured and measured.per_s else ""


def _rates(arm: Training | None) -> str:
    if arm is None:
        return ""
    predicted = fmt.throughput(arm.predicted_per_s) if arm.predicted_per_s else ""
    if arm.status == "failed":
        return f"{predicted} / failed" if predicted else "failed"
    return f"{predicted or '-'} / {_rate(arm)}" if arm.per_s else predicted or "-"


def _gain(gain: Gain | None) -> str:
    """ "2.00 ±0.03" where it was measured, "(2.00)" where it is predicted, "" where neither."""
    if gain is None:
        return ""
    return fmt.interval(gain.ratio) if gain.measured else f"({fmt.short_ratio(gain.ratio)})"


def _notes(joint: Joint) -> list[str]:
    notes = ["two values: predicted / measured; one, or one in brackets: predicted"]
    failed: dict[str, list[str]] = {}
    for t in joint.trainings:
        if t.status == "failed":
            name = f"{fmt.clean(t.case.recipe)} with {fmt.count(t.case.workers, 'worker')}"
            failed.setdefault(fmt.clean(t.reason or ""), []).append(name)
    notes += [f"{fmt.listed(names)} failed: {reason}" for reason, names in failed.items()]
    errors = joint.errors_pct
    if errors:
        median_pct = joint.median_error_pct or 0.0
        worst = max(errors, key=abs)
        notes.append(
            f"error of the prediction: median {median_pct:.1f} %, largest {worst:+.1f} %, of "
            f"{fmt.count(len(errors), 'point')}"
        )
    return notes


def joint_sentences(joint: Joint) -> list[str]:
    """What the picture means."""
    base, *others = joint.recipes
    most = joint.workers[-1]
    said: list[str] = []
    for name in others:
        said += _pays(joint, name, base, most)
    for name in joint.recipes:
        said += _in_full(joint, name, most)
    return [*said, *_parts(joint, most)]


def _pays(joint: Joint, name: str, base: str, most: int) -> list[str]:
    low, high = fmt.clean(name), fmt.clean(base)
    start = joint.pays_from(name, base)
    if start is None:
        only = _times(joint.speedup(name, base, most), high, most)
        return [f"{low} never pays with this loader{only}."]
    there = _times(joint.speedup(name, base, start), high, start)
    if start == joint.workers[0]:
        return [f"{low} pays with every number of workers{there}."]
    return [f"{low} stops paying below {fmt.count(start, 'worker')}{there}."]


def _times(gain: Gain | None, base: str, workers: int) -> str:
    """ ": 2.00 ±0.03 times fp32 with 4 workers (measured)"; "" when not known."""
    if gain is None:
        return ""
    known = fmt.interval(gain.ratio) if gain.ratio.ci95 else fmt.short_ratio(gain.ratio)
    source = "measured" if gain.measured else "foretold"
    return f": {known} times {base} with {fmt.count(workers, 'worker')} ({source})"


def _in_full(joint: Joint, name: str, most: int) -> list[str]:
    alone, recipe = joint.alone.get(name), fmt.clean(name)
    if alone is None or not alone.per_s:
        return []
    start = joint.in_full_from(name)
    share = f"{IN_FULL:.0%}"
    if start is not None:
        return [
            f"{recipe} trains {fmt.throughput(alone.per_s)} img/s without a loader; "
            f"{fmt.count(start, 'worker')} leave {share} of it."
        ]
    left = throughput(joint.at(recipe, most))
    share_left = f": {most} leave {left / alone.per_s:.0%}" if left else ""
    return [
        f"{recipe} trains {fmt.throughput(alone.per_s)} img/s without a loader; no number of "
        f"workers leaves {share} of it{share_left}."
    ]


def _parts(joint: Joint, most: int) -> list[str]:
    """What each part costs, by difference."""
    said: list[str] = []
    for name in joint.recipes:
        pinned, synthetic = joint.alone.get(name), joint.synthetic.get(name)
        busy = joint.busy.get((name, most))
        if pinned is None or synthetic is None or pinned is synthetic:
            continue
        if not (pinned.step_s and synthetic.step_s):
            continue
        copy = 100 * (pinned.step_s / synthetic.step_s - 1)
        text = f"  {fmt.clean(name)}: copying and normalising a batch {copy:+.1f} % of a step"
        if busy and busy.step_s:
            slower = 100 * (busy.step_s / pinned.step_s - 1)
            text += f", {fmt.count(most, 'busy worker')} beside it {slower:+.1f} %"
        said.append(text + ".")
    return [*said, *_files(joint)]


def _files(joint: Joint) -> list[str]:
    rates = {(one.case.loader, one.case.cold): one.per_s for one in joint.others if one.per_s}
    said: list[str] = []
    for cold in (False, True):
        read = rates.get(("read", cold))
        if read:
            where = "from the disk" if cold else "from memory"
            said.append(f"  reading alone {where}: {fmt.throughput(read)} img/s.")
    loaded = rates.get((joint.loader, True))
    if loaded:
        said.append(
            f"  with files that are not in memory the loader gives {fmt.throughput(loaded)} img/s."
        )
    return said
