"""The chart of rate against size: a line a precision and back end, the ceilings above them."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from microbench import fmt
from microbench.errors import UserError
from microbench.report.canvas import log_ticks
from microbench.report.drawing_data import Lines, Panel, drawable, line_rows
from microbench.report.drawing_style import (
    COLOURS,
    FAINT,
    OTHER_COLOUR,
    heading,
    library,
    panel_title,
    styled,
)
from microbench.results.types import Json, Run

MARKERS = ("circle", "triangle-up", "square", "diamond", "cross")  # the first is drawn filled
CLOSE = 9  # pixels between two sizes: under it their points cover each other
DASHES = {"tf32": [7, 4], "fp64": [2, 3]}  # greys alone are hard to tell apart
READING = (
    "equal steps up are equal factors: the gap between two lines is a speed-up",
    "bars: 95 % interval of the median, where it can be seen",
)
READING_CEILINGS = (
    "dotted: ceilings; peak: dense, of the datasheet; largest: the fastest large gemm measured here"
)


def line_chart(run: Run) -> Any:
    """Rate against size (both logarithmic), a panel for each setting; UserError for no such data.

    Returns an Altair chart.
    """
    results = drawable(run)
    if not results:
        raise UserError(
            "nothing to draw: the run holds no measurement at a size that is one number"
        )
    lines = line_rows(run, results)
    alt = library()
    reading = [*READING, *([READING_CEILINGS] if lines.ceilings else [])]
    missing = sum(panel.missing for panel in lines.panels.values())
    if missing:
        reading.append(f"{fmt.count(missing, 'case')} without a measurement: no point there")
    panels = [_panel(alt, panel, lines) for panel in lines.panels.values()]
    columns = len({column for _, column in lines.panels})
    if len({row for row, _ in lines.panels}) == 1 and columns > 3:
        columns = 2 if columns == 4 else 3
    chart = panels[0] if len(panels) == 1 else alt.concat(*panels, columns=columns, spacing=30)
    return styled(chart.properties(title=heading(run, results, reading)))


def _panel(alt: Any, panel: Panel, lines: Lines) -> Any:
    y = alt.Y(
        "rate:Q",
        title=lines.unit,
        scale=alt.Scale(type="log", domain=list(lines.y_range), nice=False),
        axis=alt.Axis(values=log_ticks(*lines.y_range), format="~g"),
    )
    x = _sizes(alt, lines)
    width, height = lines.size
    return alt.layer(
        *_rules(alt, y, lines), *_curves(alt, x, y, panel, lines), *_texts(alt, panel, lines)
    ).properties(width=width, height=height, title=panel_title(alt, panel.title))


def _sizes(alt: Any, lines: Lines) -> Any:
    """The axis of sizes: logarithmic, or evenly spaced where neighbours would lie on each other."""
    sizes = lines.sizes
    whole = math.log(sizes[-1] / sizes[0])
    close = len(sizes) == 1 or any(
        math.log(b / a) / whole * lines.size[0] < CLOSE for a, b in pairwise(sizes)
    )
    if close:
        title = f"{lines.axis} (not to scale)" if len(sizes) > 1 else lines.axis
        look = alt.Axis(labelAngle=0, labelOverlap="greedy", labelSeparation=6)
        scale = alt.Scale(domain=sizes, padding=0.5)
        return alt.X("size:O", title=title, scale=scale, axis=look)
    scale = alt.Scale(type="log", domain=[sizes[0], sizes[-1]], padding=14, nice=False)
    look = alt.Axis(values=sizes, format="d", grid=False, labelOverlap="greedy", labelSeparation=6)
    return alt.X("size:Q", title=lines.axis, scale=scale, axis=look)


def _colour(alt: Any, lines: Lines) -> Any:
    colours = [COLOURS.get(p, OTHER_COLOUR) for p in lines.precisions]
    scale = alt.Scale(domain=list(lines.precisions), range=colours)
    return alt.Color("precision:N", scale=scale, legend=None)


def _curves(alt: Any, x: Any, y: Any, panel: Panel, lines: Lines) -> list[Any]:
    """Lines, intervals and points."""
    base = alt.Chart(alt.InlineData(values=panel.points))
    colour = _colour(alt, lines)
    dashes = [DASHES.get(p, [1, 0]) for p in lines.precisions]
    dash = alt.StrokeDash(
        "precision:N", scale=alt.Scale(domain=list(lines.precisions), range=dashes), legend=None
    )
    told = [
        alt.Tooltip("arm:N"), alt.Tooltip("size:Q"), alt.Tooltip("rate:Q", format=".3s"),
        alt.Tooltip("low:Q", format=".3s"), alt.Tooltip("high:Q", format=".3s"),
        alt.Tooltip("bound:N"),
    ]  # fmt: skip
    low = alt.Y("low:Q", title=lines.unit)
    point = base.encode(x=x, y=y, color=colour, tooltip=told)
    return [
        base.mark_line(strokeWidth=2).encode(
            x=x, y=y, color=colour, strokeDash=dash, detail="segment:N"
        ),
        base.mark_rule(strokeWidth=5, opacity=0.4).encode(x=x, y=low, y2="high:Q", color=colour),
        *_points_of(alt, point, lines),
    ]


def _points_of(alt: Any, chart: Any, lines: Lines) -> list[Any]:
    """The chart as points of each back end's shape: the first filled, the others hollow."""
    shapes = [MARKERS[i % len(MARKERS)] for i in range(len(lines.markers))]
    scale = alt.Scale(domain=list(lines.markers), range=shapes)
    chart = chart.encode(shape=alt.Shape("marker:N", scale=scale, legend=None))
    first = lines.markers[0]
    return [
        chart.transform_filter(alt.datum.marker != first).mark_point(
            filled=False, size=110, opacity=1, strokeWidth=1.4
        ),
        chart.transform_filter(alt.datum.marker == first).mark_point(
            filled=True, size=46, opacity=1
        ),
    ]


def _rules(alt: Any, y: Any, lines: Lines) -> list[Any]:
    data = alt.Chart(alt.InlineData(values=list(lines.ceilings)))
    return [
        data.mark_rule(strokeDash=[1, 3], strokeWidth=1.6).encode(y=y, color=_colour(alt, lines))
    ] if lines.ceilings else []  # fmt: skip


def _texts(alt: Any, panel: Panel, lines: Lines) -> list[Any]:
    """The labels of the ceilings (in the panel, with a white rim) and of the curves (beside it)."""
    place = alt.Y("place:Q", title=lines.unit)
    found: list[Any] = []
    if lines.ceilings and panel.points:
        named = [row for row in lines.ceilings if row["text"]]
        text = alt.Chart(alt.InlineData(values=named)).encode(
            x=alt.value(5), y=place, text="text:N"
        )
        look: Json = {"align": "left", "baseline": "bottom", "fontSize": 10.5, "dy": -1}
        found += [
            text.mark_text(**look, color="white", stroke="white", strokeWidth=3),
            text.mark_text(**look, color=FAINT),
        ]
    if panel.points:
        return [*found, *_names(alt, panel, lines, place)]
    note = alt.Chart(alt.InlineData(values=[{"text": "not measured"}]))
    return [
        note.mark_text(fontSize=13, color=FAINT).encode(
            x=alt.value(lines.size[0] / 2),
            y=alt.value(lines.size[1] / 2),
            text="text:N",
        )
    ]


def _names(alt: Any, panel: Panel, lines: Lines, place: Any) -> list[Any]:
    """The name of each curve right of the panel, after its marker where there are several."""
    base = alt.Chart(alt.InlineData(values=panel.labels)).encode(y=place, color=_colour(alt, lines))
    several = len(lines.markers) > 1
    names = base.mark_text(
        align="left", baseline="middle", fontSize=12, fontWeight="bold", dx=24 if several else 8
    ).encode(x=alt.value(lines.size[0]), text="text:N")
    beside = base.encode(x=alt.value(lines.size[0] + 14))
    return [names, *(_points_of(alt, beside, lines) if several else [])]
