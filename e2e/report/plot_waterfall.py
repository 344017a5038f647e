"""The charts of ledgers: a waterfall from one recipe's step time to another's, line by line."""

from __future__ import annotations

import json
from typing import Any

from e2e.report.arms import View
from e2e.report.ledger import Bar, Waterfall, has_ledger, is_residual, ledger_title, waterfall
from e2e.report.plot_style import BARS_WIDTH, NEUTRAL
from microbench.report.drawing_style import INK, library, panel_title
from microbench.results.types import Json

# By Okabe and Ito: safe for red-green colour blindness.
WHOLE, SAVED, ADDED, REST = "#555555", "#009e73", "#d55e00", "#cc79a7"
MOST_PANELS = 4
LINE = 22  # height of a waterfall's line
ROOM = 0.16  # of the range, right of the bars, for the numbers


def waterfall_panels(view: View) -> list[Any]:
    """One panel per ledger, MOST_PANELS at most. Without ledgers, Altair is not needed."""
    found = list(filter(has_ledger, view.arms))
    shown = found[:MOST_PANELS]
    titles = [ledger_title(view, arm) for arm in shown]
    if len(found) > MOST_PANELS:
        titles[-1] += f" (and {len(found) - MOST_PANELS} more in the run)"
    falls = zip(titles, map(waterfall, shown), strict=True)
    return [_waterfall_panel(library(), title, fall) for title, fall in falls]


def waterfall_rows(fall: Waterfall) -> list[Json]:
    """One row per line of the ledger, in ms, small terms folded as on the screen."""
    return [
        {
            "place": place,
            "term": bar.term,
            "low": min(bar.start_ms, bar.end_ms),
            "high": max(bar.start_ms, bar.end_ms),
            "end": bar.end_ms,
            "next": place + 1,
            "text": bar.text + " ms" * bar.whole,
            "colour": _colour(bar),
        }
        for place, bar in enumerate(fall.bars)
    ]


def _colour(bar: Bar) -> str:
    if bar.whole:
        return WHOLE
    if is_residual(bar):
        return REST
    if float(bar.text) == 0:
        return NEUTRAL
    return SAVED if bar.ms < 0 else ADDED


def _waterfall_panel(alt: Any, title: str, fall: Waterfall) -> Any:
    rows = waterfall_rows(fall)
    low, high = fall.range_ms
    margin = (high - low) * ROOM
    scale = alt.Scale(domain=[low, high + margin], nice=False)
    # Places, not terms, on the axis: two lines may have one name.
    terms = json.dumps([row["term"] for row in rows])
    names = alt.Axis(labelLimit=240, ticks=False, labelExpr=f"{terms}[datum.value]")
    y = alt.Y("place:O", title=None, axis=names)
    x_axis = alt.Axis(grid=False, tickCount=6)
    x = alt.X("low:Q", title="ms/step", scale=scale, axis=x_axis)
    base = alt.Chart(alt.InlineData(values=rows))
    colour = alt.Color("colour:N", scale=None, legend=None)
    stroke = alt.Stroke("colour:N", scale=None, legend=None)  # so that small terms are seen
    links = alt.Chart(alt.InlineData(values=rows[:-1]))
    return alt.layer(
        links.mark_rule(color=NEUTRAL, strokeWidth=1).encode(
            x=alt.X("end:Q", title="ms/step", scale=scale, axis=x_axis), y=y, y2="next:O"
        ),
        base.mark_bar(height=LINE * 0.68, strokeWidth=1).encode(
            x=x, x2="high:Q", y=y, color=colour, stroke=stroke
        ),
        base.mark_text(align="left", dx=5, fontSize=11.5, color=INK).encode(
            x=alt.X("high:Q", scale=scale), y=y, text="text:N"
        ),
    ).properties(width=BARS_WIDTH, height=LINE * len(rows), title=panel_title(alt, title))
