"""What would make a training faster, and why it is no faster: its fixes and findings.

On the screen a fix has a line, and its sentence is folded under it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from e2e.report.arms import Group, View
from e2e.report.table import JOIN
from e2e.results.types import Cause, Training
from microbench import fmt
from microbench.report.table import Column, Row, Table, screen

FIXES, FINDINGS = "What would make it faster", "Why it is no faster"
UNKNOWN = "gain not predicted"
MOST_TOLD = 4
FEWEST_FIX = 12  # columns for a fix with numbers beside it
MOST_SHOWN = 4
INDENT = "  "

_FOLDING = Console()  # what rich wants to know before it folds text; nothing is printed on it

Section = tuple[str, list[Text]]


def causes_title(title: str, view: View, arm: Training) -> str:
    """ "What would make it faster: amp (batch 256)"."""
    return f"{title}: {view.full_label(arm)}"


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


def _gains(cause: Cause) -> list[str]:
    """["predicted +55.2 %", "measured +49.0 %"], those that are known."""
    predicted, measured, _ = gain_cells(cause)
    named = {"predicted": predicted, "measured": measured}
    return [f"{how} {gain}" for how, gain in named.items() if gain]


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


# ---------------------------------------------------------------- tables


@dataclass(frozen=True)
class FixLine:
    """A line of the fixes: a fix, or in narrow places a part of it, with its gains."""

    number: str
    fix: str = ""
    gains: Sequence[str] = ("", "", "")  # predicted, measured, difference in points
    why: str = ""


FIX_COLUMNS = (
    Column[FixLine]("", lambda line: line.number, key=True),
    Column[FixLine]("fix", lambda line: line.fix),
    Column[FixLine]("predicted\ngain", lambda line: line.gains[0], right=True),
    Column[FixLine]("measured\ngain", lambda line: line.gains[1], right=True),
    Column[FixLine]("difference\nin points", lambda line: line.gains[2], right=True, drop=1),
    Column[FixLine]("why", markdown=lambda line: line.why),
)
HEADS = [max(map(cell_len, column.title.split("\n"))) for column in FIX_COLUMNS[2:5]]


def fixes_table(arm: Training) -> Table[FixLine]:
    """A row a fix, best first, for Markdown."""
    found = [
        FixLine(str(place), fix_words(fix), gain_cells(fix), explanation(fix))
        for place, fix in enumerate(fixes(arm), 1)
    ]
    return Table(FIX_COLUMNS, [Row(line) for line in found])


def findings_table(arm: Training) -> Table[Cause]:
    """A row a finding, for Markdown."""
    columns: list[Column[Cause]] = [
        Column("finding", title_words),
        Column("why", lambda cause: fmt.clean(cause.why)),
    ]
    return Table(columns, [Row(cause) for cause in findings(arm)])


def raw_columns() -> list[Column[Training]]:
    """Fixes and findings in CSV."""
    return [Column(csv={
        "fixes": lambda arm: JOIN.join(": ".join(_fix_and_gains(fix)) for fix in fixes(arm)),
        "findings": lambda arm: JOIN.join(map(title_words, findings(arm))),
    })]  # fmt: skip


def _fix_and_gains(fix: Cause) -> list[str]:
    """["--graph", "predicted +55.2 %, measured +49.0 %"]."""
    return [fix_words(fix), ", ".join(_gains(fix)) or UNKNOWN]


# ---------------------------------------------------------------- the screen


def cause_sections(
    view: View, width: int, *, details: bool = False
) -> list[tuple[Training, Section]]:
    """The fixes and the findings of each training, as sections of the screen no wider than `width`;
    those of the first MOST_SHOWN trainings without `details`."""
    found = [arm for arm in view.arms if arm.causes]
    shown = found if details else found[:MOST_SHOWN]
    sections = [(arm, section) for arm in shown for section in _sections(view, arm, width)]
    if len(found) > len(shown):
        more = fmt.count(len(found) - len(shown), "more training")
        note = f"and fixes or findings of {more} (--verbose shows all)"
        sections[-1][1][1].append(Text(note, "dim"))
    return sections


def _sections(view: View, arm: Training, width: int) -> list[Section]:
    parts = ((FIXES, _fixes(arm, width)), (FINDINGS, _findings(arm, width)))
    return [(causes_title(title, view, arm), lines) for title, lines in parts if lines]


def _fixes(arm: Training, width: int) -> list[Text]:
    """The ranked fixes, with a head where there are numbers, and how good the predictions were."""
    found = [(fix, gain_cells(fix)) for fix in fixes(arm)]
    if not found:
        return []
    number = len(f"{len(found)}.")
    beside = _width_of_gains([cells for _, cells in found])
    room = max(FEWEST_FIX, width - number - 2 - beside)
    rows: list[Row[FixLine]] = []
    for place, (fix, cells) in enumerate(found, 1):
        rows += _rows(fix, cells, f"{place}.".rjust(number), room, width)
    shown = screen(Table(FIX_COLUMNS, list(rows)), width)
    lines = shown.lines if beside else [_headless(row) for row in rows]
    notes = [verified(arm), shown.left_out_note(width) if beside else ""]
    return [*lines, *(Text(note, "dim") for note in notes if note)]


def _headless(row: Row[FixLine]) -> Text:
    return Text(f"{row.item.number}  {row.sentence}", row.style)


def _width_of_gains(rows: Sequence[Sequence[str]]) -> int:
    """Columns that the numbers beside the fixes take, with the gaps before them; 0 for none."""
    columns = zip(HEADS, *rows, strict=True)
    return sum(2 + max(head, *map(len, gains)) for head, *gains in columns if any(gains))


def _rows(fix: Cause, cells: list[str], number: str, room: int, width: int) -> list[Row[FixLine]]:
    """The lines of a fix: it beside its numbers, or alone, then why."""
    blank = " " * len(number)
    inside = width - len(number) - 2
    if any(cells):
        first, *rest = _folded(fix_words(fix), room)
        rows = [Row(FixLine(number, first, cells), style="bold")]
        rows += [Row(FixLine(blank, part), style="bold") for part in rest]
    else:
        first, *rest = _folded(f"{fix_words(fix)} ({UNKNOWN})", inside)
        rows = [Row(FixLine(number), first, "bold")]
        rows += [Row(FixLine(blank), part, "bold") for part in rest]
    return [*rows, *(Row(FixLine(blank), part) for part in _folded(explanation(fix), inside))]


def _findings(arm: Training, width: int) -> list[Text]:
    return [
        line
        for cause in findings(arm)
        for line in (
            Text(title_words(cause), "bold"),
            *(Text(INDENT + part) for part in _folded(_why(cause), width - len(INDENT))),
        )
    ]


def _why(cause: Cause) -> str:
    return fmt.clean(cause.why) or "no reason given"


def _folded(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` columns, broken between words where it can be."""
    lines = Text(text).wrap(_FOLDING, max(2, width), overflow="fold")
    return [line.plain.rstrip() for line in lines] or [""]


# ---------------------------------------------------------------- sentences


def cause_sentences(view: View, family: Sequence[Group]) -> list[str]:
    """For the end of the screen: the best fix of each training, with its gain."""
    arms = [arm for group in family for arm in group.arms]
    lines = [line for arm in arms for line in _best(arm, view.label_among(arm, family))]
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
    named = f"{fix_words(best)} ({', '.join(_gains(best))})"
    if gain_pct > 0:
        return [f"What would make {label} faster, most of all: {named}."]
    return [f"No fix that is known makes {label} faster; the best is {named}."]


def _gain_pct(cause: Cause) -> float | None:
    measured = measured_pct(cause)
    return predicted_pct(cause) if measured is None else measured
