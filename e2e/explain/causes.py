"""Why a step is no faster, and what would make it so: findings and fixes, ranked.

Pure functions of predicted steps. A fix is a counterfactual, a step predicted under one change;
a finding follows from the numbers of the given steps (findings.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from e2e.explain.findings import (
    MIN_GAIN_PCT,
    NAMED,
    Steps,
    findings,
    largest,
    layer_of,
    named,
)
from e2e.explain.ledger import Step, op_terms_ms
from e2e.results.types import Cause, Setting
from microbench import fmt
from microbench.fmt import as_ms


@dataclass(frozen=True)
class Counterfactual:
    """The step as it would be under one change.

    `change` are fields of TrainCase with their new values, empty for a change to the network;
    `units` how many images, tokens or samples the step then has.
    """

    name: str
    change: Mapping[str, Setting]
    step: Step
    units: int


def causes(
    present: Step,
    base: Step | None,
    units: int,
    counterfactuals: Iterable[Counterfactual],
    *,
    recipe: str,
    base_recipe: str,
    unit: str = "img",
) -> list[Cause]:
    """Fixes by predicted gain, then findings by the time they are about.

    `units` of `unit` are in the present step; `base` is the same step under `base_recipe`, None
    where it is not known. Predicted times are compared with predicted ones. A change that gains no
    more than MIN_GAIN_PCT is left out.
    """
    if present.predicted.step_s <= 0:
        return []
    timed = [other for other in counterfactuals if other.step.predicted.step_s > 0]
    fixes = [_fix(present, units, other, unit) for other in timed]
    proposed = [fix for fix in fixes if (fix.predicted_gain_pct or 0.0) > MIN_GAIN_PCT]
    proposed.sort(key=lambda fix: -(fix.predicted_gain_pct or 0.0))
    return proposed + findings(Steps(present, base, recipe, base_recipe))


def _rate(per_s: float) -> str:
    """ "6,078", "3.47"."""
    return f"{per_s:,.0f}" if per_s >= 99.95 else f"{per_s:.3g}"


def _fix(present: Step, units: int, other: Counterfactual, unit: str) -> Cause:
    rates = [units / present.expected_s, other.units / other.step.expected_s]
    why = (
        f"predicted {_rate(rates[1])} instead of {_rate(rates[0])} {unit}/s"
        f"{_difference(present, other, units)}"
    )
    gain_pct = 100 * (rates[1] / rates[0] - 1)
    fix = as_options(other.change) or other.name
    padded = [op.padded for op in other.step.ops if op.padded]
    if padded:
        why += f"; the padded layers save {largest(_saved_ms(present, other))}"
        fix = f"pad {named(padded)}"
    return Cause(other.name, why, fix, gain_pct, other.change or None)


def _saved_ms(present: Step, other: Counterfactual) -> dict[str, float]:
    """What each padded layer takes less."""
    saved_ms: dict[str, float] = defaultdict(float)
    for before, after in zip(present.ops, other.step.ops, strict=True):
        if after.padded:
            saved_ms[layer_of(after)] += 1e3 * (before.device_s - after.device_s)
    return saved_ms


def _difference(present: Step, other: Counterfactual, units: int) -> str:
    """What changes most, in ms of a step of as many units as the present one."""
    scale = 1e3 * units / other.units
    now, then = present.predicted, other.step.predicted
    said = (
        f": {as_ms(other.step.expected_s * scale)} instead of {as_ms(present.expected_s * 1e3)} ms"
    )
    if other.units != units:
        said += f" for {units:,}"
    then_wait_s, now_wait_s = other.step.predicted_wait_s, present.predicted_wait_s
    changes = {
        "waiting for launches": then.idle_s * scale - now.idle_s * 1e3,
        "waiting for the loader": then_wait_s * scale - now_wait_s * 1e3,
    }
    before, after = op_terms_ms(present.ops), op_terms_ms(other.step.ops)
    for term in {**before, **after}:
        changes[term] = after.get(term, 0.0) * units / other.units - before.get(term, 0.0)
    least = MIN_GAIN_PCT / 100 * present.expected_s * 1e3
    saved = sorted((ms, term) for term, ms in changes.items() if ms < -least)[:NAMED]
    if not saved:
        return said
    return f"{said}, by {fmt.joined([f'{as_ms(-ms)} ms less in {term}' for ms, term in saved])}"


def as_options(change: Mapping[str, Setting]) -> str:
    """A change to a case in words of the command line."""
    options: list[str] = []
    for name, value in change.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        elif value != 0:  # what a number is when it is left out
            options.append(f"--{option} {value}")
    return " ".join(options)
