"""Joins trainings with what was recorded and predicted of them: errors, ledgers and causes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from e2e.case import TrainCase
from e2e.explain.causes import FULL_PRECISION, findings
from e2e.explain.fixes import Change, Counterfactual, Pad, as_options, changes, fixes
from e2e.explain.in_place import in_place_ledger, is_recorded, recorded_step
from e2e.explain.ledger import Step, bound, ledger, op_terms_ms
from e2e.prediction.prediction import Prediction, measured_wait_s, needs_more
from e2e.results.baselines import baselines, slowest
from e2e.results.types import Cause, Predicted, Training
from microbench.results.values import Warning

FIT_SHARE = 0.9  # of the device's memory: limit for the predicted peak of a larger batch
VERIFIED = 3  # fixes of a training that are measured, best first

Ask = Callable[[TrainCase], Prediction]


@dataclass(frozen=True)
class Explainer:
    """Requests predictions and joins them to trainings.

    `kind` and `memory_bytes` are the device's. `fixes`: predict changes too, each of which takes as
    long as a case. `cores` are available to loader workers.
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
        """The trainings with predictions, ledgers, and the causes of those in question.

        In question are the low-precision ones, or all if there are none. Ledgers and findings are
        from steps that were recorded or, where there are none, from predicted ones.
        """
        found = with_predictions(trainings, predictions)
        known = [t for t in found if is_recorded(t) or t.case in _known([t], predictions)]
        low = [t for t in known if t.case.recipe not in FULL_PRECISION]
        asked = {t.case.key for t in low or known}
        return [
            _with_causes(t, found, predictions, self._tried(t)) if t.case.key in asked else t
            for t in found
        ]

    def _tried(self, training: Training) -> list[_Tried]:
        if not self.fixes or not training.predicted:
            return []
        return [
            _Tried(change, self._if_it_fits(self.ask(change.of(training.case))))
            for change in changes(training.case, self.kind, self.cores)
        ]

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
    """The training with the measured gains (%) of its fixes, over `again`, measured beside them."""
    gains = {
        id(cause): 100 * (fixed.per_s / again.per_s - 1)
        for cause, fixed in tried
        if fixed.per_s and again.per_s
    }
    found = [replace(cause, measured_gain_pct=gains.get(id(cause))) for cause in training.causes]
    return replace(training, causes=tuple(found))


def with_predictions(
    trainings: Sequence[Training], predictions: Mapping[str, Prediction]
) -> list[Training]:
    """The trainings of one comparison with their predictions, and ledgers from their baselines."""
    known = _known(trainings, predictions)
    return [
        _with_ledger(_with_prediction(training, known, predictions), trainings, predictions)
        for training in trainings
    ]


def _with_prediction(
    training: Training, known: Mapping[TrainCase, Predicted], predictions: Mapping[str, Prediction]
) -> Training:
    if training.case not in known:
        return _without_prediction(training, predictions.get(training.case.key))
    predicted, prediction = known[training.case], predictions[training.case.key]
    others = baselines(training.case, list(known))
    slowdown = _slowdown_of(training)
    return replace(
        training,
        predicted=replace(
            predicted.beside(training.measured_s),
            speedup={name: known[it].step_s / predicted.step_s for name, it in others.items()},
            paced_s=prediction.at(slowdown).simulate().step_s if slowdown else None,
            terms_ms=op_terms_ms(prediction.ops),
        ),
        warnings=(*training.warnings, *map(_warning, prediction.notes)),
    )


def _known(
    trainings: Sequence[Training], predictions: Mapping[str, Prediction]
) -> dict[TrainCase, Predicted]:
    """The cases that were predicted."""
    asked = {t.case: predictions[t.case.key] for t in trainings if t.case.key in predictions}
    return {case: found.predicted for case, found in asked.items() if found.predicted}


def _without_prediction(training: Training, prediction: Prediction | None) -> Training:
    """A training that was measured but not predicted: with the reason as a warning."""
    reason = prediction.reason if prediction else None
    if training.steps is None or not reason or training.case.compile:
        return training
    no_ledger = "" if is_recorded(training) else " and no ledger"
    warning = Warning(
        f"no prediction{no_ledger}: {reason}",
        "the prediction needs a step that can be traced and replayed; the measurement does not",
        "nothing to do: the measured times are complete",
    )
    return replace(training, warnings=(*training.warnings, warning))


def _warning(note: str) -> Warning:
    return Warning(
        f"the prediction was {note}",
        "fake tensors cannot trace operations whose shapes depend on values",
        "nothing to do: a real step was recorded, and its operations timed as usual",
    )


def _slowdown_of(training: Training) -> float | None:
    """The host's slowdown during the measurement; None for a fed case."""
    return training.steps.host_pace if training.steps and not training.case.fed else None


def _with_ledger(
    training: Training, trainings: Sequence[Training], predictions: Mapping[str, Prediction]
) -> Training:
    """The training with a ledger from its baseline: both recorded or, failing that, predicted."""
    base = _base(training, [t for t in trainings if is_recorded(t)])
    if is_recorded(training) and base:
        lines, first = in_place_ledger(base, training), recorded_step(base)
    else:
        known = _known(trainings, predictions)
        base = _base(training, [t for t in trainings if t.case in known])
        if training.case not in known or base is None:
            return training
        first, last = (_step(one, predictions[one.case.key]) for one in (base, training))
        lines = ledger(first, last, (base.case.recipe, training.case.recipe))
    return replace(training, ledger=lines, ledger_base=base.case.recipe, bound=bound(first))


def _base(training: Training, among: Sequence[Training]) -> Training | None:
    """The one of these that its ledger starts from; None without."""
    by_case = {one.case: one for one in among}
    found = slowest(training.case, baselines(training.case, list(by_case)))
    return by_case[found] if found else None


def _step(training: Training, prediction: Prediction) -> Step:
    """The step, at the host speed of its measurement if that is known."""
    prediction = _at_the_same_speed(prediction, training)
    assert prediction.simulated is not None
    measured_s = training.measured_s
    wait_s = prediction.wait_s if measured_s is None else measured_wait_s(training)
    exchange_s = (prediction.predicted and prediction.predicted.exchange_s) or 0.0
    return Step(
        prediction.ops, prediction.simulated, measured_s, wait_s, prediction.wait_s,
        exchange_s=exchange_s,
    )  # fmt: skip


def _at_the_same_speed(prediction: Prediction, training: Training) -> Prediction:
    slowdown = _slowdown_of(training)
    if not slowdown or not prediction.simulated:
        return prediction
    paced = prediction.at(slowdown)
    return replace(paced, simulated=paced.simulate())


# ---------------------------------------------------------------- causes


@dataclass(frozen=True)
class _Tried:
    """A change to a case, and the prediction of the changed case."""

    change: Change
    prediction: Prediction


def _with_causes(
    training: Training,
    trainings: Sequence[Training],
    predictions: Mapping[str, Prediction],
    tried: Sequence[_Tried],
) -> Training:
    """The training with fixes, ranked, and findings, from the numbers of its comparison.

    `tried` are counterfactuals of this training; those that could not be predicted come last.
    """
    prediction = predictions.get(training.case.key)
    proposed: list[Cause] = []
    if tried and prediction and prediction.predicted:
        timed = [known for one in tried if (known := _counterfactual(training, one))]
        present = _step(training, prediction)
        proposed = fixes(present, training.step_units, timed, training.unit)
    padded = any(isinstance(one.change, Pad) for one in tried)
    found = _findings(training, trainings, predictions, padded)
    unpredicted = [
        Cause(
            one.change.name,
            one.prediction.reason or "",
            as_options(one.change.fields),
            None,
            one.change.fields if one.prediction.runs else None,
        )
        for one in tried
        if one.prediction.predicted is None and not isinstance(one.change, Pad)
    ]
    return replace(training, causes=(*proposed, *found, *unpredicted))


def _findings(
    training: Training,
    trainings: Sequence[Training],
    predictions: Mapping[str, Prediction],
    padded: bool,
) -> list[Cause]:
    """What limits a training: in the steps that were recorded, else in the predicted ones.

    `padded`: what padding gains is known.
    """
    recorded = is_recorded(training)
    if recorded:
        base = _base(training, [t for t in trainings if is_recorded(t)])
        present, before = recorded_step(training), recorded_step(base) if base else None
    else:
        known = _known(trainings, predictions)
        base = _base(training, [t for t in trainings if t.case in known])
        present = _step(training, predictions[training.case.key])
        before = _step(base, predictions[base.case.key]) if base else None
    if padded:
        present = replace(present, ops=[replace(op, misaligned="") for op in present.ops])
    traced = training.traced if recorded else None
    return findings(
        present, before, training.case.recipe, base.case.recipe if base else "",
        traced.costs if traced else (), traced.steps if traced else 1,
    )  # fmt: skip


def _counterfactual(training: Training, tried: _Tried) -> Counterfactual | None:
    prediction = _at_the_same_speed(tried.prediction, training)
    if prediction.simulated is None:
        return None
    wait_s = prediction.wait_s
    step = Step(prediction.ops, prediction.simulated, None, wait_s, wait_s)
    units = training.step_units * prediction.case.batch // training.case.batch
    return Counterfactual(tried.change.name, tried.change.fields, step, units)
