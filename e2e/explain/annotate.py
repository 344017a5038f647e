"""Joins predictions with measurements: errors, speed-ups, the ledger, and causes.

Pure functions of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from e2e.case import TrainCase
from e2e.explain.causes import Counterfactual, as_options, causes
from e2e.explain.counterfactuals import Change, Pad
from e2e.explain.ledger import Step, bound, ledger
from e2e.predict.prediction import Prediction, measured_wait_s
from e2e.results.baselines import baselines, slowest
from e2e.results.types import Cause, Predicted, Training
from microbench.results.values import Warning


def with_predictions(
    trainings: Sequence[Training], predictions: Mapping[str, Prediction]
) -> list[Training]:
    """The trainings of one comparison with their predictions, and ledgers from their baselines."""
    known = [t.case for t in trainings if _predicted_of(t.case, predictions)]
    by_case = {training.case: training for training in trainings}
    found: list[Training] = []
    for training in trainings:
        predicted = _predicted_of(training.case, predictions)
        if predicted is None:
            found.append(_without_prediction(training, predictions.get(training.case.key)))
            continue
        others = baselines(training.case, known)
        notes = tuple(_warning(note) for note in predictions[training.case.key].notes)
        training = replace(
            training,
            predicted=_predicted(training, predicted, others, predictions),
            warnings=(*training.warnings, *notes),
        )
        base = slowest(training.case, others)
        if base is not None:
            training = _with_ledger(training, by_case[base], predictions)
        found.append(training)
    return found


def _without_prediction(training: Training, prediction: Prediction | None) -> Training:
    """A training that was measured but not predicted: with the reason as a warning."""
    if (
        training.steps is None
        or prediction is None
        or not prediction.reason
        or training.case.compile
    ):
        return training
    warning = Warning(
        f"no prediction, and no ledger: {prediction.reason}",
        "what cannot be predicted can still be measured",
        "nothing to do for the measurement",
    )
    return replace(training, warnings=(*training.warnings, warning))


def _warning(note: str) -> Warning:
    return Warning(
        f"the prediction was {note}",
        "fake tensors cannot follow what depends on values",
        "nothing to do: the step was recorded, and what can be launched alone timed as always",
    )


def _predicted_of(case: TrainCase, predictions: Mapping[str, Prediction]) -> Predicted | None:
    prediction = predictions.get(case.key)
    return prediction.predicted if prediction else None


def _predicted(
    training: Training,
    predicted: Predicted,
    others: Mapping[str, TrainCase],
    predictions: Mapping[str, Prediction],
) -> Predicted:
    speedup: dict[str, float] = {}
    for name, case in others.items():
        base = _predicted_of(case, predictions)
        if base is not None:
            speedup[name] = base.step_s / predicted.step_s
    paced_s = _paced_s(training, predictions[training.case.key])
    return replace(predicted.beside(training.step_s), speedup=speedup, paced_s=paced_s)


def _paced_s(training: Training, prediction: Prediction) -> float | None:
    """The step as predicted for the host speed while it was measured."""
    slowdown = _slowdown_of(training)
    return prediction.at(slowdown).simulate().step_s if slowdown else None


def _slowdown_of(training: Training) -> float | None:
    """The host's while it was measured; None for a fed case, whose wait has another cause."""
    return training.steps.host_pace if training.steps and not training.case.fed else None


def _with_ledger(
    training: Training, base: Training, predictions: Mapping[str, Prediction]
) -> Training:
    steps = [_step(one, predictions[one.case.key]) for one in (base, training)]
    names = (base.case.recipe, training.case.recipe)
    return replace(
        training,
        ledger=ledger(steps[0], steps[1], names),
        ledger_base=base.case.recipe,
        bound=bound(steps[0]),
    )


def _step(training: Training, prediction: Prediction) -> Step:
    """The step, its host as fast as while it was measured, where it was."""
    prediction = _at_the_same_speed(prediction, training)
    assert prediction.simulated is not None
    measured_s = training.step_s
    wait_s = prediction.wait_s if measured_s is None else measured_wait_s(training)
    return Step(prediction.ops, prediction.simulated, measured_s, wait_s, prediction.wait_s)


def _at_the_same_speed(prediction: Prediction, training: Training) -> Prediction:
    slowdown = _slowdown_of(training)
    if not slowdown or not prediction.simulated:
        return prediction
    paced = prediction.at(slowdown)
    return replace(paced, simulated=paced.simulate())


# ---------------------------------------------------------------- causes


@dataclass(frozen=True)
class Tried:
    """A change to a case, and the prediction of the changed case."""

    change: Change
    prediction: Prediction


def with_causes(
    training: Training,
    trainings: Sequence[Training],
    predictions: Mapping[str, Prediction],
    tried: Sequence[Tried] = (),
) -> Training:
    """The training with fixes, ranked, and findings, from the numbers of its comparison.

    `tried` are counterfactuals of this training; those that could not be predicted come last.
    """
    prediction = predictions[training.case.key]
    known = [t.case for t in trainings if _predicted_of(t.case, predictions)]
    others = baselines(training.case, known)
    base = slowest(training.case, others)
    by_case = {one.case: one for one in trainings}
    units = training.step_units
    present = _step(training, prediction)
    if any(isinstance(one.change, Pad) for one in tried):
        present = _aligned(present)  # what padding gains is known
    found = causes(
        present,
        _step(by_case[base], predictions[base.key]) if base else None,
        units,
        [
            Counterfactual(one.change.name, one.change.fields, step, _units(training, one))
            for one in tried
            if (step := _predicted_step(_at_the_same_speed(one.prediction, training)))
        ],
        recipe=training.case.recipe,
        base_recipe=base.recipe if base else "",
        unit=training.unit,
    )
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
    return replace(training, causes=(*found, *unpredicted))


def _aligned(step: Step) -> Step:
    """The step without a word of sizes that might be padded."""
    return replace(step, ops=[replace(op, misaligned="") for op in step.ops])


def _predicted_step(prediction: Prediction) -> Step | None:
    if prediction.simulated is None:
        return None
    return Step(prediction.ops, prediction.simulated, None, prediction.wait_s, prediction.wait_s)


def _units(training: Training, one: Tried) -> int:
    return training.step_units * one.prediction.case.batch // training.case.batch
