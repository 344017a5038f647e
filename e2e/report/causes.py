"""What would make a training faster, and why it is no faster: its fixes and findings, in words.

How they are laid out on the screen is in `cause_lines`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from e2e.report.arms import Group, View
from e2e.results.types import Cause, Training
from microbench import fmt

FIXES, FINDINGS = "What would make it faster", "Why it is no faster"
UNKNOWN = "gain not predicted"
MOST_TOLD = 4


def with_causes(groups: Sequence[Group]) -> list[tuple[Group, Training]]:
    """The arms that have fixes or findings, each with its group."""
    return [(group, arm) for group in groups for arm in group.arms if arm.causes]


def causes_title(title: str, view: View, group: Group, arm: Training) -> str:
    """ "What would make it faster: amp (batch 256)"."""
    return f"{title}: {view.label(arm)}{f' ({group.title})' * bool(group.title)}"


def fixes(arm: Training) -> list[Cause]:
    """What could be done, the largest predicted gain first; what nobody predicted is last."""
    found = [cause for cause in arm.causes if fix_words(cause)]
    return sorted(found, key=lambda cause: -_or_least(predicted_pct(cause)))


def findings(arm: Training) -> list[Cause]:
    """Reasons that come without a fix, in the order of the file."""
    return [cause for cause in arm.causes if not fix_words(cause)]


def fix_words(cause: Cause) -> str:
    """The fix as words to type, or in a phrase; "" for a finding."""
    return fmt.clean(cause.fix)


def title_words(cause: Cause) -> str:
    """The cause by name."""
    return fmt.clean(cause.title) or "-"


def explanation(cause: Cause) -> str:
    """Why the fix helps: "channels_last: predicted 25,600 instead of 15,059 img/s"."""
    title, why = title_words(cause), fmt.clean(cause.why)
    return why if why and title == fix_words(cause) else f"{title}: {why or 'no reason given'}"


# ---------------------------------------------------------------- gains


def predicted_pct(cause: Cause) -> float | None:
    """The predicted gain to a tenth, as it is shown; None where there is none."""
    return _shown(cause.predicted_gain_pct)


def measured_pct(cause: Cause) -> float | None:
    """The measured gain to a tenth, as it is shown; None where there is none."""
    return _shown(cause.measured_gain_pct)


def difference_points(cause: Cause) -> float | None:
    """Measured less predicted gain, of the numbers as they are shown."""
    predicted, measured = predicted_pct(cause), measured_pct(cause)
    return None if predicted is None or measured is None else _shown(measured - predicted)


def gain_cells(cause: Cause) -> list[str]:
    """Predicted gain, measured gain, and the difference: ["+70.0 %", "+65.2 %", "-4.8"]."""
    points = difference_points(cause)
    return [
        *("" if gain is None else fmt.signed_pct(gain)
          for gain in (predicted_pct(cause), measured_pct(cause))),
        "" if points is None else fmt.signed(points),
    ]  # fmt: skip


def verified(arm: Training) -> str:
    """How far the predicted gains are from the measured ones; "" where none was measured."""
    known = [points for fix in fixes(arm) if (points := difference_points(fix)) is not None]
    if not known:
        return ""
    gains = "gain" if len(known) == 1 else f"gains of {len(known)} fixes"
    within = fmt.signed(max(map(abs, known))).removeprefix("+")
    return f"verified: predicted within {within} points of the measured {gains}"


def _shown(value: float | None) -> float | None:
    """To a tenth; a zero has no sign."""
    return round(value, 1) + 0.0 if value is not None and math.isfinite(value) else None


def _or_least(gain_pct: float | None) -> float:
    return -math.inf if gain_pct is None else gain_pct


# ---------------------------------------------------------------- sentences


def cause_sentences(view: View, family: Sequence[Group]) -> list[str]:
    """For the end of the screen: the best fix of each training, with its gain."""
    several = len(family) > 1
    lines: list[str] = []
    for _, arm in with_causes(family):
        batch = f" (batch {arm.case.batch})" if several else ""
        lines += _best(arm, f"{view.label(arm)}{batch}")
    if len(lines) > MOST_TOLD:
        more = fmt.count(len(lines) - MOST_TOLD, "more training")
        lines[MOST_TOLD:] = [f"  And {more} with a fix, listed above."]
    return lines


def _best(arm: Training, label: str) -> list[str]:
    """The fix that gains most, by its measured gain where that is known."""
    gains = [(_gain_pct(fix), fix) for fix in fixes(arm)]
    known = [(gain_pct, fix) for gain_pct, fix in gains if gain_pct is not None]
    if not known:
        return []
    gain_pct, best = max(known, key=lambda pair: pair[0])
    predicted, measured, _ = gain_cells(best)
    numbers = [f"predicted {predicted}"] * bool(predicted) + [f"measured {measured}"] * bool(
        measured
    )
    named = f"{fix_words(best)} ({', '.join(numbers)})"
    if gain_pct > 0:
        return [f"What would make {label} faster, most of all: {named}."]
    return [f"No fix that is known makes {label} faster; the best is {named}."]


def _gain_pct(cause: Cause) -> float | None:
    measured = measured_pct(cause)
    return predicted_pct(cause) if measured is None else measured
