"""How a training over several GPUs compares with the same one over one: weak and strong scaling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from e2e.case import NO_COMPRESSION, TrainCase
from e2e.results.types import Training
from microbench.results.values import Ratio

WEAK, STRONG = "weak", "strong"  # the same batch a GPU, and the same batch of all together


@dataclass(frozen=True)
class Scaled:
    """A training and the one over one GPU that it is held against."""

    kind: str
    one: Training
    many: Training

    @property
    def efficiency(self) -> Ratio:
        """Throughput over that of one GPU times the number of GPUs, with a 95 % interval.

        The two were not timed in turns: their intervals add up as independent ones do.
        """
        assert self.one.per_s
        assert self.many.per_s
        ratio = self.many.per_s / self.one.per_s / self.many.case.gpus
        halves = [_half_of_log(one) for one in (self.one, self.many)]
        if None in halves:
            return Ratio(ratio, None)
        half = math.hypot(*(h for h in halves if h is not None))
        return Ratio(ratio, (ratio * math.exp(-half), ratio * math.exp(half)))


def scaled(trainings: Sequence[Training]) -> list[Scaled]:
    """Each timed training over several GPUs of which the same over one is there, in their order."""
    timed = {training.case: training for training in trainings if training.per_s}
    found: list[Scaled] = []
    for case, training in timed.items():
        if case.gpus == 1:
            continue
        for kind, batch in ((WEAK, case.batch), (STRONG, case.batch * case.gpus)):
            one = timed.get(_over_one(case, batch))
            if one:
                found.append(Scaled(kind, one, training))
                break
    return found


def _over_one(case: TrainCase, batch: int) -> TrainCase:
    return replace(case, gpus=1, batch=batch, compress=NO_COMPRESSION)


def _half_of_log(training: Training) -> float | None:
    """Half of the interval of the logarithm of its step; None without an interval."""
    timed = training.timed
    return timed and timed.ci95_s and math.log(timed.ci95_s[1] / timed.ci95_s[0]) / 2
