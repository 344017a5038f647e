"""Which arms the others of a training's comparison are measured against, and their ratios.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from e2e.case import TrainCase
from e2e.results.types import Training
from microbench.results.values import Ratio

BASELINES = {"fp32": ("fp32", "O0"), "tf32": ("tf32",)}  # and the recipes that can stand for each


def baselines(case: TrainCase, among: Sequence[TrainCase]) -> dict[str, TrainCase]:
    """What a case is compared with: "fp32" and "tf32", where such cases exist.

    The baseline that differs only in the recipe; if there is none, the first one.
    """
    found: dict[str, TrainCase] = {}
    for name, recipes in BASELINES.items():
        those = [other for other in among if other.recipe in recipes]
        alike = [other for other in those if _but_recipe(other) == _but_recipe(case)]
        if those and case.recipe not in recipes:
            found[name] = (alike or those)[0]
    return found


def slowest(case: TrainCase, others: Mapping[str, TrainCase]) -> TrainCase | None:
    """The baseline that a case's ledger starts from: fp32, else tf32; None for an fp32 case."""
    return None if case.recipe in BASELINES["fp32"] else others.get("fp32") or others.get("tf32")


def _but_recipe(case: TrainCase) -> TrainCase:
    return replace(case, recipe="", loss_scale=None, keep_batchnorm_fp32=False)


def by_the_wall(ratio: Ratio, slow: Training, fast: Training) -> Ratio:
    """The ratio of fed trainings moved to that of their throughputs, with an interval as wide.

    The rounds' ratios weigh a quick round as much as a slow one; throughput does not.
    """
    if not (slow.case.fed and fast.case.fed and slow.per_s and fast.per_s):
        return ratio
    by = fast.per_s / slow.per_s / ratio.ratio
    ends = ratio.ci95 and (by * ratio.ci95[0], by * ratio.ci95[1])
    return Ratio(by * ratio.ratio, ends)
