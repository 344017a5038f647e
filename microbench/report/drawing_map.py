"""The break-even map: speed-up by channels, image and batch, over each baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kernels import OPS
from microbench import fmt
from microbench.break_even import library_or_best
from microbench.errors import UserError
from microbench.report.arms import arms_of
from microbench.report.drawing_style import (
    FAINT,
    INK,
    PALE,
    check_panels,
    heading,
    in_words,
    library,
    ordered,
    panel_title,
    settings_of,
    styled,
    varying,
)
from microbench.results.types import Json, Result, Run

AXES = ("image", "batch")  # the settings that lie across the map; the size runs up it
MOST_BESIDE = 12  # places across: wider maps are stacked
CELL = (50, 36)  # width and height, pixels
MOST = 4.0  # times faster or slower: from here on the colour stays
SLOWER, SAME, FASTER = "#d55e00", "#ffffff", "#0072b2"  # of Okabe and Ito's palette
DARK = 2.4  # times: from here on text is white
# Slanted lines, as an SVG path.
HATCH = "M-1,-.1L-.5,-.6M-1,.4L0,-.6M-.7,.6L.5,-.6M-.2,.6L1,-.6M.3,.6L1,-.1M.8,.6L1,.4"
READING = (
    "in a cell: the speed-up (below 1: slower) and the bottleneck",
    "hatched, ~1: no difference seen (the 95 % interval holds 1); ?: too few rounds; "
    "grey: not measured, same side of break-even as its neighbour",
)


def payoff_map(run: Run) -> Any:
    """Speed-up of the asked precision, a panel per baseline and setting; an Altair chart.

    UserError for a run without speed-ups, or with too many panels.
    """
    cells = map_rows(run)
    if not cells:
        raise UserError("nothing to draw: the run has no speed-up over fp32 or tf32")
    rows = ordered(c["row"] for c in cells)
    columns = list(dict.fromkeys(c["column"] for c in cells))
    check_panels(f"a map of {len(rows) * len(columns)} panels", len(rows) * len(columns))
    alt = library()
    places = sorted({c["place"] for c in cells}, key=lambda v: tuple(map(_mean, v.split("/"))))
    sizes = sorted({c["size"] for c in cells}, key=lambda v: (_mean(v), v))
    panels = [
        _panel(alt, [c for c in cells if (c["row"], c["column"]) == (row, column)],
               ", ".join(part for part in (row, column) if part), places, sizes)
        for row in rows for column in columns
    ]  # fmt: skip
    drawn = [r for r in _chosen(run) if r.speedup]
    beside = len(columns) if len(places) <= MOST_BESIDE else 1
    chart = alt.concat(*panels, columns=beside, spacing=24)
    return styled(chart.properties(title=heading(run, drawn, READING)))


def map_rows(run: Run) -> list[Json]:
    """A dictionary per cell: ratio, interval, bottleneck, and its panel and position."""
    results, arms = _chosen(run), arms_of(run)
    names = [name for name in varying(results) if name not in AXES]
    pairs = [(p, b) for p in arms.asked for b in arms.baselines if p != b]
    return [
        _cell(result, baseline, in_words(result.case, names), several=len(arms.asked) > 1)
        for precision, baseline in pairs
        for result in results
        if result.case.precision_name == precision and baseline in result.speedup
    ]


def _cell(result: Result, baseline: str, row: str, *, several: bool) -> Json:
    case, ratio = result.case, result.speedup[baseline]
    interval, same = ratio.ci95, ratio.no_difference
    return {
        "row": row,
        "column": fmt.clean(f"{case.precision_name if several else ''} against {baseline}"),
        "place": "/".join(settings_of(case).get(name, "") for name in AXES),
        "size": fmt.size(case),
        "ratio": ratio.ratio,
        "low": interval[0] if interval else None,
        "high": interval[1] if interval else None,
        "same": same,
        "shade": 1.0 if same else ratio.ratio,
        "text": fmt.short_ratio(ratio) + ("" if interval else "?"),
        "bound": fmt.clean(result.bound or ""),
        "why": fmt.clean(result.why or ""),
    }


def _chosen(run: Run) -> list[Result]:
    asked = arms_of(run).asked
    return [
        result
        for precision in asked
        for result in library_or_best(
            [r for r in run.results if r.case.precision_name == precision]
        )
    ]


def _mean(value: str) -> float:
    """The geometric mean of a size's numbers; 0 for what is no size."""
    parts = value.split("x")
    if not all(part.isdecimal() for part in parts):
        return 0.0
    return math.prod(int(part) for part in parts) ** (1 / len(parts))


def _panel(
    alt: Any, cells: Sequence[Json], title: str, places: Sequence[str], sizes: Sequence[str]
) -> Any:
    """The cells as squares of colour, the hatch over those without a difference, and the text."""
    base = alt.Chart(alt.InlineData(values=list(cells))).encode(
        x=alt.X("place:N", title="image (pixels), batch", scale=alt.Scale(domain=list(places)),
                axis=alt.Axis(labelAngle=0, labelExpr="split(datum.label, '/')")),
        y=alt.Y("size:N", title=OPS["conv"].axis_name,
                scale=alt.Scale(domain=list(reversed(sizes)))),
    )  # fmt: skip
    told = [
        alt.Tooltip("ratio:Q", title="speed-up", format=".3f"),
        alt.Tooltip("low:Q", title="95 % low", format=".3f"),
        alt.Tooltip("high:Q", title="95 % high", format=".3f"),
        alt.Tooltip("bound:N", title="bottleneck"), alt.Tooltip("why:N"),
        alt.Tooltip("size:N", title="channels"), alt.Tooltip("place:N", title="image/batch"),
    ]  # fmt: skip
    hatch = base.transform_filter("datum.same").mark_point(
        shape=HATCH, size=CELL[0] ** 2 * 0.85, filled=False, stroke="#b0b0b0", strokeWidth=1
    )
    far = f"datum.shade > {DARK} || datum.shade < {1 / DARK}"
    text = base.encode(color=alt.condition(far, alt.value("white"), alt.value(INK)))
    layers = [
        base.mark_rect(stroke="white", strokeWidth=1).encode(color=_colour(alt), tooltip=told),
        hatch,
        text.mark_text(fontSize=13, fontWeight="bold", dy=-6).encode(text="text:N"),
        text.mark_text(fontSize=9, dy=9).encode(text="bound:N"),
    ]
    return alt.layer(*layers).properties(
        width=CELL[0] * len(places),
        height=CELL[1] * len(sizes),
        title=panel_title(alt, title),
        view=alt.ViewConfig(fill=PALE),
    )


def _colour(alt: Any) -> Any:
    """Blue for faster, orange for slower, white for neither; equal factors are equal steps."""
    scale = alt.Scale(
        type="log",
        domain=[1 / MOST, 1, MOST],
        range=[SLOWER, SAME, FASTER],
        clamp=True,
        interpolate="rgb",
    )
    label = (
        f"datum.value >= {MOST} ? '{MOST:g} and more' : "
        f"datum.value <= {1 / MOST} ? '{1 / MOST:g} and less' : format(datum.value, '~g')"
    )
    legend = alt.Legend(
        title="speed-up", values=[1 / MOST, 0.5, 1, 2, MOST], labelExpr=label,
        labelFontSize=12, titleFontSize=12, labelColor=FAINT, gradientLength=160,
    )  # fmt: skip
    return alt.Color("shade:Q", scale=scale, legend=legend)
