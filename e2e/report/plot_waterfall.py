"""Ledgers as charts: a waterfall an arm, from the baseline's step down to the arm's."""

from __future__ import annotations

import json
from typing import Any

from e2e.report.arms import View
from e2e.report.ledger import Bar, Waterfall, ledger_title, waterfall, with_ledgers
from e2e.results.types import RESIDUAL
from microbench.report.drawing_style import INK, library, panel_title
from microbench.results.types import Json

# Okabe and Ito's: told apart by those who see red and green alike; the signs say the same.
WHOLE, SAVED, ADDED, REST = "#555555", "#009e73", "#d55e00", "#cc79a7"
LINK = "#bbbbbb"
MOST_PANELS = 4
BAR, WIDTH = 22, 520  # height of a line, width of a panel
ROOM = 0.16  # of the range, right of the bars, for the numbers


def waterfall_panels(view: View) -> list[Any]:
    """A panel a ledger, the first MOST_PANELS of the run; none need not have the library."""
    found = with_ledgers(view.groups)
    titles = [ledger_title(view, group, arm) for group, arm in found[:MOST_PANELS]]
    if len(found) > MOST_PANELS:
        titles[-1] += f" (and {len(found) - MOST_PANELS} more in the run)"
    falls = [waterfall(arm) for _, arm in found[:MOST_PANELS]]
    return [_panel(library(), title, fall) for title, fall in zip(titles, falls, strict=True)]


def waterfall_rows(fall: Waterfall) -> list[Json]:
    """A row a line of the ledger, small terms folded as on the screen."""
    return [_row(place, bar) for place, bar in enumerate(fall.bars)]


def _row(place: int, bar: Bar) -> Json:
    low, high = sorted((bar.start_ms, bar.end_ms))
    return {
        "place": place,
        "term": bar.term,
        "low": low,
        "high": high,
        "end": bar.end_ms,
        "next": place + 1,
        "text": f"{bar.text} ms" if bar.whole else bar.text,
        "colour": _colour(bar),
    }


def _colour(bar: Bar) -> str:
    if bar.whole:
        return WHOLE
    if bar.term == RESIDUAL:
        return REST
    return SAVED if bar.ms < 0 else ADDED


def _panel(alt: Any, title: str, fall: Waterfall) -> Any:
    rows = waterfall_rows(fall)
    low, high = fall.range_ms
    room = (high - low) * ROOM
    scale = alt.Scale(domain=[low, high + room], nice=False)
    # Places, not terms, on the axis: two lines may have one name.
    terms = json.dumps([row["term"] for row in rows])
    names = alt.Axis(labelLimit=240, ticks=False, labelExpr=f"{terms}[datum.value]")
    y = alt.Y("place:O", title=None, axis=names)
    x_axis = alt.Axis(grid=False, tickCount=6)
    x = alt.X("low:Q", title="ms of a step", scale=scale, axis=x_axis)
    base = alt.Chart(alt.InlineData(values=rows))
    colour = alt.Color("colour:N", scale=None, legend=None)
    stroke = alt.Stroke("colour:N", scale=None, legend=None)  # so that small terms are seen
    links = alt.Chart(alt.InlineData(values=rows[:-1]))
    return alt.layer(
        links.mark_rule(color=LINK, strokeWidth=1).encode(
            x=alt.X("end:Q", title="ms of a step", scale=scale, axis=x_axis), y=y, y2="next:O"
        ),
        base.mark_bar(height=BAR * 0.68, strokeWidth=1).encode(
            x=x, x2="high:Q", y=y, color=colour, stroke=stroke
        ),
        base.mark_text(align="left", dx=5, fontSize=11.5, color=INK).encode(
            x=alt.X("high:Q", scale=scale), y=y, text="text:N"
        ),
    ).properties(width=WIDTH, height=BAR * len(rows), title=panel_title(alt, title))
