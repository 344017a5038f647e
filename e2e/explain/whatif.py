"""Predictions of a comparison: of its own cases, and of each case under one change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from e2e.case import TrainCase
from e2e.explain.annotate import Tried, with_causes, with_predictions
from e2e.explain.counterfactuals import changes
from e2e.predict.prediction import Prediction, needs_more
from e2e.results.baselines import BASELINES
from e2e.results.types import Cause, Training

FIT_SHARE = 0.9  # of the device's memory: what a larger batch may take, by its predicted peak
VERIFIED = 3  # fixes of a training that are measured, best first

Ask = Callable[[TrainCase], Prediction]


@dataclass(frozen=True)
class Explainer:
    """Asks for predictions and joins them to trainings.

    `kind` and `memory_bytes` are the device's. `fixes`: whether changes are predicted too, each of
    which takes as long as a case. `cores` are available to loader workers.
    """

    ask: Ask
    kind: str
    memory_bytes: int | None
    fixes: bool
    cores: int = 1

    def predictions(self, cases: Sequence[TrainCase]) -> dict[str, Prediction]:
        """The prediction of each case, by key."""
        return {case.key: self.ask(case) for case in cases}

    def explained(
        self, trainings: Sequence[Training], predictions: Mapping[str, Prediction]
    ) -> list[Training]:
        """The trainings with predictions, ledgers, and the causes of those in question."""
        found = with_predictions(trainings, predictions)
        asked = self._in_question(found)
        return [
            with_causes(t, found, predictions, self._tried(t) if self.fixes else ())
            if t.case.key in asked
            else t
            for t in found
        ]

    def _in_question(self, trainings: Sequence[Training]) -> set[str]:
        """Of a comparison, those that are no baselines; of baselines alone, all."""
        predicted = [t for t in trainings if t.predicted]
        known = {recipe for recipes in BASELINES.values() for recipe in recipes}
        low = [t for t in predicted if t.case.recipe not in known]
        return {t.case.key for t in low or predicted}

    def _tried(self, training: Training) -> list[Tried]:
        tried: list[Tried] = []
        for change in changes(training.case, self.kind, self.cores):
            prediction = self.ask(change.of(training.case))
            tried.append(Tried(change, self._if_it_fits(prediction)))
        return tried

    def _if_it_fits(self, prediction: Prediction) -> Prediction:
        needed = prediction.predicted.memory_bytes if prediction.predicted else None
        if not needed or not self.memory_bytes or needed <= FIT_SHARE * self.memory_bytes:
            return prediction
        return Prediction(prediction.case, reason=needs_more(needed, self.memory_bytes), runs=False)


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
