"""Joins what was foretold with what was measured: errors, speed-ups, the ledger, and causes.

Pure functions of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from e2e.explain.causes import Counterfactual, as_options, causes
from e2e.explain.counterfactuals import Change, Pad
from e2e.explain.ledger import Step, bound, ledger
from e2e.predict.loader_wait import measured_wait_s
from e2e.predict.prediction import Foretold
from e2e.results.baselines import baselines, slowest
from e2e.results.types import Cause, Predicted, TrainCase, Training
from microbench.results.values import Warning


def with_predictions(
    trainings: Sequence[Training], foretold: Mapping[str, Foretold]
) -> list[Training]:
    """The trainings of one comparison with their predictions, and ledgers from their baselines."""
    known = [t.case for t in trainings if _told(t.case, foretold)]
    by_case = {training.case: training for training in trainings}
    found: list[Training] = []
    for training in trainings:
        told = _told(training.case, foretold)
        if told is None:
            found.append(_untold(training, foretold.get(training.case.key)))
            continue
        others = baselines(training.case, known)
        notes = tuple(_warning(note) for note in foretold[training.case.key].notes)
        training = replace(
            training,
            predicted=_predicted(training, told, others, foretold),
            warnings=(*training.warnings, *notes),
        )
        base = slowest(training.case, others)
        if base is not None:
            training = _with_ledger(training, by_case[base], foretold)
        found.append(training)
    return found


def _untold(training: Training, told: Foretold | None) -> Training:
    """A training that ran though nobody could tell its step: with the reason."""
    if training.steps is None or told is None or not told.reason or training.case.compile:
        return training
    warning = Warning(
        f"no prediction, and no ledger: {told.reason}",
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


def _told(case: TrainCase, foretold: Mapping[str, Foretold]) -> Predicted | None:
    told = foretold.get(case.key)
    return told.predicted if told else None


def _predicted(
    training: Training,
    told: Predicted,
    others: Mapping[str, TrainCase],
    foretold: Mapping[str, Foretold],
) -> Predicted:
    speedup: dict[str, float] = {}
    for name, case in others.items():
        base = _told(case, foretold)
        if base is not None:
            speedup[name] = base.step_s / told.step_s
    paced_s = _paced_s(training, foretold[training.case.key])
    return replace(told.beside(training.step_s), speedup=speedup, paced_s=paced_s)


def _paced_s(training: Training, told: Foretold) -> float | None:
    """The step as predicted for the host's pace while it was measured."""
    pace = _pace_of(training)
    return told.at(pace).simulate().step_s if pace else None


def _pace_of(training: Training) -> float | None:
    """The host's while it was measured; not of a case that is fed, whose wait is of another."""
    return training.steps.host_pace if training.steps and not training.case.fed else None


def _with_ledger(training: Training, base: Training, foretold: Mapping[str, Foretold]) -> Training:
    steps = [_step(one, foretold[one.case.key]) for one in (base, training)]
    names = (base.case.recipe, training.case.recipe)
    return replace(
        training,
        ledger=ledger(steps[0], steps[1], names),
        ledger_base=base.case.recipe,
        bound=bound(steps[0]),
    )


def _step(training: Training, told: Foretold) -> Step:
    """The step, its host as fast as while it was measured, where it was."""
    told = _at_the_same_pace(told, training)
    assert told.simulated is not None
    measured_s = training.step_s
    wait_s = told.wait_s if measured_s is None else measured_wait_s(training)
    return Step(told.ops, told.simulated, measured_s, wait_s, told.wait_s)


def _at_the_same_pace(told: Foretold, training: Training) -> Foretold:
    pace = _pace_of(training)
    if not pace or not told.simulated:
        return told
    paced = told.at(pace)
    return replace(paced, simulated=paced.simulate())


# ---------------------------------------------------------------- causes


@dataclass(frozen=True)
class Tried:
    """A change to a case, and what is foretold of the case as changed."""

    change: Change
    told: Foretold


def with_causes(
    training: Training,
    trainings: Sequence[Training],
    foretold: Mapping[str, Foretold],
    tried: Sequence[Tried] = (),
) -> Training:
    """The training with fixes, ranked, and findings, from the numbers of its comparison.

    `tried` are counterfactuals of this training; those that could not be predicted come last.
    """
    told = foretold[training.case.key]
    known = [t.case for t in trainings if _told(t.case, foretold)]
    others = baselines(training.case, known)
    base = slowest(training.case, others)
    by_case = {one.case: one for one in trainings}
    units = training.step_units
    present = _step(training, told)
    if any(isinstance(one.change, Pad) for one in tried):
        present = _aligned(present)  # what padding gains is known
    found = causes(
        present,
        _step(by_case[base], foretold[base.key]) if base else None,
        units,
        [
            Counterfactual(one.change.name, one.change.fields, step, _units(training, one))
            for one in tried
            if (step := _told_step(_at_the_same_pace(one.told, training)))
        ],
        recipe=training.case.recipe,
        base_recipe=base.recipe if base else "",
        unit=training.unit,
    )
    untold = [
        Cause(
            one.change.name,
            one.told.reason or "",
            as_options(one.change.fields),
            None,
            one.change.fields if one.told.runs else None,
        )
        for one in tried
        if one.told.predicted is None and not isinstance(one.change, Pad)
    ]
    return replace(training, causes=(*found, *untold))


def _aligned(step: Step) -> Step:
    """The step without a word of sizes that might be padded."""
    return replace(step, ops=[replace(op, misaligned="") for op in step.ops])


def _told_step(told: Foretold) -> Step | None:
    if told.simulated is None:
        return None
    return Step(told.ops, told.simulated, None, told.wait_s, told.wait_s)


def _units(training: Training, one: Tried) -> int:
    return training.step_units * one.told.case.batch // training.case.batch
