"""The trainings of a run, grouped as they were timed interleaved, and a name for each.

Each setting is shown once: in the header when all trainings share it, above a group when it differs
between groups only, in a variant's name when it differs within a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from operator import attrgetter
from typing import TypeVar

from e2e.case import SHORT, VARIED, TrainCase, label_of
from e2e.results.baselines import BASELINES, Scaling
from e2e.results.ledger import OF_IDLING, explained, ledger
from e2e.results.loader_types import Loading
from e2e.results.types import PREDICTED, Training
from microbench import fmt
from microbench.results.types import Run

LADDER = ("previous", "first")
TOOK_FP8_FOR_FLOAT32 = "GEMMs and convolutions still in float32"  # a cause in older files
GENERATED = ("synthetic", "generated", "made")  # data that were not collected
OPTIONS = tuple(name for name in VARIED if name != "recipe")
OF_LOADING = ("loader", "workers", "cached", "cold", "prefetch")
OF_RECIPE = ("loss_scale", "keep_batchnorm_fp32")  # options that are part of the arithmetic
RANGES = {"batch": "batch {}..{}", "gpus": "{}..{} GPUs"}  # of settings that differ
PLACES = ("network", "batch", "gpus")  # which most often tell groups apart
SHORT_MARK = "¹"  # of what is compared with a float32 whose algorithms were searched briefly
SHORT_WORDS = " by a short search"
SHORT_NOTE = (
    f"{SHORT_MARK}{SHORT_WORDS}: fp32 may be up to 7 % slower than with --search full, and these "
    "ratios as much too high"
)
SETTINGS = tuple(field.name for field in fields(TrainCase) if field.name != "recipe")

K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, keys in order of appearance."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def in_words(case: TrainCase, names: Sequence[str]) -> list[str]:
    """These settings of a case, usual values left out: ["batch 256", "nhwc"]."""
    return [text for name in names if (text := fmt.clean(label_of(case, name)))]


@dataclass(frozen=True)
class Group:
    """Variants that were timed interleaved; `title` has the settings that distinguish them."""

    title: str
    variants: tuple[Training, ...]

    @property
    def case(self) -> TrainCase:
        """A case of the group, for the settings that its variants share."""
        return self.variants[0].case

    @property
    def ruined_pct(self) -> float:
        """Half of its widest interval in per cent, where that is too wide for a verdict; else 0."""
        ratios = [ratio for t in self.variants for ratio in t.speedup.values()]
        return max([t.ruined_pct for t in self.variants] + [ratio.ruined_pct for ratio in ratios])

    @property
    def taught_nothing(self) -> bool:
        """Whether no recipe converged of several that were all judged, or none that did is above
        those at chance level: accuracies, less and more their deviations, overlap.
        """
        timed = [t for t in self.variants if t.steps]
        lost = [t for t in timed if t.converged is False]
        won = [t for t in timed if t.converged]
        if not won:
            judged = all(t.converged is False or t.convergence for t in timed)
            return bool(lost) and judged and len(timed) > 1
        at_chance = [
            sum(t.accuracy) for t in lost
            if t.accuracy and t.chance and t.accuracy[0] - 2 * t.accuracy[1] <= t.chance
        ]  # fmt: skip
        least = [t.accuracy[0] - t.accuracy[1] if t.accuracy else math.inf for t in won]
        return bool(at_chance) and max(least) <= max(at_chance)


@dataclass(frozen=True)
class View:
    """All groups of a run; `within` are the settings that differ inside a group."""

    groups: tuple[Group, ...]
    within: tuple[str, ...]

    def label(self, training: Training) -> str:
        """The variant in few words: its rung, or its recipe and settings ("amp nhwc +compile")."""
        if training.rung is not None:
            rung = fmt.clean(training.rung)
            start = any(group.variants[0].case.key == training.case.key for group in self.groups)
            return (rung if start else f"+ {rung.removeprefix('+').lstrip()}") or "-"
        parts = [fmt.clean(training.case.recipe), *in_words(training.case, self.within)]
        return " ".join(part for part in parts if part) or "-"

    @property
    def variants(self) -> list[Training]:
        """The variants of all groups."""
        return [t for group in self.groups for t in group.variants]

    @property
    def unit(self) -> str:
        """The unit that all variants count ("img"); "" where units differ."""
        units = {t.unit for t in self.variants}
        return units.pop() if len(units) == 1 else ""

    @property
    def evaluates(self) -> bool:
        """Whether all variants are the forward pass alone, as inference runs it."""
        return bool(self.variants) and all(t.case.evaluation for t in self.variants)

    @property
    def step(self) -> str:
        """What is timed: "step", or "forward pass"."""
        return step_word(self.variants[0]) if self.evaluates else "step"

    def group_of(self, training: Training) -> Group:
        """The group that the variant belongs to."""
        return next(g for g in self.groups if any(t is training for t in g.variants))

    def where(self, training: Training) -> str:
        """What tells its group from others in few words: "resnet50, batch 256"; "" for one group.

        All that differs between groups where network, batch and GPUs do not tell them apart.
        """
        cases = [group.case for group in self.groups]
        names = [n for n in PLACES if len({getattr(case, n) for case in cases}) > 1]
        if len({tuple(getattr(case, n) for n in names) for case in cases}) < len(cases):
            return self.group_of(training).title
        return ", ".join(in_words(training.case, names))

    def named(self, training: Training) -> str:
        """The variant among all of the run, in few words: "amp (batch 256)"."""
        where = self.where(training)
        return self.label(training) + f" ({where})" * bool(where)

    def is_lost(self, training: Training) -> bool:
        """Whether it did not converge: as judged, or not judged because the baseline did not."""
        unjudged = training.converged is None and bool(training.convergence)
        return training.converged is False or (unjudged and self.group_of(training).taught_nothing)

    def only(self, keep: Callable[[Training], bool]) -> View:
        """The view with only these variants; settings are shown in the same places."""
        groups = [
            Group(group.title, tuple(filter(keep, group.variants)))
            for group in self.groups
            if any(map(keep, group.variants))
        ]
        return replace(self, groups=tuple(groups))

    @property
    def compared(self) -> tuple[str, ...]:
        """The baselines of the speed-ups, in the columns' order; of a rung, other rungs only."""
        climbs = any(name in t.speedup for t in self.variants for name in LADDER)
        present = dict.fromkeys(
            name
            for t in self.variants
            for name in t.speedup
            if name in LADDER or not climbs or t.rung is None
        )
        return in_order(present)

    def is_compared(self, training: Training, name: str) -> bool:
        """Whether its speed-up over this baseline says something: that of this or a slower one
        would repeat a ratio upside down.
        """
        names = list(BASELINES)
        ones = names[: names.index(name) + 1] if name in BASELINES else []
        group = self.group_of(training)
        return name in training.speedup and not any(is_base(training, n, group) for n in ones)

    def title(self, name: str, short: str = SHORT_WORDS) -> str:
        """A baseline as the run calls it: "O0" where that takes the place of fp32.

        `short` follows where ratios over it depend on how long cuDNN searched.
        """
        present = {t.case.recipe for t in self.variants}
        stands = next((r for r in BASELINES.get(name, ()) if r in present), name)
        return stands + short * self.is_short(name)

    def is_short(self, name: str) -> bool:
        """Whether ratios over this baseline depend on how long cuDNN searched."""
        return is_short("fp32" if name == "first" else name, self.variants)

    @property
    def families(self) -> list[list[Group]]:
        """Groups that differ in the batch size alone, smallest first."""
        names = [n for n in SETTINGS if n != "batch" and n not in VARIED]
        families = grouped((tuple(getattr(g.case, n) for n in names), g) for g in self.groups)
        return [sorted(family, key=lambda group: group.case.batch) for family in families.values()]

    def is_baseline(self, training: Training) -> bool:
        """Whether the variant is only a baseline for others."""
        return training.rung is None and training.case.recipe not in self.asked

    @property
    def asked(self) -> tuple[str, ...]:
        """The recipes that the run is about: all but those that are only baselines."""
        names = list(dict.fromkeys(t.case.recipe for t in self.variants))
        others = [name for name in names if not any(name in some for some in BASELINES.values())]
        return tuple(others or [n for n in names if n not in BASELINES["fp32"]] or names)


def is_short(recipe: str, trainings: Iterable[Training]) -> bool:
    """Whether a recipe is IEEE float32, and its algorithms were searched briefly.

    In tf32 and below the first three algorithms are as fast as all.
    """
    base = BASELINES["fp32"]
    return recipe in base and any(
        t.case.search == SHORT and t.case.recipe in base for t in trainings
    )


def view_of(run: Run) -> View:
    """The groups of a run in order of appearance, and the settings that differ inside a group.

    Where nothing was trained in float32 or TF32, the first recipe is what others are held against.
    """
    trainings = run.of(Training)
    groups = grouped((training.case.group, training) for training in trainings)
    groups = {key: _without_wrong_causes(variants) for key, variants in groups.items()}
    bases = chain(*BASELINES.values())
    if not {training.case.recipe for training in trainings} & {*bases}:
        groups = {key: _against_first(variants) for key, variants in groups.items()}
    varying = _varying(run.of(Training))
    within = {name for variants in groups.values() for name in _varying(variants)}
    between = [name for name in varying if name not in within]
    made = [
        Group(", ".join(in_words(variants[0].case, between)), tuple(variants))
        for variants in groups.values()
    ]
    return View(tuple(made), tuple(name for name in SETTINGS if name in within))


def _without_wrong_causes(variants: Sequence[Training]) -> list[Training]:
    """The variants without causes of older files that took FP8 for float32, and with those again
    that took longer than the GPU idles.
    """
    again = {t.case: t.causes for t in explained([t for t in variants if t.step_s])}
    right: list[Training] = []
    for t in variants:
        waits = t.traced and any(cost.cause in OF_IDLING for cost in t.traced.costs)
        causes = again.get(t.case, t.causes) if t.causes and waits else t.causes
        wrong = TOOK_FP8_FOR_FLOAT32 if t.float8_layers else None
        right.append(replace(t, causes=tuple(one for one in causes if one.title != wrong)))
    return right


def _against_first(variants: Sequence[Training]) -> list[Training]:
    """The variants of a group with speed-ups over its first recipe, from the steps' intervals, and
    with the ledgers from it.
    """
    first, group = variants[0].case.recipe, Group("", tuple(variants))
    compared: list[Training] = []
    for variant in variants:
        base = None if variant.case.recipe == first else reference(variant, first, group)
        if base and base.per_s and variant.per_s and variant.rung is None:
            gain = Scaling("", base, variant).efficiency.scaled(variant.case.gpus)
            variant = replace(variant, speedup={**variant.speedup, first: gain})
            if base.traced and variant.traced and not variant.ledger:
                lines = ledger(base, variant)
                variant = replace(variant, ledger=lines, ledger_base=first)
        compared.append(variant)
    return compared


def _varying(trainings: Sequence[Training]) -> list[str]:
    """Names of the settings that differ between the trainings."""
    return [name for name in SETTINGS if len({getattr(t.case, name) for t in trainings}) > 1]


def what_was_trained(run: Run) -> list[str]:
    """For a header: the settings that all trainings share, and the range of the batch sizes."""
    view = view_of(run)
    loaded = OF_LOADING if run.of(Loading) else ()  # they have tables of their own
    cases = [training.case for training in run.of(Training)]
    updates = ("optimizer", "fused") if view.evaluates else ()  # of no meaning there
    parts: list[str] = []
    for name in SETTINGS:
        if name in (*view.within, *loaded, *updates):
            continue
        values = list(dict.fromkeys(text for case in cases for text in in_words(case, [name])))
        numbers = [getattr(case, name) for case in cases]
        if name in RANGES and len(set(numbers)) > 1:
            parts.append(RANGES[name].format(min(numbers), max(numbers)))
        elif name == "network" and len(values) > 3:
            parts.append(fmt.count(len(values), "network"))
        elif values:
            parts.append(" or ".join(values))
    predicts = run.kind == "predict" or not any(map(was_run, run.of(Training)))
    trains = "evaluate" if view.evaluates else "train"
    return ["predict" if predicts else trains, *parts]


def in_order(compared: Collection[str]) -> tuple[str, ...]:
    """Names of baselines in the order of the columns: tf32, which PyTorch's users have, first."""
    known = [name for name in (*LADDER, *reversed(BASELINES)) if name in compared]
    return (*known, *(name for name in compared if name not in known))


def is_base(variant: Training, name: str, group: Group) -> bool:
    """Whether the variant is the baseline of this name in its group."""
    if name in LADDER:
        stands = (other for other in group.variants if other.steps or other.status == PREDICTED)
        return variant is next(stands, None)
    return variant.case.recipe in BASELINES.get(name, (name,))


def reference(training: Training, name: str, group: Group) -> Training | None:
    """The baseline of a variant: the one that differs in the recipe alone, else the first."""
    bases = [t for t in group.variants if t.steps and is_base(t, name, group)]
    options = attrgetter(*(option for option in OPTIONS if option not in OF_RECIPE))
    alike = [t for t in bases if options(t.case) == options(training.case)]
    return next(iter(alike or bases), None)


def is_generated(case: TrainCase) -> bool:
    """Whether the case's data is generated."""
    return case.data in GENERATED


def step_word(training: Training) -> str:
    """What is timed of it: "step", or "forward pass"."""
    return "forward pass" if training.case.evaluation else "step"


def trains(training: Training) -> str:
    """What a variant does, before how much faster: "trains", or "runs"."""
    return "runs" if training.case.evaluation else "trains"


def was_run(training: Training) -> bool:
    """Whether the variant was run, not only predicted; it may have failed."""
    return training.status != PREDICTED
