"""What limits a training, and what to try: its causes, the costliest first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from e2e.report.arms import Group, View, arms_of, grouped
from e2e.report.figures import signed_pct
from e2e.report.ledger import is_sound
from e2e.results.types import Cause, Training
from microbench import fmt
from microbench.report.table import Column, Part

MOST_SENTENCES = 4


def has_causes(view: View, arm: Training) -> bool:
    """Whether it has causes of figures that are good enough."""
    return bool(arm.causes) and is_sound(view, arm)


def gains(cause: Cause) -> str:
    """ "measured +49.0 %": what was gained or, in older files, predicted; "" if unknown."""
    named = (("predicted", cause.predicted_gain_pct), ("measured", cause.measured_gain_pct))
    return ", ".join(
        f"{how} {signed_pct(round(pct, 1) + 0.0)}"
        for how, pct in named
        if pct is not None and math.isfinite(pct)
    )


def title_words(cause: Cause) -> str:
    """The cause's title."""
    return fmt.clean(cause.title) or "-"


def causes_part(view: View, arm: Training) -> Part:
    """The causes of a training, in the order of the file."""
    lines = [f"{i}. {_sentence(one)}" for i, one in enumerate(arm.causes, 1)]
    return Part(f"What limits {view.full_label(arm)}", below=lines)


def _sentence(cause: Cause) -> str:
    """ "the host launches too slowly: ... Try: --graph (measured +49.0 %)." """
    why, fix, gain = fmt.clean(cause.why), fmt.clean(cause.fix), gains(cause)
    said = f"{title_words(cause)}{f': {why}' * bool(why)}."
    return said + f" Try: {fix}{f' ({gain})' * bool(gain)}." * bool(fix)


def raw_columns() -> list[Column[Training]]:
    """Fixes and findings in CSV: the causes with and without something to try."""

    def fixes(arm: Training) -> str:
        found = [cause for cause in arm.causes if fmt.clean(cause.fix)]
        found.sort(key=lambda one: -(_finite(one.predicted_gain_pct) or 0.0))
        found.sort(key=lambda one: _finite(one.predicted_gain_pct) is None)
        return "; ".join(
            f"{fmt.clean(one.fix)}: {gains(one) or 'gain not predicted'}" for one in found
        )

    def findings(arm: Training) -> str:
        return "; ".join(title_words(one) for one in arm.causes if not fmt.clean(one.fix))

    return [Column(csv={"fixes": fixes, "findings": findings})]


def _finite(value: float | None) -> float | None:
    return round(value, 1) + 0.0 if value is not None and math.isfinite(value) else None


# ---------------------------------------------------------------- sentences


def cause_sentences(view: View, family: Sequence[Group]) -> list[str]:
    """For the end of the screen: what limits most, and the best gain measured."""
    arms = [arm for arm in arms_of(family) if has_causes(view, arm)]
    # Older files have predicted fixes too, before what limits the step.
    first = [(one, arm) for arm in arms for one in arm.causes if one.predicted_gain_pct is None]
    titles = {id(arm): title_words(one) for one, arm in reversed(first)}
    limits = grouped((titles[id(arm)], view.full_label(arm)) for arm in arms if id(arm) in titles)
    lines = [
        f"What limits {fmt.listed(labels, MOST_SENTENCES)} most: {title}."
        for title, labels in limits.items()
    ]
    for arm in arms:
        best = max(arm.causes, key=lambda one: one.measured_gain_pct or 0.0)
        if (best.measured_gain_pct or 0.0) > 0:
            label = view.full_label(arm)
            lines.append(f"Best measured for {label}: {fmt.clean(best.fix)} ({gains(best)}).")
    return lines
