"""Predictions in words, for the end of the screen."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.report.arms import Group, View, in_words, is_generated, place
from e2e.report.figures import limiter
from e2e.report.predictions import compared_with, error_pct, is_alone, is_beside, plain_ratio
from e2e.results.types import Training
from microbench import fmt

MOST_NAMED = 4


def prediction_sentences(view: View, family: Sequence[Group]) -> list[str]:
    """What was predicted and not run, how good the rest was, and what no prediction holds."""
    lines: list[str] = []
    for label, arms in view.curves(family).items():
        alone = [arm for arm in arms if is_alone(arm)]
        if alone and not view.is_baseline(alone[0]):
            lines.append(_foretold(view, label, alone))
    lines += _errors(view, family)
    return [*lines, *_lacking(view, family)]


def _foretold(view: View, label: str, arms: Sequence[Training]) -> str:
    """ "amp is predicted to train 5.64 times as fast as fp32 (resnet50, batch 256): 5,967 img/s,
    42.9 ms a step, 11.6 GB, limited by the GPU"; the ends of a range of batches."""
    names = compared_with(view)
    gains = [gain for name in names if (gain := _gain(view, name, arms))]
    verb = f"is predicted to train {fmt.joined(gains)}" if gains else "is predicted"
    if len(arms) > 1:
        where = ["network", *(["data"] if is_generated(arms[0].case) else [])]
        ends = [f"at batch {arm.case.batch} {_figures(arm)}" for arm in (arms[0], arms[-1])]
        return f"{label} {verb} ({', '.join(in_words(arms[0].case, where))}); {'; '.join(ends)}."
    return f"{label} {verb} ({place(arms[0])}): {_figures(arms[0])}."


def _gain(view: View, name: str, arms: Sequence[Training]) -> str:
    """ "5.64 times as fast as fp32", or the ends over the batches."""
    known = [
        (arm.predicted.speedup[name], arm.case.batch)
        for arm in arms
        if arm.predicted and name in arm.predicted.speedup
    ]
    if not known:
        return ""
    gains = dict.fromkeys(plain_ratio(gain) for gain, _ in known)
    ends = [f"{plain_ratio(gain)} (batch {batch})" for gain, batch in (min(known), max(known))]
    return f"{' to '.join(ends if len(gains) > 1 else gains)} times as fast as {view.title(name)}"


def _figures(arm: Training) -> str:
    predicted = arm.predicted
    assert predicted is not None
    memory = fmt.gigabytes(predicted.memory_bytes)
    parts = [
        f"{fmt.throughput(arm.predicted_per_s or 0.0)} {fmt.clean(arm.unit)}/s",
        f"{fmt.milliseconds(predicted.step_s)} ms a step",
        f"{memory} GB" if memory else "",
        f"limited by {limiter(predicted.limit)}" if predicted.limit else "",
    ]
    return ", ".join(part for part in parts if part)


def _errors(view: View, family: Sequence[Group]) -> list[str]:
    """How far the predicted steps are from the measured ones, and limits that were not foreseen."""
    arms = [arm for group in family for arm in group.arms if is_beside(arm)]
    several = len(family) > 1
    errors = [(error_pct(arm) or 0.0, _name(view, arm, several)) for arm in arms]
    lines: list[str] = []
    if errors:
        worst = sorted(errors, key=lambda pair: -abs(pair[0]))[:MOST_NAMED]
        named = ", ".join(f"{name} {fmt.signed_pct(error)}" for error, name in worst)
        text = f"Predicted steps are within {abs(worst[0][0]):.1f} % of the measured ones"
        lines.append(f"{text}: {named}{' at worst' * (len(errors) > len(worst))}.")
    for arm in arms:
        told = arm.predicted.limit if arm.predicted else None
        if told and arm.limit and told != arm.limit:
            expected, found = limiter(told), limiter(arm.limit)
            lines.append(f"  {_name(view, arm, several)} was predicted to be limited by "
                         f"{expected}; it is limited by {found}.")  # fmt: skip
    return lines


def _name(view: View, arm: Training, several: bool) -> str:
    return f"{view.label(arm)}{f' (batch {arm.case.batch})' * several}"


def _lacking(view: View, family: Sequence[Group]) -> list[str]:
    """The arms whose predictions are short of something."""
    seen: dict[tuple[str, ...], list[str]] = {}
    for group in family:
        for arm in group.arms:
            if arm.predicted and arm.predicted.uncovered:
                ops = tuple(fmt.clean(op).split(": ")[0] or "-" for op in arm.predicted.uncovered)
                seen.setdefault(ops, []).append(_name(view, arm, len(family) > 1))
    return [
        f"The prediction of {fmt.listed(names, MOST_NAMED)} lacks what could not be replayed, so "
        f"the step takes longer, nobody knows by how much: {fmt.listed(list(ops), MOST_NAMED)}."
        for ops, names in seen.items()
    ]
