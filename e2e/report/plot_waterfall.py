"""The charts of ledgers: a waterfall from one recipe's step time to another's, line by line."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

from e2e.report.arms import View
from e2e.report.ledger import base_name, changes, has_ledger, is_sound, ledger_title, term_words
from e2e.report.plot_style import BARS_WIDTH, NEUTRAL
from e2e.results.terms import RESIDUAL
from e2e.results.types import Training
from microbench.report.drawing_style import INK, library, panel_title
from microbench.results.types import Json

# By Okabe and Ito: safe for red-green colour blindness.
WHOLE, SAVED, ADDED, REST = "#555555", "#009e73", "#d55e00", "#cc79a7"
MOST_PANELS = 4
LINE = 22  # height of a waterfall's line
ROOM = 0.16  # of the range, right of the bars, for the numbers


def waterfall_panels(view: View) -> list[Any]:
    """One panel per ledger, MOST_PANELS at most. Without ledgers, Altair is not needed."""
    found = [arm for arm in view.arms if has_ledger(arm) and is_sound(view, arm)]
    shown = found[:MOST_PANELS]
    titles = [ledger_title(view, arm) for arm in shown]
    if len(found) > MOST_PANELS:
        titles[-1] += f" (and {len(found) - MOST_PANELS} more in the run)"
    rows = [waterfall_rows(arm, view.label(arm)) for arm in shown]
    return [_panel(library(), *one) for one in zip(titles, rows, strict=True)]


def waterfall_rows(arm: Training, label: str) -> list[Json]:
    """One row per line of the ledger, in ms, small terms folded; whole steps begin at 0."""
    *terms, whole = changes(arm, fold=True)
    first_ms, last_ms = whole.base_ms or 0.0, whole.other_ms or 0.0
    ends = list(accumulate((one.ms for one in terms), initial=first_ms))
    bars = [(f"{base_name(arm)} step", 0.0, first_ms, f"{first_ms:.4g} ms", WHOLE)]
    for one, start, end in zip(terms, ends, ends[1:], strict=False):
        colour = SAVED if one.ms < 0 else ADDED if one.ms > 0 else NEUTRAL
        colour = REST if one.term == RESIDUAL else colour
        bars.append((term_words(one.term), start, end, f"{one.ms:+.3g}", colour))
    bars.append((f"{label} step", 0.0, last_ms, f"{last_ms:.4g} ms", WHOLE))
    return [
        {
            "place": place, "term": term, "low": min(start, end), "high": max(start, end),
            "end": end, "next": place + 1, "text": text, "colour": colour,
        }
        for place, (term, start, end, text, colour) in enumerate(bars)
    ]  # fmt: skip


def _panel(alt: Any, title: str, rows: list[Json]) -> Any:
    low, high = min(0.0, *(row["low"] for row in rows)), max(row["high"] for row in rows)
    scale = alt.Scale(domain=[low, high + (high - low) * ROOM], nice=False)
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
