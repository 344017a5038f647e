"""What would make a training faster, and what limits it: its fixes and findings.

On the screen a fix takes one line, with its sentence indented below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from e2e.report.arms import Group, View, arms_of, in_order
from e2e.report.figures import signed_pct
from e2e.report.table import JOIN
from e2e.results.types import Cause, Training
from microbench import fmt
from microbench.break_even import MIN_GAIN
from microbench.report.screen import WIDTH
from microbench.report.table import Column, Row, Table, screen

UNKNOWN = "gain not predicted"
MOST_SENTENCES = 4
FEWEST_FIX = 12  # columns for a fix with numbers beside it
MOST_SHOWN = 4
INDENT = "  "

_FOLDING = Console()  # rich needs a console to wrap text; nothing is printed on it

Section = tuple[str, list[Text]]


def fixes_title(view: View, arm: Training) -> str:
    """ "What would make amp (batch 256) faster"."""
    return f"What would make {view.full_label(arm)} faster"


def findings_title(view: View, arm: Training) -> str:
    """ "What limits amp now"; "Why amp is no faster than tf32" where it is not."""
    label = view.full_label(arm)
    no_gain = [view.title(name) for name in in_order(_gain_of(arm)) if not _gain_of(arm)[name]]
    if not no_gain:
        return f"What limits {label} now"
    return f"Why {label} is no faster than {fmt.joined(no_gain)}"


def _gain_of(arm: Training) -> dict[str, bool]:
    """Whether the arm is faster than each baseline; by prediction where nothing was measured."""
    measured = {name: found for name, found in arm.speedup.items() if name != "previous"}
    if measured:
        return {
            name: found.ratio > 1 and (found.ci95 is None or found.ci95[0] > 1)
            for name, found in measured.items()
        }
    predicted = arm.predicted.speedup if arm.predicted else dict[str, float]()
    return {name: found >= MIN_GAIN for name, found in predicted.items() if name != "previous"}


def fixes(arm: Training) -> list[Cause]:
    """The fixes, the largest predicted gain first, those without a prediction last."""
    found = [cause for cause in arm.causes if fix_words(cause)]
    return sorted(found, key=lambda it: (predicted_pct(it) is None, -(predicted_pct(it) or 0.0)))


def findings(arm: Training) -> list[Cause]:
    """The causes without a fix, in the order of the file."""
    return [cause for cause in arm.causes if not fix_words(cause)]


def fix_words(cause: Cause) -> str:
    """The fix as words to type, or in a phrase; "" for a finding."""
    return fmt.clean(cause.fix)


def title_words(cause: Cause) -> str:
    """The cause's title."""
    return fmt.clean(cause.title) or "-"


def explanation(cause: Cause) -> str:
    """Why the fix helps, such as "channels_last: predicted 25,600 instead of 15,059 img/s"."""
    said_already = fmt.clean(cause.why) and title_words(cause) == fix_words(cause)
    return _reason(cause) if said_already else f"{title_words(cause)}: {_reason(cause)}"


def _reason(cause: Cause) -> str:
    return fmt.clean(cause.why) or "no reason given"


# ---------------------------------------------------------------- gains


def predicted_pct(cause: Cause) -> float | None:
    """The predicted gain in per cent, rounded as shown to one decimal; None where there is none."""
    return _shown(cause.predicted_gain_pct)


def measured_pct(cause: Cause) -> float | None:
    """The measured gain in per cent, rounded as shown to one decimal; None where there is none."""
    return _shown(cause.measured_gain_pct)


def difference_points(cause: Cause) -> float | None:
    """Measured less predicted gain in percentage points, of the rounded numbers."""
    predicted, measured = predicted_pct(cause), measured_pct(cause)
    return None if predicted is None or measured is None else _shown(measured - predicted)


def gain_cells(cause: Cause) -> list[str]:
    """Predicted gain, measured gain, and the difference: ["+70.0 %", "+65.2 %", "-4.8"]."""
    points = difference_points(cause)
    gains = [signed_pct(predicted_pct(cause)), signed_pct(measured_pct(cause))]
    return [*gains, "" if points is None else fmt.signed(points)]


def _gains(cause: Cause) -> list[str]:
    """["predicted +55.2 %", "measured +49.0 %"], those that are known."""
    named = zip(("predicted", "measured"), gain_cells(cause), strict=False)
    return [f"{how} {gain}" for how, gain in named if gain]


def verified(arm: Training) -> str:
    """How far predicted gains are from measured ones, in words; "" if none was measured."""
    known = [points for fix in fixes(arm) if (points := difference_points(fix)) is not None]
    if not known:
        return ""
    gains = "gain" if len(known) == 1 else f"gains of {len(known)} fixes"
    within = fmt.signed(max(map(abs, known))).removeprefix("+")
    return f"verified: predicted within {within} points of the measured {gains}"


def _shown(value: float | None) -> float | None:
    """To a tenth; a zero has no sign."""
    return round(value, 1) + 0.0 if value is not None and math.isfinite(value) else None


# ---------------------------------------------------------------- tables


@dataclass(frozen=True)
class FixLine:
    """A row of the fixes: a fix, or in narrow places a part of one, with its gains in per cent."""

    number: str
    fix: str = ""
    gains: Sequence[str] = ("", "", "")  # predicted, measured, difference in points
    why: str = ""


FIX_COLUMNS = (
    Column[FixLine]("", lambda line: line.number, key=True),
    Column[FixLine]("fix", lambda line: line.fix),
    Column[FixLine]("predicted\ngain", lambda line: line.gains[0], right=True),
    Column[FixLine]("measured\ngain", lambda line: line.gains[1], right=True),
    Column[FixLine]("difference,\npoints", lambda line: line.gains[2], right=True, drop=1),
    Column[FixLine]("why", markdown=lambda line: line.why),
)
HEADS = [max(map(cell_len, column.title.split("\n"))) for column in FIX_COLUMNS[2:5]]


def fixes_table(arm: Training) -> Table[FixLine]:
    """One row per fix, best first, for Markdown."""
    found = [
        FixLine(str(place), fix_words(fix), gain_cells(fix), explanation(fix))
        for place, fix in enumerate(fixes(arm), 1)
    ]
    return Table(FIX_COLUMNS, [Row(line) for line in found])


def findings_table(arm: Training) -> Table[Cause]:
    """One row per finding, for Markdown."""
    columns: list[Column[Cause]] = [
        Column("finding", title_words),
        Column("why", lambda cause: fmt.clean(cause.why)),
    ]
    return Table(columns, [Row(cause) for cause in findings(arm)])


def raw_columns() -> list[Column[Training]]:
    """Fixes and findings in CSV."""
    return [Column(csv={
        "fixes": lambda arm: JOIN.join(map(_fix_and_gains, fixes(arm))),
        "findings": lambda arm: JOIN.join(map(title_words, findings(arm))),
    })]  # fmt: skip


def _fix_and_gains(fix: Cause) -> str:
    """ "--graph: predicted +55.2 %, measured +49.0 %"."""
    return f"{fix_words(fix)}: {', '.join(_gains(fix)) or UNKNOWN}"


# ---------------------------------------------------------------- the screen


def cause_sections(
    view: View, width: int, *, details: bool = False
) -> list[tuple[Training, Section]]:
    """The fixes and findings of each training as sections of the screen, `width` columns wide.

    Without `details`, those of the first MOST_SHOWN trainings.
    """
    found = [arm for arm in view.arms if arm.causes]
    shown = found if details else found[:MOST_SHOWN]
    sections = [(arm, section) for arm in shown for section in _sections(view, arm, width)]
    if len(found) > len(shown):
        more = fmt.count(len(found) - len(shown), "more training")
        note = f"and fixes or findings of {more} (--verbose shows all)"
        sections[-1][1][1].append(Text(note, "dim"))
    return sections


def _sections(view: View, arm: Training, width: int) -> list[Section]:
    parts = (
        (fixes_title(view, arm), _fixes(arm, width)),
        (findings_title(view, arm), _findings(arm, width)),
    )
    return [(title, lines) for title, lines in parts if lines]


def _fixes(arm: Training, width: int) -> list[Text]:
    """The ranked fixes, with a head where there are numbers, and how good the predictions were."""
    found = [(fix, gain_cells(fix)) for fix in fixes(arm)]
    if not found:
        return []
    number = len(f"{len(found)}.")
    beside = _width_of_gains([cells for _, cells in found])
    fix_width = max(FEWEST_FIX, width - number - 2 - beside)
    rows = [
        row
        for place, (fix, cells) in enumerate(found, 1)
        for row in _rows(fix, cells, f"{place}.".rjust(number), fix_width, width)
    ]
    shown = screen(Table(FIX_COLUMNS, list(rows)), width)
    headless = [Text(f"{row.item.number}  {row.sentence}", row.style) for row in rows]
    lines = shown.lines if beside else headless
    notes = [verified(arm), shown.left_out_note(width) if beside else ""]
    return [*lines, *(Text(note, "dim") for note in notes if note)]


def _width_of_gains(rows: Sequence[Sequence[str]]) -> int:
    """Columns that the numbers beside the fixes take, with the gaps before them; 0 for none."""
    columns = zip(HEADS, *rows, strict=True)
    return sum(2 + max(head, *map(len, gains)) for head, *gains in columns if any(gains))


def _rows(
    fix: Cause, cells: list[str], number: str, fix_width: int, width: int
) -> list[Row[FixLine]]:
    """The lines of a fix: it beside its numbers, or alone, then why."""
    blank = " " * len(number)
    inside = width - len(number) - 2
    why = [Row(FixLine(blank), part) for part in _folded(explanation(fix), inside)]
    if any(cells):
        first, *rest = _folded(fix_words(fix), fix_width)
        lines = [FixLine(number, first, cells), *(FixLine(blank, part) for part in rest)]
        return [*(Row(line, style="bold") for line in lines), *why]
    first, *rest = _folded(f"{fix_words(fix)} ({UNKNOWN})", inside)
    more = [Row(FixLine(blank), part, "bold") for part in rest]
    return [Row(FixLine(number), first, "bold"), *more, *why]


def _findings(arm: Training, width: int) -> list[Text]:
    return [
        line
        for cause in findings(arm)
        for line in (
            Text(title_words(cause), "bold"),
            *(
                Text(INDENT + part)
                for part in _folded(_reason(cause), min(width, WIDTH) - len(INDENT))
            ),
        )
    ]


def _folded(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` columns, broken between words where it can be."""
    lines = Text(text).wrap(_FOLDING, max(2, width), overflow="fold")
    return [line.plain.rstrip() for line in lines] or [""]


# ---------------------------------------------------------------- sentences


def cause_sentences(view: View, family: Sequence[Group]) -> list[str]:
    """For the end of the screen: each training's best fix, with its gain."""
    said = (_best(arm, view.label_among(arm, family)) for arm in arms_of(family))
    lines = [line for line in said if line]
    if len(lines) > MOST_SENTENCES:
        more = fmt.count(len(lines) - MOST_SENTENCES, "more training")
        lines[MOST_SENTENCES:] = [f"  And {more} with a fix, listed above."]
    return lines


def _best(arm: Training, label: str) -> str:
    """The fix that gains most, by its measured gain where that is known; "" for none."""
    gains = [(_gain_pct(fix), fix) for fix in fixes(arm)]
    known = [(gain_pct, fix) for gain_pct, fix in gains if gain_pct is not None]
    if not known:
        return ""
    gain_pct, best = max(known, key=lambda pair: pair[0])
    named = f"{fix_words(best)} ({', '.join(_gains(best))})"
    if gain_pct > 0:
        return f"Best fix for {label}: {named}."
    return f"No known fix makes {label} faster; the best is {named}."


def _gain_pct(cause: Cause) -> float | None:
    measured = measured_pct(cause)
    return predicted_pct(cause) if measured is None else measured
