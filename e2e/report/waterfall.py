"""Ledgers as waterfalls in characters: a line a term, its bar from where the last one ended."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from e2e.report.arms import View
from e2e.report.ledger import (
    NOTHING_SHARE,
    SMALL_SHARE,
    Bar,
    Waterfall,
    account,
    ledger_title,
    waterfall,
    with_ledgers,
)
from e2e.results.types import LedgerLine, Training
from microbench import fmt
from microbench.report.grid import Column, Grid, Row

WHOLE, SAVED, ADDED, NOTHING = "━", "<", ">", "│"
READING = f"{SAVED} time saved, {ADDED} time added; a bar begins where the one above it ends"
STYLES = {WHOLE: "bold", SAVED: "green", ADDED: "red", NOTHING: "dim"}
SOURCES = {
    "measured": "measured: in the run",
    "replayed": "replayed: its operations run one by one",
    "predicted": "predicted: by the model of a step",
}
LABEL_SHARE = 0.4  # of the width, at most, for the terms
FEWEST_BAR, SOURCE_WIDTH = 12, 9
MOST_SHOWN = 4

Section = tuple[str, list[Text]]


def waterfall_sections(
    view: View, width: int, *, details: bool = False
) -> list[tuple[Training, Section]]:
    """(title, lines) of each training's ledger, no wider than `width`; the first MOST_SHOWN without
    `details`, which adds what each term is."""
    found = with_ledgers(view.groups)
    shown = found if details else found[:MOST_SHOWN]
    sections = [
        (
            arm,
            (
                ledger_title(view, group, arm),
                _section(view, arm, width, details=details, legend=place == 0),
            ),
        )
        for place, (group, arm) in enumerate(shown)
    ]
    if len(found) > len(shown):
        more = fmt.count(len(found) - len(shown), "more ledger")
        sections[-1][1][1].append(Text(f"and {more} (--verbose shows all)", "dim"))
    return sections


def _section(view: View, arm: Training, width: int, *, details: bool, legend: bool) -> list[Text]:
    fall = waterfall(arm)
    lines, left_out = _drawn(fall, width)
    notes = [
        *([READING, "; ".join(SOURCES.values())] if legend else []),
        _small(fall),
        f"left out to fit {fmt.count(width, 'column')}: {', '.join(left_out)}" * bool(left_out),
    ]
    told = [Text(line, "dim") for line in notes if line]
    said = [Text(sentence) for sentence in account(arm, view.label(arm))]
    return [*lines, *told, *said, *(_details(arm.ledger) if details else [])]


def _drawn(fall: Waterfall, width: int) -> tuple[list[Text], list[str]]:
    """The lines, and the titles of the columns that had no room."""
    longest = max(cell_len(bar.term) for bar in fall.bars)
    label_width = min(longest, max(8, int(width * LABEL_SHARE)))
    digits = max(len("change"), *(len(bar.text) for bar in fall.bars))
    source = max(len("source"), *(min(SOURCE_WIDTH, cell_len(bar.source)) for bar in fall.bars))
    room = width - label_width - digits - 4
    with_source = room - source - 2 >= FEWEST_BAR
    room -= (source + 2) * with_source
    grid = Grid([
        Column("term"),
        Column("change", right=True),
        *([Column(_scale(fall, room))] if room >= FEWEST_BAR else []),
        *([Column("source")] if with_source else []),
    ])  # fmt: skip
    for bar in fall.bars:
        drawn = _bar(bar, fall, room)
        cells = [
            _cut(bar.term, label_width),
            bar.text,
            *([drawn] if room >= FEWEST_BAR else []),
            *([_cut(bar.source, source)] if with_source else []),
        ]
        grid.rows.append(Row(cells, style=STYLES[drawn.strip()[:1] or NOTHING]))
    lines, _ = grid.lines(width)
    return lines, [] if with_source else ["source"]


def _cut(text: str, width: int) -> str:
    line = Text(text)
    line.truncate(width, overflow="ellipsis")
    return line.plain


def _scale(fall: Waterfall, room: int) -> str:
    """The axis, as the title of the bars' column: "0          242 ms"."""
    low, _ = fall.range_ms
    left = f"{fmt.number(low)}" if low else "0"
    return left + fall.unit.rjust(room - len(left))


def _bar(bar: Bar, fall: Waterfall, room: int) -> str:
    """The bar at its place, of `room` columns; at least one character of it."""
    low, high = fall.range_ms
    ends = [
        round(room * (ms - low) / (high - low)) if high > low else 0
        for ms in (bar.start_ms, bar.end_ms)
    ]
    if bar.whole:
        sign = WHOLE
    elif float(bar.text) == 0:
        sign = NOTHING
    else:
        sign = SAVED if bar.ms < 0 else ADDED
    start = min(*ends, room - 1)
    length = 1 if sign == NOTHING else max(1, abs(ends[1] - ends[0]))
    return (" " * start + sign * length).ljust(room)


def _small(fall: Waterfall) -> str:
    """The terms that share a line, each with its number."""
    if not fall.small:
        return ""
    least_ms = NOTHING_SHARE * fall.bars[0].ms
    names = {line.term: fmt.clean(line.term) or "-" for line in fall.small}
    changed = [line for line in fall.small if abs(line.ms) > least_ms]
    parts = [f"{names[line.term]} {line.ms:+.2g}" for line in changed]
    same = [names[line.term] for line in fall.small if line not in changed]
    parts += [f"no change in {fmt.joined(same)}"] if same else []
    return f"small terms, each under {100 * SMALL_SHARE:g} % of the first step: {', '.join(parts)}"


def _details(ledger: Sequence[LedgerLine]) -> list[Text]:
    return [
        Text(f"  {fmt.clean(line.term)}: ", "bold").append(fmt.clean(line.detail), "not bold")
        for line in ledger
        if fmt.clean(line.detail)
    ]
