"""Ledgers as tables: one row per term; on the screen its bar starts where the last one ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.text import Text

from e2e.report.arms import View
from e2e.report.ledger import (
    NOTHING_SHARE,
    SMALL_SHARE,
    Bar,
    Waterfall,
    account,
    has_ledger,
    ledger_title,
    term_words,
    waterfall,
)
from e2e.report.table import JOIN, item
from e2e.results.types import LedgerLine, Training
from microbench import fmt
from microbench.report.table import Column, Row, Table, blank, screen

WHOLE, SAVED, ADDED, NOTHING = "━", "<", ">", "│"
READING = f"{SAVED} time saved, {ADDED} time added; a bar begins where the one above it ends"
STYLES = {WHOLE: "bold", SAVED: "green", ADDED: "red", NOTHING: "dim"}
SOURCES = {
    "measured": "measured: in this run",
    "traced": "traced: in the training's own steps, by torch's profiler",
    "replayed": "replayed: operations timed in isolation",
    "predicted": "predicted: by the step model",
}
LABEL_SHARE = 0.4  # of the width, at most, for the terms
FEWEST_BAR, SOURCE_WIDTH = 12, 9
MOST_SHOWN = 4

Section = tuple[str, list[Text]]


def waterfall_sections(
    view: View, width: int, *, details: bool = False
) -> list[tuple[Training, Section]]:
    """(title, lines) of each training's ledger, at most `width` columns wide.

    Only the first MOST_SHOWN without `details`, which also explains each term.
    """
    found = list(filter(has_ledger, view.arms))
    shown = found if details else found[:MOST_SHOWN]
    sections = [
        (arm, (ledger_title(view, arm),
               _section(view, arm, width, details=details, legend=place == 0)))
        for place, arm in enumerate(shown)
    ]  # fmt: skip
    if len(found) > len(shown):
        more = fmt.count(len(found) - len(shown), "more ledger")
        sections[-1][1][1].append(Text(f"and {more} (--verbose shows all)", "dim"))
    return sections


def _section(view: View, arm: Training, width: int, *, details: bool, legend: bool) -> list[Text]:
    fall = waterfall(arm)
    shown = screen(ledger_table(fall, width), width)
    *_, source_width = _widths(fall, width)
    if not source_width:
        shown = replace(shown, left_out=["source"])
    notes = [
        *([READING, "; ".join(_sources(view))] if legend else []),
        _small(fall),
        shown.left_out_note(width),
    ]
    dim = [Text(line, "dim") for line in notes if line]
    said = [Text(sentence) for sentence in account(arm, view.label(arm))]
    return [*shown.lines, *dim, *said, *(_details(arm.ledger) if details else [])]


def _sources(view: View) -> list[str]:
    """What the sources of these ledgers mean."""
    used = {line.source for arm in view.arms for line in arm.ledger}
    if used & {"replayed", "predicted"}:
        used |= {"measured", "replayed", "predicted"}
    return [text for name, text in SOURCES.items() if name in used]


def _widths(fall: Waterfall, width: int) -> tuple[int, int, int]:
    """Columns of text for the terms, the bars and the sources; 0 where they do not fit."""
    term = min(max(cell_len(bar.term) for bar in fall.bars), max(8, int(width * LABEL_SHARE)))
    digits = max(len("change"), *(len(bar.text) for bar in fall.bars))
    source = max(len("source"), *(min(SOURCE_WIDTH, cell_len(bar.source)) for bar in fall.bars))
    left = width - term - digits - 4
    with_source = left - source - 2 >= FEWEST_BAR
    left -= (source + 2) * with_source
    return term, left if left >= FEWEST_BAR else 0, source * with_source


def ledger_table(fall: Waterfall, width: int = 100) -> Table[Bar]:
    """One row per line of the ledger, in ms, drawn for a screen of `width` columns."""
    term_width, bar_width, source_width = _widths(fall, width)
    columns: list[Column[Bar]] = [
        Column("term", lambda bar: _cut(bar.term, term_width), markdown=lambda bar: bar.term),
        Column("change", lambda bar: bar.text, right=True, markdown_title="ms"),
        Column(_scale(fall, bar_width),
               (lambda bar: _bar(bar, fall, bar_width)) if bar_width else None, markdown=blank),
        Column("source", (lambda bar: _cut(bar.source, source_width)) if source_width else None,
               markdown=lambda bar: bar.source),
        Column("detail", markdown=lambda bar: bar.detail),
    ]  # fmt: skip
    return Table(columns, [Row(bar, style=STYLES[_sign(bar)]) for bar in fall.bars])


def raw_columns() -> list[Column[Training]]:
    """The ledger in CSV: its baseline, Amdahl's bound (a ratio), and each term with its ms."""
    return [Column(csv={
        "ledger_base": lambda arm: arm.ledger_base,
        "ledger_bound": lambda arm: arm.bound,
        "ledger_ms": lambda arm: JOIN.join(f"{line.term}: {line.ms:.9g}" for line in arm.ledger),
    })]  # fmt: skip


def _cut(text: str, width: int) -> str:
    line = Text(text)
    line.truncate(width, overflow="ellipsis")
    return line.plain


def _scale(fall: Waterfall, columns: int) -> str:
    """The axis, as the title of the bars' column: "0          242 ms"."""
    low, _ = fall.range_ms
    left = f"{fmt.number(low)}" if low else "0"
    return left + fall.unit.rjust(columns - len(left))


def _bar(bar: Bar, fall: Waterfall, columns: int) -> str:
    """The bar at its place, of `columns` columns; at least one character of it."""
    low, high = fall.range_ms
    ends = [
        round(columns * (ms - low) / (high - low)) if high > low else 0
        for ms in (bar.start_ms, bar.end_ms)
    ]
    sign = _sign(bar)
    start = min(*ends, columns - 1)
    length = 1 if sign == NOTHING else max(1, abs(ends[1] - ends[0]))
    return (" " * start + sign * length).ljust(columns)


def _sign(bar: Bar) -> str:
    if bar.whole:
        return WHOLE
    if float(bar.text) == 0:
        return NOTHING
    return SAVED if bar.ms < 0 else ADDED


def _small(fall: Waterfall) -> str:
    """The terms that share a line, each with its number."""
    if not fall.small:
        return ""
    least_ms = NOTHING_SHARE * fall.bars[0].ms
    names = {line.term: term_words(line.term) for line in fall.small}
    changed = [line for line in fall.small if abs(line.ms) > least_ms]
    parts = [f"{names[line.term]} {line.ms:+.2g}" for line in changed]
    same = [names[line.term] for line in fall.small if line not in changed]
    parts += [f"no change in {fmt.joined(same)}"] if same else []
    return f"small terms (each under {100 * SMALL_SHARE:g} % of the first step): {', '.join(parts)}"


def _details(ledger: Sequence[LedgerLine]) -> list[Text]:
    said = [(term_words(line.term), fmt.clean(line.detail)) for line in ledger]
    return [item(term, detail) for term, detail in said if detail]
