"""What limits a training, and what to try: its causes, the costliest first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from e2e.report.arms import Group, View, arms_of, grouped
from e2e.report.figures import signed_pct
from e2e.report.ledger import is_sound
from e2e.results.types import Cause, Training
from microbench import fmt
from microbench.report.screen import WIDTH
from microbench.report.table import DIM, Column, Part, Row, Table

MOST_SENTENCES = 4
INDENT = "   "

_FOLDING = Console()  # rich needs a console to wrap text; nothing is printed on it


def causes_title(view: View, arm: Training) -> str:
    """ "What limits amp (batch 256)"."""
    return f"What limits {view.full_label(arm)}"


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
    """One row per cause, in the order of the file; for Markdown and pages."""
    columns: list[Column[Cause]] = [
        Column("cause", title_words, key=True),
        Column("why", lambda cause: fmt.clean(cause.why)),
        Column("try", lambda cause: fmt.clean(cause.fix)),
        Column("gain", gains),
    ]
    rows = [Row(cause) for cause in arm.causes] if has_causes(view, arm) else []
    return Part(causes_title(view, arm), Table(columns, [*rows]))


def cause_lines(view: View, width: int, *, details: bool) -> list[tuple[Training, list[Text]]]:
    """The causes of each training for the screen; of a few trainings unless `details`."""
    found = [arm for arm in view.arms if has_causes(view, arm)]
    shown = found if details else view.first_of(found)
    lines = [
        (arm, [line for i, one in enumerate(arm.causes, 1) for line in _lines(i, one, width)])
        for arm in shown
    ]
    if len(found) > len(shown):
        more = fmt.count(len(found) - len(shown), "more training")
        lines[-1][1].append(Text(f"and causes of {more} (--verbose shows all)", DIM))
    return lines


def _lines(place: int, cause: Cause, width: int) -> list[Text]:
    gain = gains(cause)
    parts = [
        (f"{place}. ", title_words(cause), "bold"),
        (INDENT, fmt.clean(cause.why), ""),
        (INDENT, f"try: {fmt.clean(cause.fix)}{f' ({gain})' * bool(gain)}" * bool(cause.fix), ""),
    ]
    inside = max(2, min(width, WIDTH) - len(INDENT))
    return [
        Text((start if not i else " " * len(start)) + line.plain.rstrip(), style)
        for start, text, style in parts
        if text
        for i, line in enumerate(Text(text).wrap(_FOLDING, inside, overflow="fold"))
    ]


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
    limits = grouped(
        (titles[id(arm)], view.label_among(arm, family)) for arm in arms if id(arm) in titles
    )
    lines = [
        f"What limits {fmt.listed(labels, MOST_SENTENCES)} most: {title}."
        for title, labels in limits.items()
    ]
    for arm in arms:
        best = max(arm.causes, key=lambda one: one.measured_gain_pct or 0.0)
        if (best.measured_gain_pct or 0.0) > 0:
            label = view.label_among(arm, family)
            lines.append(f"Best measured for {label}: {fmt.clean(best.fix)} ({gains(best)}).")
    return lines
