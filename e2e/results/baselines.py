"""What a training is measured against: the same in float32, and the same over one GPU.

Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from e2e.case import NO_COMPRESSION, TrainCase
from e2e.results.types import Training
from microbench.results.types import Ratio

BASELINES = {"fp32": ("fp32", "O0"), "tf32": ("tf32",)}  # and the recipes that can stand for each


def baselines(case: TrainCase, among: Sequence[TrainCase]) -> dict[str, TrainCase]:
    """What a case is compared with: "fp32" and "tf32", where such cases exist.

    The baseline that differs only in the recipe; if there is none, the first one.
    """
    bases: dict[str, TrainCase] = {}
    for name, recipes in BASELINES.items():
        those = [other for other in among if other.recipe in recipes]
        alike = [other for other in those if _but_recipe(other) == _but_recipe(case)]
        if those and case.recipe not in recipes:
            bases[name] = (alike or those)[0]
    return bases


def slowest(case: TrainCase, others: Mapping[str, TrainCase]) -> TrainCase | None:
    """The baseline that a case's ledger starts from: fp32, else tf32; None for an fp32 case."""
    return None if case.recipe in BASELINES["fp32"] else others.get("fp32") or others.get("tf32")


def _but_recipe(case: TrainCase) -> TrainCase:
    return replace(case, recipe="", loss_scale=None, keep_batchnorm_fp32=False)


def by_the_wall(ratio: Ratio, slow: Training, fast: Training) -> Ratio:
    """The ratio of fed trainings moved to that of their throughputs, with an interval as wide.

    The rounds' ratios weigh a quick round as much as a slow one; throughput does not.
    """
    if not (slow.case.loads_data and fast.case.loads_data and slow.per_s and fast.per_s):
        return ratio
    by = fast.per_s / slow.per_s / ratio.ratio
    ends = ratio.ci95 and (by * ratio.ci95[0], by * ratio.ci95[1])
    return Ratio(by * ratio.ratio, ends)


# ---------------------------------------------------------------- over one GPU


WEAK, STRONG = "weak", "strong"  # the same batch a GPU, and the same batch of all together


@dataclass(frozen=True)
class Scaling:
    """A training and the one over one GPU that it is held against."""

    kind: str
    one: Training
    many: Training

    @property
    def efficiency(self) -> Ratio:
        """Throughput over that of one GPU times the number of GPUs, with a 95 % interval.

        The two were not interleaved: their intervals add up as independent ones do.
        """
        assert self.one.per_s
        assert self.many.per_s
        ratio = self.many.per_s / self.one.per_s / self.many.case.gpus
        halves: list[float] = []  # of the intervals of the steps' logarithms
        for timed in (self.one.timed, self.many.timed):
            if timed is None or timed.ci95_s is None:
                return Ratio(ratio, None)
            halves.append(math.log(timed.ci95_s[1] / timed.ci95_s[0]) / 2)
        half = math.hypot(*halves)
        return Ratio(ratio, (ratio * math.exp(-half), ratio * math.exp(half)))


def scaling(trainings: Sequence[Training]) -> list[Scaling]:
    """Each timed training over several GPUs of which the same over one is there, in their order.

    Where there are two, of the same batch a GPU and of the same batch in all, it is the one that
    more trainings over as many GPUs have. Learning rates may differ: they change no time.
    """
    timed_last = sorted(trainings, key=lambda training: training.per_s is not None)
    ones = {_over_one(t.case, WEAK): t for t in timed_last if t.case.gpus == 1}
    rows: list[Scaling] = []
    for training in {t.case: t for t in trainings if t.case.gpus > 1 and t.per_s}.values():
        for kind in _kinds(trainings, training.case.gpus, ones):
            one = ones.get(_over_one(training.case, kind))
            if one and one.per_s:
                rows.append(Scaling(kind, one, training))
                break
    return rows


def _kinds(
    trainings: Sequence[Training], gpus: int, ones: Mapping[TrainCase, Training]
) -> Sequence[str]:
    """Both kinds, the one first for which more trainings over several GPUs have one to be held
    against, whether or not it ran.

    Of batches that were divided among GPUs the smallest is of no training over one GPU: a run with
    `--strong` is recognised.
    """
    cases = [t.case for t in trainings if t.case.gpus == gpus]
    counts = {kind: sum(_over_one(c, kind) in ones for c in cases) for kind in (WEAK, STRONG)}
    return sorted(counts, key=lambda kind: -counts[kind])


def _over_one(case: TrainCase, kind: str) -> TrainCase:
    batch = case.batch if kind == WEAK else case.batch * case.gpus
    return replace(case, gpus=1, batch=batch, compress=NO_COMPRESSION, lr=None)
