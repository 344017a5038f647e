"""What is foretold of a comparison: its own cases, and what they would be under one change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from e2e.explain.annotate import Tried, with_causes, with_predictions
from e2e.explain.counterfactuals import changes
from e2e.predict.prediction import Foretold, needs_more
from e2e.results.baselines import BASELINES
from e2e.results.types import Cause, TrainCase, Training

FIT_SHARE = 0.9  # of the device's memory: what a larger batch may take, by its predicted peak
VERIFIED = 3  # fixes of a training that are measured, best first

Ask = Callable[[TrainCase], Foretold]


@dataclass(frozen=True)
class Foresight:
    """Asks for what is foretold and joins it to trainings.

    `kind` and `memory_bytes` are the device's; `fixes` says whether changes are foretold too, which
    takes as long as so many more cases. `cores` are those that there are for workers.
    """

    ask: Ask
    kind: str
    memory_bytes: int | None
    fixes: bool
    cores: int = 1

    def foretold(self, cases: Sequence[TrainCase]) -> dict[str, Foretold]:
        """What is known of each case before it runs, by key."""
        return {case.key: self.ask(case) for case in cases}

    def explained(
        self, trainings: Sequence[Training], foretold: Mapping[str, Foretold]
    ) -> list[Training]:
        """The trainings with predictions, ledgers, and the causes of those in question."""
        found = with_predictions(trainings, foretold)
        asked = self._in_question(found)
        return [
            with_causes(t, found, foretold, self._tried(t) if self.fixes else ())
            if t.case.key in asked
            else t
            for t in found
        ]

    def _in_question(self, trainings: Sequence[Training]) -> set[str]:
        """Of a comparison, those that are no baselines; of baselines alone, all."""
        told = [t for t in trainings if t.predicted]
        known = {recipe for recipes in BASELINES.values() for recipe in recipes}
        low = [t for t in told if t.case.recipe not in known]
        return {t.case.key for t in low or told}

    def _tried(self, training: Training) -> list[Tried]:
        tried: list[Tried] = []
        for change in changes(training.case, self.kind, self.cores):
            told = self.ask(change.of(training.case))
            tried.append(Tried(change, self._if_it_fits(told)))
        return tried

    def _if_it_fits(self, told: Foretold) -> Foretold:
        needed = told.predicted.memory_bytes if told.predicted else None
        if not needed or not self.memory_bytes or needed <= FIT_SHARE * self.memory_bytes:
            return told
        return Foretold(told.case, reason=needs_more(needed, self.memory_bytes), runs=False)


def to_verify(training: Training) -> list[tuple[Cause, TrainCase]]:
    """The fixes worth a measurement, and the case as each changes it."""
    fixes = [cause for cause in training.causes if cause.case_change][:VERIFIED]
    return [(fix, replace(training.case, **dict(fix.case_change or {}))) for fix in fixes]


def verified(
    training: Training, again: Training, tried: Sequence[tuple[Cause, Training]]
) -> Training:
    """The training with what its fixes gave, against itself measured `again` beside them."""
    gains = {
        id(cause): 100 * (fixed.per_s / again.per_s - 1)
        for cause, fixed in tried
        if fixed.per_s and again.per_s
    }
    return replace(
        training,
        causes=tuple(
            replace(cause, measured_gain_pct=gains.get(id(cause))) for cause in training.causes
        ),
    )
