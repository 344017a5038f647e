"""The charts of kernels: rate against size, a row a layer, samples of callables; and what all drawn
charts share: library, colours, heading.
"""

from __future__ import annotations

import io
import math
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib.resources import files
from itertools import pairwise
from json import dumps
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from kernels import OPS
from kernels.case import Case
from kernels.error_words import first_line
from kernels.files import write_atomically
from microbench import fmt
from microbench.errors import UserError
from microbench.report.run_table import Layer, layers_of
from microbench.results.runfile import check_writable
from microbench.results.types import Ceiling, Json, Result, Run, settings_of, varying
from microbench.verdict import arms_of, limits_of, rate_unit, states_of

INK, FAINT, PALE = "#222222", "#6b6b6b", "#f3f3f3"
# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), greys for what is compared with: a
# precision has one colour in every chart.
COLOURS = {
    "fp64": "#a8a8a8",
    "fp32": "#555555",
    "tf32": "#8a8a8a",
    "fp16": "#0072b2",
    "fp16-acc16": "#56b4e9",
    "bf16": "#d55e00",
    "fp8-e4m3": "#009e73",
    "fp8-e4m3-precise": "#cc79a7",
    "fp8-e5m2": "#e69f00",
    "int8": "#000000",
}
# Darker, for trainings that are in a precision as a whole and not only in its multiplications.
WHOLLY = {"fp16": "#003a5c", "bf16": "#8c3d00"}
MIXED_COLOUR = "#7e63b8"  # no precision's
OTHER_COLOUR = "#b8860b"
MOST_PANELS = 24
SHOWN_BARE = ("pass", "layout")  # settings whose values speak for themselves


def library() -> Any:
    """Altair; UserError when it or the renderer is not installed."""
    try:
        import altair
        import vl_convert  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise UserError(
            f"charts need Altair and vl-convert ({error.name} is missing): "
            "pip install -e '.[charts]'"
        ) from None
    return altair


def scripts() -> str:
    """The JavaScript that draws a chart in a browser, for a page that loads nothing."""
    import vl_convert

    renderer: Any = vl_convert
    version = library().SCHEMA_VERSION.removeprefix("v")
    return renderer.javascript_bundle(vl_version=".".join(version.split(".")[:2]))


def in_words(case: Case, names: Sequence[str], bare: Sequence[str] = SHOWN_BARE) -> str:
    """These settings of a case: "fprop, nhwc, batch 32"; only the values of those in `bare`."""
    settings = {fmt.clean(name): fmt.clean(value) for name, value in settings_of(case).items()}
    return ", ".join(
        settings[name] if name in bare else f"{name} {settings[name]}"
        for name in names
        if name in settings
    )


def ordered(values: Iterable[str]) -> list[str]:
    """The distinct values; those that end in a number sorted by it, the others in their order."""
    found = list(dict.fromkeys(values))
    numbers = [value.split()[-1] if value else "" for value in found]
    if all(number.isdecimal() for number in numbers):
        return [v for _, v in sorted(zip(map(int, numbers), found, strict=True))]
    return found


def check_panels(what: str, count: int) -> None:
    """UserError for more panels than a chart has room for."""
    if count > MOST_PANELS:
        raise UserError(
            f"{what} is too large (at most {MOST_PANELS}); draw a run with fewer settings"
        )


def panel_title(alt: Any, text: str) -> Any:
    """The title of one of several panels, for Altair."""
    return alt.TitleParams(text, anchor="start", fontSize=14, color=INK, offset=6)


def main_title(title: str, below: Sequence[str]) -> Any:
    """The title of a whole chart and the lines under it, for Altair."""
    return library().TitleParams(
        title, subtitle=list(below), fontSize=18, subtitleFontSize=12, subtitleColor=FAINT,
        color=INK, anchor="start", offset=16, subtitlePadding=6,
    )  # fmt: skip


def heading(run: Run, results: Sequence[Result], reading: Sequence[str]) -> Any:
    """The title: what was measured, the device, the conditions; and how to read the chart."""
    case = results[0].case
    arms = arms_of(run)
    asked = [fmt.clean(p) for p in arms.asked]
    others = [b for b in arms.baselines if b not in arms.asked]
    against = f" against {' and '.join(others)}" if others else ""
    ops = " and ".join(dict.fromkeys(fmt.clean(r.case.op) for r in results))
    device = fmt.clean(run.device.get("name") or "unknown device")
    fixed = [name for name in settings_of(case) if name not in varying(results)]
    below = f"{', '.join(states_of(results))}; measured {fmt.clean(run.started_at[:10])}"
    return main_title(
        f"{ops} on {device}: {fmt.listed(asked, most=4)}{against}",
        [in_words(case, fixed, bare=()), below, *reading],
    )


def styled(chart: Any) -> Any:
    """The chart with the fonts and lines of all charts."""
    return (
        chart.configure(font="sans-serif", background="white", padding=16)
        .configure_axis(
            labelFontSize=12, titleFontSize=13, titleFontWeight="normal", titleColor=INK,
            labelColor=INK, gridColor="#e4e4e4", domainColor="#888888", tickColor="#888888",
        )
        .configure_view(stroke="#cccccc")
    )  # fmt: skip


# ---------------------------------------------------------------- rows


WIDTH, HEIGHT = 560, 700  # pixels: of the bars; with names, title and key about 900 by 900
BAR, THINNEST = 22, 7  # height of a bar with its gap; many layers share HEIGHT
LARGEST_FONT = 11
BASE, NEUTRAL, FASTER, SLOWER = "#e4e4e4", "#9a9a9a", "#1f77b4", "#e07b39"
VERDICTS = {"faster": FASTER, "no difference": NEUTRAL, "slower": SLOWER}


def layers_chart(run: Run) -> Any:
    """Milliseconds per step of every layer, in the precision asked for, over those of the baseline.

    Returns an Altair chart. UserError for a run without a layer measured in both.
    """
    network, arms = run.network, arms_of(run)
    if network is None or not arms.asked or not arms.baselines:
        raise UserError("nothing to draw: the run has no layers with a baseline")
    name, baseline = arms.asked[0], arms.baselines[-1]
    rows = layer_rows(layers_of(run, network), name, baseline)
    if not rows:
        raise UserError(f"nothing to draw: no layer was measured in {name} and {baseline}")
    alt = library()
    results = [r for r in run.results if r.measurement]
    reading = (
        f"{fmt.clean(network.name)}, batch {network.batch}: time per step, all passes; "
        f"grey: {baseline}, coloured: {name}, number: speed-up",
        "~1: no difference seen (the 95 % interval holds 1)",
    )
    title = heading(run, results, reading)
    step = max(THINNEST, min(BAR, HEIGHT // len(rows)))
    bars = _bars(alt, rows, step).properties(width=WIDTH, height=step * len(rows), title=title)
    return styled(bars)


def layer_rows(layers: Sequence[Layer], name: str, baseline: str) -> list[Json]:
    """A dictionary per layer, the longest time first.

    Times are ms per step, all passes and uses.
    """
    found: list[Json] = []
    for layer in layers:
        ratio, own_s = layer.ratio(name, baseline), layer.seconds(name)
        if ratio is None or own_s is None:
            continue
        verdict = "faster" if ratio.ratio > 1 else "slower"
        label = f"{layer.label} x{layer.count}" if layer.count > 1 else layer.label
        alike = sum(row["layer"].split(" #")[0] == label for row in found)
        found.append({
            "layer": f"{label} #{alike + 1}" if alike else label,
            "ms": 1e3 * own_s,
            "base_ms": 1e3 * own_s * ratio.ratio,
            "text": fmt.short_ratio(ratio),
            "verdict": "no difference" if ratio.no_difference else verdict,
            "bottleneck": layer.bound(name),
        })  # fmt: skip
    return sorted(found, key=lambda row: -row["ms"])


def _bars(alt: Any, rows: Sequence[Json], step: int) -> Any:
    size = min(LARGEST_FONT, step - 1)
    base = alt.Chart(alt.InlineData(values=list(rows))).encode(
        y=alt.Y("layer:N", sort=[row["layer"] for row in rows], title=None,
                axis=alt.Axis(labelFontSize=size, labelLimit=240, labelOverlap=False)),
        tooltip=[alt.Tooltip("layer:N"), alt.Tooltip("ms:Q", format=".3f"),
                 alt.Tooltip("base_ms:Q", format=".3f"), alt.Tooltip("bottleneck:N")],
    )  # fmt: skip
    longest = max(max(row["ms"], row["base_ms"]) for row in rows)
    scale = alt.Scale(domain=[0, 1.08 * longest], nice=False)
    colour = alt.Color(
        "verdict:N", scale=alt.Scale(domain=list(VERDICTS), range=list(VERDICTS.values())),
        legend=alt.Legend(title=None, orient="bottom", labelColor=FAINT),
    )  # fmt: skip
    end = alt.X("longer:Q", scale=scale)
    return alt.layer(
        base.mark_bar(color=BASE).encode(x=alt.X("base_ms:Q", title="ms/step", scale=scale)),
        base.mark_bar(height={"band": 0.55}).encode(
            x=alt.X("ms:Q", title="ms/step", scale=scale), color=colour
        ),
        base.transform_calculate(longer="max(datum.ms, datum.base_ms)")
        .mark_text(align="left", dx=4, fontSize=size, color=INK)
        .encode(x=end, text="text:N"),
    )


# ---------------------------------------------------------------- lines


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


# ---------------------------------------------------------------- five pictures of rows


LINES, PANEL = (620, 420), (400, 310)  # width and height of one panel, of each of several
BAR_WIDTH, BAR_HEIGHT = 520, 26  # of a chart of bars; of each bar with its gap
ROOM = 1.3  # times the longest bar: right of it stands its text
SERIES_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
SAME = [3, 3]  # dashes of the line at 1
MOST_RATIO, DARK_RATIO = 4.0, 2.4  # times: from here on the colour stays; text is white


def lines(
    rows: Sequence[Json],
    *,
    x: str,
    y: str,
    log: bool = True,
    from_zero: bool = True,
    band: bool = False,
    rules: Sequence[Json] = (),
    dashes: Mapping[str, Sequence[int]] = MappingProxyType({}),
    colours: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """A curve a series, a panel each `panel`, over x (logarithmic but for a `band`).

    Rows have series, x and y; low and high are an interval, drawn as a bar or as a `band`; `mark`
    is "line" or "point" where only that is drawn, `note` is told. A curve is broken where it has no
    point at a size that others have. `log`: of y; else it begins at 0 if `from_zero`. `rules` are
    lines across (series, y, text). `colours` and `dashes` are by series.
    """
    alt = library()
    panels = _by_panel(rows)
    names = list(dict.fromkeys(row["series"] for row in rows))
    palette = {**dict(zip(names, SERIES_COLOURS * len(names), strict=False)), **colours}
    domain = {"domain": names}
    colour = alt.Color(
        "series:N", title=None,
        legend=alt.Legend(orient="top", labelLimit=240, columns=6, symbolOpacity=1),
        scale=alt.Scale(**domain, range=[palette[name] for name in names]),
    )  # fmt: skip
    dash = alt.StrokeDash(
        "series:N", legend=None,
        scale=alt.Scale(**domain, range=[list(dashes.get(name, [1, 0])) for name in names]),
    )  # fmt: skip
    shape = alt.Shape(
        "series:N", title=None,
        scale=alt.Scale(**domain, range=[MARKERS[i % len(MARKERS)] for i in range(len(names))]),
    )  # fmt: skip
    values = sorted({row["x"] for row in rows})
    kind = "linear" if band else "log" if values[0] > 0 else "symlog"
    marks = alt.Undefined if band else values
    axis = alt.X(
        "x:Q", title=x, scale=alt.Scale(type=kind, nice=False, zero=False, padding=14),
        axis=alt.Axis(values=marks, format="~d", grid=False, labelOverlap="greedy"),
    )  # fmt: skip
    scale = alt.Scale(type="log", nice=False, padding=20) if log else alt.Scale(zero=from_zero)
    figures = alt.Axis(format="~g") if log else alt.Axis()
    width, height = LINES if len(panels) == 1 else PANEL

    def up(name: str) -> Any:
        return alt.Y(f"{name}:Q", title=y, scale=scale, axis=figures)

    drawn: list[Any] = []
    for title, some in panels.items():
        base = alt.Chart(alt.InlineData(values=_broken(some))).encode(x=axis, color=colour)
        interval = base.transform_filter("isValid(datum.low)")
        told = [alt.Tooltip(f"{name}:{kind}") for name, kind in zip(TOLD, "NQQQQN", strict=True)]
        layers = [
            interval.mark_area(opacity=0.2).encode(y=up("low"), y2="high:Q") if band
            else interval.mark_rule(strokeWidth=5, opacity=0.4).encode(y=up("low"), y2="high:Q"),
            base.transform_filter("datum.mark != 'point'").mark_line(strokeWidth=2)
            .encode(y=up("y"), detail="segment:N", strokeDash=dash),
        ]  # fmt: skip
        if not band:
            points = base.transform_filter("datum.mark != 'line'")
            layers.append(
                points.mark_point(filled=True, size=50, opacity=1).encode(
                    y=up("y"), shape=shape, tooltip=told
                )
            )
        if rules:
            across = alt.Chart(alt.InlineData(values=list(rules))).encode(y=up("y"))
            look: Json = {"align": "left", "baseline": "bottom", "fontSize": 10.5, "dy": -1}
            named = across.encode(x=alt.value(5), text="text:N")
            layers += [
                across.mark_rule(strokeDash=[1, 3], strokeWidth=1.6).encode(color=colour),
                named.mark_text(**look, color="white", stroke="white", strokeWidth=3),
                named.mark_text(**look, color=FAINT),
            ]
        layered = alt.layer(*layers).properties(width=width, height=height)
        drawn.append(layered.properties(title=panel_title(alt, title)) if title else layered)
    return _placed(alt, drawn)


TOLD = ("series", "x", "y", "low", "high", "note")


def _by_panel(rows: Sequence[Json]) -> dict[str, list[Json]]:
    """The rows by panel, in their order. UserError for too many, or for no rows."""
    if not rows:
        raise UserError("nothing to draw")
    found: dict[str, list[Json]] = {}
    for row in rows:
        found.setdefault(row.get("panel", ""), []).append(row)
    check_panels(f"a chart of {len(found)} panels", len(found))
    return found


def _placed(alt: Any, drawn: Sequence[Any]) -> Any:
    """One panel, or several beside each other with one legend."""
    if len(drawn) == 1:
        return drawn[0]
    columns = 2 if len(drawn) in (2, 4) else 3
    shared = {"color": "shared", "shape": "shared", "strokeDash": "shared"}
    return alt.concat(*drawn, columns=columns, spacing=30).resolve_scale(**shared)


def _broken(rows: Sequence[Json]) -> list[Json]:
    """The rows with `segment`, the unbroken stretch of the curve that each is in."""
    places = {x: place for place, x in enumerate(sorted({row["x"] for row in rows}))}
    seen: dict[str, tuple[int, int]] = {}  # series -> place of its last point, segment
    found: list[Json] = []
    for row in sorted(rows, key=lambda row: row["x"]):
        name, place = row["series"], places[row["x"]]
        last, segment = seen.get(name, (place, 0))
        segment += place > last + 1
        seen[name] = place, segment
        found.append({"mark": "", **row, "segment": f"{name} {segment}"})
    return found


def bars(rows: Sequence[Json], *, x: str) -> Any:
    """A bar a row, from the top, a panel each `panel`: label, value, text, colour.

    `low` and `high` are an interval, `base` is a grey bar behind, `note` is told.
    """
    alt = library()
    ends = [row.get(name) or 0.0 for row in rows for name in ("value", "high", "base")]
    scale = alt.Scale(domain=[0, ROOM * max(ends, default=1.0)], nice=False)

    def along(name: str) -> Any:
        return alt.X(f"{name}:Q", title=x, scale=scale)

    drawn: list[Any] = []
    for title, some in _by_panel(rows).items():
        step = max(9, min(BAR_HEIGHT, 800 // len(some)))
        names = alt.Axis(labelLimit=240, labelOverlap=False, labelFontSize=min(12, step - 1))
        base = (
            alt.Chart(alt.InlineData(values=_apart(some)))
            .transform_calculate(end="max(datum.value, datum.high || 0, datum.base || 0)")
            .encode(
                y=alt.Y("label:N", sort=None, title=None, axis=names),
                tooltip=["label:N", "value:Q", "low:Q", "high:Q", "base:Q", "note:N"],
            )
        )
        layers = (
            base.transform_filter("isValid(datum.base)").mark_bar(color=BASE)
            .encode(x=along("base")),
            base.mark_bar(height={"band": 0.6})
            .encode(x=along("value"), color=alt.Color("colour:N", scale=None)),
            base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2, color=INK)
            .encode(x=along("low"), x2="high:Q"),
            base.mark_text(align="left", dx=6, fontSize=min(12, step - 1), color=INK)
            .encode(x=along("end"), text="text:N"),
        )  # fmt: skip
        panel = alt.layer(*layers).properties(width=BAR_WIDTH, height=step * len(some))
        drawn.append(panel.properties(title=panel_title(alt, title)) if title else panel)
    return drawn[0] if len(drawn) == 1 else alt.vconcat(*drawn, spacing=24)


def _apart(rows: Sequence[Json]) -> list[Json]:
    """The rows with labels that differ: of those alike the second has " #2"."""
    seen: dict[str, int] = {}
    found: list[Json] = []
    for row in rows:
        number = seen[row["label"]] = seen.get(row["label"], 0) + 1
        found.append({**row, "label": f"{row['label']} #{number}"} if number > 1 else row)
    return found


def ratios(
    rows: Sequence[Json], *, x: str, y: str, colours: Mapping[str, str] = MappingProxyType({})
) -> Any:
    """Times as fast, with intervals: label, series, ratio, low, high; at 1 is a line."""
    alt = library()
    names = list(dict.fromkeys(row["series"] for row in rows))
    palette = {**dict(zip(names, SERIES_COLOURS * len(names), strict=False)), **colours}
    scale = alt.Scale(type="log", nice=False, padding=12)
    colour = alt.Color(
        "series:N", title=None, legend=alt.Legend(orient="top", labelLimit=240, symbolOpacity=1),
        scale=alt.Scale(domain=names, range=[palette[name] for name in names]),
    )  # fmt: skip

    def up(name: str) -> Any:
        return alt.Y(f"{name}:Q", title=y, scale=scale, axis=alt.Axis(format="~g"))

    drawn: list[Any] = []
    for title, some in _by_panel(rows).items():
        labels = list(dict.fromkeys(row["label"] for row in some))
        base = alt.Chart(alt.InlineData(values=list(some))).encode(
            x=alt.X("label:N", sort=labels, title=x, axis=alt.Axis(labelAngle=-30, labelLimit=200)),
            xOffset=alt.XOffset("series:N", sort=names), color=colour,
            tooltip=["label:N", "series:N", "ratio:Q", "low:Q", "high:Q"],
        )  # fmt: skip
        one = alt.Chart(alt.InlineData(values=[{"ratio": 1}]))
        layers = (
            one.mark_rule(strokeDash=SAME, color=FAINT).encode(y=up("ratio")),
            base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=4, opacity=0.5)
            .encode(y=up("low"), y2="high:Q"),
            base.mark_point(filled=True, size=60, opacity=1).encode(y=up("ratio")),
        )  # fmt: skip
        width = max(PANEL[0], min(900, 20 * len(some)))
        panel = alt.layer(*layers).properties(width=width, height=PANEL[1])
        drawn.append(panel.properties(title=panel_title(alt, title)) if title else panel)
    return _placed(alt, drawn)


def waterfall(rows: Sequence[Json], *, x: str) -> Any:
    """Bars from `low` to `high`, from the top, a panel each `panel`: label, text, colour.

    Two bars may have one label.
    """
    alt = library()
    drawn: list[Any] = []
    for title, some in _by_panel(rows).items():
        low, high = min(0.0, *(row["low"] for row in some)), max(row["high"] for row in some)
        scale = alt.Scale(domain=[low, low + ROOM * (high - low)], nice=False)
        labels = dumps([row["label"] for row in some])
        names = alt.Axis(labelLimit=240, ticks=False, labelExpr=f"{labels}[datum.value]")
        placed = [{**row, "place": place} for place, row in enumerate(some)]
        base = alt.Chart(alt.InlineData(values=placed)).encode(
            y=alt.Y("place:O", title=None, axis=names)
        )
        along = alt.X("low:Q", title=x, scale=scale, axis=alt.Axis(grid=False, tickCount=6))
        bar = base.mark_bar(strokeWidth=1).encode(  # the stroke shows small ones
            x=along, x2="high:Q",
            color=alt.Color("colour:N", scale=None), stroke=alt.Stroke("colour:N", scale=None),
        )  # fmt: skip
        text = base.mark_text(align="left", dx=5, color=INK).encode(
            x=alt.X("high:Q", title=x, scale=scale), text="text:N"
        )
        panel = alt.layer(bar, text).properties(width=BAR_WIDTH, height=BAR_HEIGHT * len(some))
        drawn.append(panel.properties(title=panel_title(alt, title)) if title else panel)
    return drawn[0] if len(drawn) == 1 else alt.vconcat(*drawn, spacing=24)


def cells(rows: Sequence[Json], *, x: str, y: str) -> Any:
    """A square a row, a map each `panel`, coloured by `ratio`: x, y, text, small; `note` is told.

    Columns and lines are in the order in which they come; x may have "/" between lines of its name.
    """
    alt = library()
    shades = alt.Scale(
        type="log", domain=[1 / MOST_RATIO, 1, MOST_RATIO], clamp=True, interpolate="rgb",
        range=["#d55e00", "#ffffff", "#0072b2"],
    )  # fmt: skip
    far = f"datum.ratio > {DARK_RATIO} || datum.ratio < {1 / DARK_RATIO}"
    drawn: list[Any] = []
    for title, some in _by_panel(rows).items():
        across, up = (list(dict.fromkeys(str(row[name]) for row in some)) for name in "xy")
        names = alt.Axis(labelAngle=0, labelExpr="split(datum.label, '/')")
        base = alt.Chart(alt.InlineData(values=list(some))).encode(
            x=alt.X("x:N", title=x, scale=alt.Scale(domain=across), axis=names),
            y=alt.Y("y:N", title=y, scale=alt.Scale(domain=up)),
            tooltip=["x:N", "y:N", "ratio:Q", "low:Q", "high:Q", "small:N", "note:N"],
        )
        text = base.encode(color=alt.condition(far, alt.value("white"), alt.value(INK)))
        layers = (
            base.mark_rect(stroke="white").encode(
                color=alt.Color("ratio:Q", title="times as fast", scale=shades)
            ),
            text.mark_text(fontSize=13, fontWeight="bold", dy=-6).encode(text="text:N"),
            text.mark_text(fontSize=9, dy=9).encode(text="small:N"),
        )
        drawn.append(
            alt.layer(*layers).properties(
                width=50 * len(across), height=36 * len(up), title=panel_title(alt, title),
                view=alt.ViewConfig(fill=PALE),
            )
        )  # fmt: skip
    return drawn[0] if len(drawn) == 1 else alt.concat(*drawn, columns=2, spacing=24)


def titled(charts: Any, title: str, below: Sequence[str] = ()) -> Any:
    """A picture, or a list of them one under the other, with a title and how to read it."""
    alt = library()
    whole = charts
    if isinstance(charts, list):
        panels = cast("list[Any]", charts)
        whole = panels[0] if len(panels) == 1 else alt.vconcat(*panels, spacing=30)
    reading = [fmt.clean(line) for line in below]
    return styled(whole.properties(title=main_title(fmt.clean(title), reading)))


# ---------------------------------------------------------------- files


SUFFIXES = (".png", ".svg", ".pdf", ".html")
PNG_SCALE = 2  # pixels a unit of length: sharp in a document
# `ast`: expressions are interpreted, so that the page may forbid text to become code.
START = """\
const drawing = JSON.parse(document.getElementById("drawing").textContent);
vegaEmbed("#chart", drawing, {
  mode: "vega-lite", ast: true,
  actions: {export: true, source: false, compiled: false, editor: false}
}).catch(console.error);
"""


def check_chart_path(path: Path, *, overwrite: bool | None = None) -> None:
    """UserError for an unknown format, a missing library, or a file that cannot be written.

    Call it before measuring.
    """
    _suffix(path)
    library()
    check_writable(path, "--chart", overwrite=overwrite)


def write_chart(chart: Any, path: Path) -> None:
    """Write an Altair chart, whole or not at all. UserError where the disk refuses."""
    content = rendered(chart, _suffix(path).removeprefix("."))
    try:
        write_atomically(path, content)
    except OSError as error:
        raise UserError(f"--chart {path}: cannot write the file ({error.strerror})") from None


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UserError(f"--chart {path}: the name must end in {', '.join(SUFFIXES)}")
    return suffix


def rendered(chart: Any, form: str) -> bytes:
    """An Altair chart as "svg", "png", "pdf" or "html". UserError where the renderer fails.

    It runs JavaScript in threads of its own, and says only that they did not answer: with few open
    files or little memory, for instance.
    """
    if form == "html":
        return _page(chart).encode()
    image = io.StringIO() if form == "svg" else io.BytesIO()
    try:
        chart.save(image, format=form, scale_factor=PNG_SCALE if form == "png" else 1)
    except ValueError as error:
        raise UserError(f"the chart cannot be drawn: {first_line(error)}") from None
    content = image.getvalue()
    return content if isinstance(content, bytes) else content.encode()


def _page(chart: Any) -> str:
    """A page with the chart that opens without a network. It runs its own two scripts only.

    Text of the run file is data in it: in a block of JSON, in which markup is escaped.
    """
    from markupsafe import Markup

    own = scripts()
    return template("chart.html").render(
        # What a content-security-policy calls the scripts that may run.
        allowed=Markup(
            " ".join(
                f"'sha256-{b64encode(sha256(one.encode()).digest()).decode()}'"
                for one in (own, START)
            )
        ),
        title="Chart",
        library=Markup(own),
        start=Markup(START),
        drawing=chart.to_dict(),
    )


@cache
def template(name: str) -> Any:
    """A page of this folder, whose values are escaped."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined)
    source = files("microbench.report").joinpath(name).read_text(encoding="utf-8")
    return environment.from_string(source)
