"""The chart of rate against size: a line a precision and back end, the ceilings above them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from kernels import OPS
from microbench import fmt
from microbench.errors import UserError
from microbench.report.arms import limits_of, rate_unit
from microbench.report.drawing_style import (
    COLOURS,
    FAINT,
    OTHER_COLOUR,
    check_panels,
    heading,
    in_words,
    library,
    ordered,
    panel_title,
    styled,
)
from microbench.results.types import Ceiling, Json, Result, Run, varying

MOST_ARMS = 8  # in a panel: with more, each back end gets its own
LARGE, SMALL = (620, 420), (400, 310)  # width and height of one panel, of each of several
LABEL_GAP = 13  # pixels between the lines of the labels
HEADROOM, FOOTROOM = 1.7, 1.35  # times the highest and under the lowest rate
CEILINGS = {"datasheet": "peak", "measured": "largest"}
MARKERS = ("circle", "triangle-up", "square", "diamond", "cross")  # the first is drawn filled
CLOSE = 9  # pixels between two sizes: under it their points cover each other
DASHES = {"tf32": [7, 4], "fp64": [2, 3]}  # greys alone are hard to tell apart
READING = (
    "log scale: the vertical gap between two lines is a speed-up",
    "bars: 95 % confidence interval of the median, where large enough to see",
)
READING_CEILINGS = (
    "dotted lines: ceilings; peak: dense, from the datasheet; largest: fastest large GEMM measured"
)


def line_chart(run: Run) -> Any:
    """FLOP/s against size (both logarithmic), a panel per setting; an Altair chart.

    UserError where no size is a single number.
    """
    results = drawable(run)
    if not results:
        raise UserError("nothing to draw: no measurement has a size that is a single number")
    lines = line_rows(run, results)
    alt = library()
    reading = [*READING, *([READING_CEILINGS] if lines.ceilings else [])]
    missing = sum(panel.missing for panel in lines.panels.values())
    if missing:
        reading.append(f"{fmt.count(missing, 'case')} not measured: no point drawn")
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
        axis=alt.Axis(values=_ticks(*lines.y_range), format="~g"),
    )
    x = _sizes(alt, lines)
    width, height = lines.size
    return alt.layer(
        *_rules(alt, y, lines), *_curves(alt, x, y, panel, lines), *_texts(alt, panel, lines)
    ).properties(width=width, height=height, title=panel_title(alt, panel.title))


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20, ... within the limits; only powers of ten over more than four decades."""
    digits = (1, 2, 5) if high / low < 10**4 else (1,)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = (digit * 10.0**exponent for exponent in exponents for digit in digits)
    return [tick for tick in ticks if low <= tick <= high]


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
        alt.Tooltip("bound:N", title="bottleneck"),
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
            x=alt.value(lines.size[0] / 2), y=alt.value(lines.size[1] / 2), text="text:N"
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


# ---------------------------------------------------------------- the data of each panel


@dataclass
class Panel:
    """One pair of axes: a list of dictionaries per mark. Rates are in the unit of all panels."""

    title: str
    points: list[Json] = field(default_factory=list[Json])
    labels: list[Json] = field(default_factory=list[Json])
    missing: int = 0


@dataclass(frozen=True)
class Lines:
    """All panels, and what they share."""

    unit: str
    axis: str
    panels: Mapping[tuple[str, str], Panel]
    ceilings: Sequence[Json]
    markers: Sequence[str]  # the back ends that share panels
    precisions: Sequence[str]
    y_range: tuple[float, float]
    size: tuple[int, int]

    @property
    def sizes(self) -> list[int]:
        """Every size in some panel, smallest first."""
        return sorted({p["size"] for panel in self.panels.values() for p in panel.points})


def drawable(run: Run) -> list[Result]:
    """The results with a rate and a size that is a single number."""
    return [r for r in run.results if r.flop_per_s and r.case.problem.axis]


def line_rows(run: Run, results: Sequence[Result]) -> Lines:
    """The data of each panel: points, peaks and labels of these results."""
    unit = rate_unit(results)
    panels = _panels(results, unit)
    points = [p for panel in panels.values() for p in panel.points]
    limits = limits_of(run, results)
    rates = [p[name] for p in points for name in ("low", "high")]
    rates += [_flop_per_s(c) / unit.per_s for c in limits]
    y_range = (min(rates) / FOOTROOM, max(rates) * HEADROOM)
    size = LARGE if len(panels) == 1 else SMALL
    gap = (y_range[1] / y_range[0]) ** (LABEL_GAP / size[1])
    for panel in panels.values():
        panel.missing = _break(panel.points)
        panel.labels = _labels_of(panel.points, gap, y_range[0])
    return Lines(
        unit.name, OPS[results[0].case.op].axis_name, panels,
        _ceiling_rows(limits, unit, gap, y_range[0]),
        ordered(p["marker"] for p in points), ordered(p["precision"] for p in points),
        y_range, size,
    )  # fmt: skip


def _panels(results: Sequence[Result], unit: fmt.Unit) -> dict[tuple[str, str], Panel]:
    """The points in a grid: down it the first setting that varies, across it the others."""
    names = varying(results)
    down, across = (names[:1], names[1:]) if len(names) > 1 else ((), names)
    backends = {r.case.backend for r in results}
    arms = {(r.case.precision_name, r.case.backend) for r in results}
    apart = len(backends) > 1 and len(arms) > MOST_ARMS
    placed: list[tuple[str, str, Json]] = []
    for result in sorted(results, key=lambda r: r.case.problem.axis or 0):
        point = _point(result, unit, len(backends) > 1 and not apart)
        column = [in_words(result.case, across), point["backend"] if apart else ""]
        row = in_words(result.case, down)
        placed.append((row, ", ".join(part for part in column if part), point))
    rows = ordered(in_words(r.case, down) for r in results)
    columns = ordered(column for _, column, _ in placed)
    check_panels(f"a chart of {len(rows) * len(columns)} settings", len(rows) * len(columns))
    panels = {(r, c): Panel(", ".join(part for part in (r, c) if part))
              for r in rows for c in columns}  # fmt: skip
    for row, column, point in placed:
        panels[row, column].points.append(point)
    return panels


def _point(result: Result, unit: fmt.Unit, with_backend: bool) -> Json:
    case, seconds = result.case, result.median_s or 1.0
    rate = (result.flop_per_s or 0.0) / unit.per_s
    interval = result.measurement.ci95_s if result.measurement else None
    fast, slow = interval if interval and interval[0] > 0 else (seconds, seconds)
    precision, backend = fmt.clean(case.precision_name), fmt.clean(case.backend)
    return {
        "size": case.problem.axis,
        "rate": rate,
        "low": rate * seconds / slow,
        "high": rate * seconds / fast,
        "precision": precision,
        "backend": backend,
        "marker": backend if with_backend else "",
        "arm": f"{precision} {backend}" if with_backend else precision,
        "bound": fmt.clean(result.bound or ""),
    }


def _break(points: Sequence[Json]) -> int:
    """Number the unbroken segments of each curve of a panel; returns how many cases they miss."""
    sizes = sorted({p["size"] for p in points})
    missed = 0
    for arm in ordered(p["arm"] for p in points):
        there = {p["size"]: p for p in points if p["arm"] == arm}
        segment = 0
        for size in sizes:
            if size in there:
                there[size]["segment"] = f"{arm} {segment}"
            else:
                segment += 1
        missed += len(sizes) - len(there)
    return missed


def _ceiling_rows(
    limits: Sequence[Ceiling], unit: fmt.Unit, gap: float, lowest: float
) -> list[Json]:
    """A rule a ceiling; ceilings of one source too close to be labelled apart share a label."""
    rows: list[Json] = []
    for source, what in CEILINGS.items():
        near: list[list[Ceiling]] = []
        for limit in sorted((c for c in limits if c.source == source), key=_flop_per_s):
            if near and _flop_per_s(limit) < _flop_per_s(near[-1][0]) * gap:
                near[-1].append(limit)
            else:
                near.append([limit])
        for group in near:
            rates = ordered(unit.text(_flop_per_s(c)) for c in (group[0], group[-1]))
            names = ", ".join(fmt.clean(c.precision) for c in group)
            rows += [{
                "rate": _flop_per_s(c) / unit.per_s,
                "precision": fmt.clean(c.precision),
                "text": f"{what} {'-'.join(rates)}: {names}" if c is group[-1] else "",
            } for c in group]  # fmt: skip
    labelled = [row for row in rows if row["text"]]
    places = _spread([row["rate"] for row in labelled], gap, lowest)
    for row, place in zip(labelled, places, strict=True):
        row["place"] = place
    return rows


def _flop_per_s(ceiling: Ceiling) -> float:
    return ceiling.flop_per_s or 0.0


def _labels_of(points: Sequence[Json], gap: float, lowest: float) -> list[Json]:
    """The name of each curve, to stand right of its last point."""
    last = {p["arm"]: p for p in points}
    places = _spread([p["rate"] for p in last.values()], gap, lowest)
    return [
        {"text": arm, "precision": p["precision"], "marker": p["marker"], "place": place}
        for (arm, p), place in zip(last.items(), places, strict=True)
    ]


def _spread(rates: Sequence[float], gap: float, lowest: float) -> list[float]:
    """The rates moved apart, first down and then up, until each is a factor `gap` from the next."""
    order = sorted(range(len(rates)), key=lambda i: -rates[i])
    placed = list(rates)
    for above, i in pairwise(order):
        placed[i] = min(placed[i], placed[above] / gap)
    floor = lowest
    for i in reversed(order):
        placed[i] = max(placed[i], floor)
        floor = placed[i] * gap
    return placed
