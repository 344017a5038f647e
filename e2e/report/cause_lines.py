"""Fixes and findings on the screen: a line each, and its sentence folded under it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from e2e.report.arms import Group, View
from e2e.report.causes import (
    FINDINGS,
    FIXES,
    UNKNOWN,
    causes_title,
    explanation,
    findings,
    fix_words,
    fixes,
    gain_cells,
    title_words,
    verified,
    with_causes,
)
from e2e.results.types import Cause, Training
from microbench import fmt
from microbench.report.grid import Column, Grid, Row

COLUMNS = (
    Column(""),
    Column("fix"),
    Column("predicted\ngain", right=True),
    Column("measured\ngain", right=True),
    Column("difference\nin points", right=True, drop=1),
)
HEADS = [max(map(cell_len, column.title.split("\n"))) for column in COLUMNS]
FEWEST_FIX = 12  # columns for a fix with numbers beside it
MOST_SHOWN = 4
INDENT = "  "

_FOLDING = Console()  # what rich wants to know before it folds text; nothing is printed on it

Section = tuple[str, list[Text]]


def cause_sections(
    view: View, width: int, *, details: bool = False
) -> list[tuple[Training, Section]]:
    """The fixes and the findings of each training, as sections of the screen no wider than `width`;
    those of the first MOST_SHOWN trainings without `details`."""
    found = with_causes(view.groups)
    shown = found if details else found[:MOST_SHOWN]
    sections = [
        (arm, section) for group, arm in shown for section in _sections(view, group, arm, width)
    ]
    if len(found) > len(shown):
        more = fmt.count(len(found) - len(shown), "more training")
        note = f"and fixes or findings of {more} (--verbose shows all)"
        sections[-1][1][1].append(Text(note, "dim"))
    return sections


def _sections(view: View, group: Group, arm: Training, width: int) -> list[Section]:
    parts = ((FIXES, _fixes(arm, width)), (FINDINGS, _findings(arm, width)))
    return [(causes_title(title, view, group, arm), lines) for title, lines in parts if lines]


def _fixes(arm: Training, width: int) -> list[Text]:
    """The ranked fixes, with a head where there are numbers, and how good the predictions were."""
    found = [(fix, gain_cells(fix)) for fix in fixes(arm)]
    if not found:
        return []
    number = len(f"{len(found)}.")
    beside = _width_of_gains([cells for _, cells in found])
    room = max(FEWEST_FIX, width - number - 2 - beside)
    rows: list[Row] = []
    for place, (fix, cells) in enumerate(found, 1):
        rows += _rows(fix, cells, f"{place}.".rjust(number), room, width)
    if beside:
        lines, left_out = Grid(COLUMNS, list(rows)).lines(width)
    else:
        lines, left_out = [Text(f"{row.cells[0]}  {row.sentence}", row.style) for row in rows], []
    notes = [
        verified(arm),
        f"left out to fit {fmt.count(width, 'column')}: {', '.join(left_out)}" * bool(left_out),
    ]
    return [*lines, *(Text(note, "dim") for note in notes if note)]


def _width_of_gains(rows: Sequence[Sequence[str]]) -> int:
    """Columns that the numbers beside the fixes take, with the gaps before them; 0 for none."""
    columns = zip(HEADS[2:], *rows, strict=True)
    return sum(2 + max(head, *map(len, gains)) for head, *gains in columns if any(gains))


def _rows(fix: Cause, cells: list[str], number: str, room: int, width: int) -> list[Row]:
    """The lines of a fix: it beside its numbers, or alone, then why."""
    blank = " " * len(number)
    inside = width - len(number) - 2
    if any(cells):
        first, *rest = _folded(fix_words(fix), room)
        rows = [Row([number, first, *cells], style="bold")]
        rows += [Row([blank, part], style="bold") for part in rest]
    else:
        first, *rest = _folded(f"{fix_words(fix)} ({UNKNOWN})", inside)
        rows = [Row([number], first, "bold"), *(Row([blank], part, "bold") for part in rest)]
    return [*rows, *(Row([blank], part) for part in _folded(explanation(fix), inside))]


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
