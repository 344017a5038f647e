"""Four pictures of rows, and the files they are drawn to. Only this module knows Altair.

A row is a dict; rows with a `panel` of their own get axes of their own. Text of a run file is
cleaned here: it is data in a drawing, never markup.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from json import dumps
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from kernels.messages import first_line
from microbench import fmt
from microbench.errors import UserError
from microbench.results.runfile import check_writable, write_output
from microbench.results.types import Json

INK, FAINT, PALE, BASE = "#222222", "#6b6b6b", "#f3f3f3", "#e4e4e4"
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
SERIES_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
MARKERS = ("circle", "triangle-up", "square", "diamond", "cross")
ONE, SEVERAL = (620, 420), (400, 310)  # width and height of one panel, of each of several
WIDTH, STEP = 520, 26  # of a chart of bars; of each bar with its gap
ROOM = 1.3  # times the longest bar: right of it stands its text
MOST_PANELS = 24
MOST_RATIO, DARK_RATIO = 4.0, 2.4  # times: from here on the colour stays; text is white
NONE: Mapping[str, Any] = MappingProxyType({})


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


# ---------------------------------------------------------------- what pictures share


def _cleaned(rows: Sequence[Json]) -> list[Json]:
    """The rows without control characters in their texts."""
    return [
        {name: fmt.clean(value) if isinstance(value, str) else value for name, value in row.items()}
        for row in rows
    ]


def _by_panel(rows: Sequence[Json]) -> dict[str, list[Json]]:
    """The rows by panel, in their order. UserError for too many panels, or for no rows."""
    panels: dict[str, list[Json]] = {}
    for row in rows:
        panels.setdefault(row.get("panel", ""), []).append(row)
    if not panels:
        raise UserError("nothing to draw")
    if len(panels) > MOST_PANELS:
        raise UserError(
            f"a chart of {len(panels)} panels is too large (at most {MOST_PANELS}); draw a run "
            "with fewer settings"
        )
    return panels


def _panel(title: str, layers: Sequence[Any], width: int, height: int, **look: Any) -> Any:
    """The layers on one pair of axes."""
    alt = library()
    if title:
        look["title"] = alt.TitleParams(title, anchor="start", fontSize=14, color=INK, offset=6)
    return alt.layer(*layers).properties(width=width, height=height, **look)


def _placed(panels: Sequence[Any], columns: int) -> Any:
    """One panel, or several with one legend."""
    if len(panels) == 1:
        return panels[0]
    shared = {"color": "shared", "shape": "shared", "strokeDash": "shared"}
    placed = library().concat(*panels, columns=columns, spacing=30)
    return placed.resolve_scale(**shared)


def _beside(panels: Sequence[Any]) -> Any:
    return _placed(panels, 2 if len(panels) in (2, 4) else 3)


def _names(rows: Sequence[Json]) -> list[str]:
    return list(dict.fromkeys(row["series"] for row in rows))


def _colour(names: Sequence[str], colours: Mapping[str, str]) -> Any:
    """The colour of each series, with a legend."""
    alt = library()
    palette = {**dict(zip(names, SERIES_COLOURS * len(names), strict=False)), **colours}
    scale = alt.Scale(domain=names, range=[palette[name] for name in names])
    legend = alt.Legend(orient="top", labelLimit=240, columns=6, symbolOpacity=1)
    return alt.Color("series:N", title=None, scale=scale, legend=legend)


def _axis(of: Any, title: str, scale: Any, **axis: Any) -> Callable[[str], Any]:
    """An axis, altair's X or Y, for any field of a row."""
    look = library().Axis(**axis)
    return lambda name: of(f"{name}:Q", title=title, scale=scale, axis=look)


# ---------------------------------------------------------------- four pictures


def lines(
    rows: Sequence[Json],
    *,
    x: str,
    y: str,
    log: bool = True,
    rules: Sequence[Json] = (),
    dashes: Mapping[str, Sequence[int]] = NONE,
    colours: Mapping[str, str] = NONE,
) -> Any:
    """A curve a series over x, which is logarithmic.

    Rows have series, x and y; low and high are an interval; `mark` is "line" or "point" where only
    that is drawn, `note` a tooltip. A curve is broken where it has no point at a size that others
    have. `log`: of y; else it begins at 0. `rules` are lines across (series, y, text). `colours`
    and `dashes` are by series.
    """
    rows, rules = _cleaned(rows), _cleaned(rules)
    alt, panels, names = library(), _by_panel(rows), _names(rows)
    colour = _colour(names, colours)
    dash = alt.Scale(domain=names, range=[list(dashes.get(name, [1, 0])) for name in names])
    marks = alt.Scale(domain=names, range=[MARKERS[i % len(MARKERS)] for i in range(len(names))])
    sizes = sorted({row["x"] for row in rows})
    scale = alt.Scale(type="log" if sizes[0] > 0 else "symlog", nice=False, padding=14)
    ticks: Json = {"values": sizes, "format": "~d"}
    along = _axis(alt.X, x, scale, grid=False, labelOverlap="greedy", **ticks)
    upright = alt.Scale(type="log", nice=False, padding=20) if log else alt.Scale(zero=True)
    up = _axis(alt.Y, y, upright, **({"format": "~g"} if log else {}))
    tooltip = ["series:N", "x:Q", "y:Q", "low:Q", "high:Q", "note:N"]
    drawn: list[Any] = []
    for title, panel in panels.items():
        base = alt.Chart(alt.InlineData(values=_broken(panel))).encode(x=along("x"), color=colour)
        interval = base.transform_filter("isValid(datum.low)").encode(y=up("low"), y2="high:Q")
        curve = base.transform_filter("datum.mark != 'point'").mark_line(strokeWidth=2)
        point = base.transform_filter("datum.mark != 'line'").mark_point(
            filled=True, size=50, opacity=1
        )
        shape = alt.Shape("series:N", title=None, scale=marks)
        layers = [
            interval.mark_rule(strokeWidth=5, opacity=0.4),
            curve.encode(y=up("y"), detail="segment:N",
                         strokeDash=alt.StrokeDash("series:N", title=None, scale=dash)),
            point.encode(y=up("y"), shape=shape, tooltip=tooltip),
        ]  # fmt: skip
        if rules:
            across = alt.Chart(alt.InlineData(values=list(rules))).encode(y=up("y"))
            look: Json = {"align": "left", "baseline": "bottom", "fontSize": 10.5, "dy": -1}
            named = across.encode(x=alt.value(5), text="text:N")
            layers += [
                across.mark_rule(strokeDash=[1, 3], strokeWidth=1.6).encode(color=colour),
                named.mark_text(**look, color="white", stroke="white", strokeWidth=3),
                named.mark_text(**look, color=FAINT),
            ]
        drawn.append(_panel(title, layers, *(ONE if len(panels) == 1 else SEVERAL)))
    return _beside(drawn)


def _broken(rows: Sequence[Json]) -> list[Json]:
    """The rows with `segment`, the unbroken stretch of the curve that each is in."""
    places = {x: index for index, x in enumerate(sorted({row["x"] for row in rows}))}
    seen: dict[str, tuple[int, int]] = {}  # series -> place of its last point, segment
    broken: list[Json] = []
    for row in sorted(rows, key=lambda row: row["x"]):
        name, index = row["series"], places[row["x"]]
        last, segment = seen.get(name, (index, 0))
        segment += index > last + 1
        seen[name] = index, segment
        broken.append({"mark": "", **row, "segment": f"{name} {segment}"})
    return broken


def bars(rows: Sequence[Json], *, x: str) -> Any:
    """A bar a row, from the top: label, value, text, colour. Two may have one label.

    It begins at 0 or at `start`. `low` and `high` are an interval, `base` is a grey bar behind,
    `note` is the tooltip.
    """
    alt, rows = library(), _cleaned(rows)
    drawn: list[Any] = []
    for title, panel in _by_panel(rows).items():
        named = ("start", "value", "high", "base")
        ends = [row.get(name) or 0.0 for row in panel for name in named]
        low, high = min(0.0, *ends), max(ends)
        scale = alt.Scale(domain=[low, low + ROOM * (high - low)], nice=False)
        along = _axis(alt.X, x, scale)
        step = max(9, min(STEP, 800 // len(panel)))
        font = min(12, step - 1)
        names = alt.Axis(
            labelLimit=240, labelOverlap=False, labelFontSize=font, ticks=False,
            labelExpr=f"{dumps([row['label'] for row in panel])}[datum.value]",
        )  # fmt: skip
        placed = [{"start": 0.0, **row, "place": index} for index, row in enumerate(panel)]
        base = (
            alt.Chart(alt.InlineData(values=placed))
            .transform_calculate(
                end="max(datum.start, datum.value, datum.high || 0, datum.base || 0)"
            )
            .encode(
                y=alt.Y("place:O", title=None, axis=names),
                tooltip=["label:N", "value:Q", "low:Q", "high:Q", "base:Q", "note:N"],
            )
        )
        behind = base.transform_filter("isValid(datum.base)").mark_bar(color=BASE)
        bar = base.mark_bar(height={"band": 0.6}, strokeWidth=1)  # the stroke shows small ones
        interval = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2, color=INK)
        colour, stroke = (of("colour:N", scale=None) for of in (alt.Color, alt.Stroke))
        layers = [
            behind.encode(x=along("base")),
            bar.encode(x=along("start"), x2="value:Q", color=colour, stroke=stroke),
            interval.encode(x=along("low"), x2="high:Q"),
            base.mark_text(align="left", dx=6, fontSize=font, color=INK).encode(
                x=along("end"), text="text:N"
            ),
        ]
        drawn.append(_panel(title, layers, WIDTH, step * len(panel)))
    return _placed(drawn, columns=1)


def ratios(rows: Sequence[Json], *, x: str, y: str, colours: Mapping[str, str] = NONE) -> Any:
    """Times as fast, with intervals: label, series, ratio, low, high; at 1 is a line."""
    rows = _cleaned(rows)
    alt, names = library(), _names(rows)
    up = _axis(alt.Y, y, alt.Scale(type="log", nice=False, padding=12), format="~g")
    drawn: list[Any] = []
    for title, panel in _by_panel(rows).items():
        labels = alt.Axis(labelAngle=-30, labelLimit=200)
        base = alt.Chart(alt.InlineData(values=list(panel))).encode(
            x=alt.X("label:N", sort=None, title=x, axis=labels),
            xOffset=alt.XOffset("series:N", sort=names),
            color=_colour(names, colours),
            tooltip=["label:N", "series:N", "ratio:Q", "low:Q", "high:Q"],
        )
        unity = alt.Chart(alt.InlineData(values=[{"ratio": 1}]))
        interval = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=4, opacity=0.5)
        layers = [
            unity.mark_rule(strokeDash=[3, 3], color=FAINT).encode(y=up("ratio")),
            interval.encode(y=up("low"), y2="high:Q"),
            base.mark_point(filled=True, size=60, opacity=1).encode(y=up("ratio")),
        ]
        drawn.append(_panel(title, layers, max(400, min(900, 20 * len(panel))), SEVERAL[1]))
    return _beside(drawn)


def cells(rows: Sequence[Json], *, x: str, y: str, across: Sequence[str] = ()) -> Any:
    """A square a row, coloured by `ratio`: x, y, text, small; `note` is the tooltip.

    Columns are as `across`, or in the order in which they come, as lines are; x may have "/"
    between the lines of its name.
    """
    alt, rows = library(), _cleaned(rows)
    shades = alt.Scale(
        type="log", domain=[1 / MOST_RATIO, 1, MOST_RATIO], clamp=True, interpolate="rgb",
        range=["#d55e00", "#ffffff", "#0072b2"],
    )  # fmt: skip
    far = f"datum.ratio > {DARK_RATIO} || datum.ratio < {1 / DARK_RATIO}"
    drawn: list[Any] = []
    for title, panel in _by_panel(rows).items():
        there, up = (list(dict.fromkeys(str(row[name]) for row in panel)) for name in "xy")
        columns = [name for name in across if name in there] or there
        names = alt.Axis(labelAngle=0, labelExpr="split(datum.label, '/')")
        base = alt.Chart(alt.InlineData(values=list(panel))).encode(
            x=alt.X("x:N", title=x, scale=alt.Scale(domain=columns), axis=names),
            y=alt.Y("y:N", title=y, scale=alt.Scale(domain=up)),
            tooltip=["x:N", "y:N", "ratio:Q", "low:Q", "high:Q", "small:N", "note:N"],
        )
        colour = alt.Color("ratio:Q", title="times as fast", scale=shades)
        text = base.encode(color=alt.condition(far, alt.value("white"), alt.value(INK)))
        layers = [
            base.mark_rect(stroke="white").encode(color=colour),
            text.mark_text(fontSize=13, fontWeight="bold", dy=-6).encode(text="text:N"),
            text.mark_text(fontSize=9, dy=9).encode(text="small:N"),
        ]
        size = (50 * len(columns), 36 * len(up))
        drawn.append(_panel(title, layers, *size, view=alt.ViewConfig(fill=PALE)))
    return _placed(drawn, columns=2)


def titled(charts: Any, title: str, below: Sequence[str] = ()) -> Any:
    """A picture, or a list of them one under the other, with a title and how to read it."""
    alt = library()
    whole = charts
    if isinstance(charts, list):
        panels = cast("list[Any]", charts)
        whole = panels[0] if len(panels) == 1 else alt.vconcat(*panels, spacing=30)
    heading = alt.TitleParams(
        fmt.clean(title), subtitle=[fmt.clean(line) for line in below], fontSize=18,
        subtitleFontSize=12, subtitleColor=FAINT, color=INK, anchor="start", offset=16,
        subtitlePadding=6,
    )  # fmt: skip
    return (
        whole.properties(title=heading)
        .configure(font="sans-serif", background="white", padding=16)
        .configure_axis(
            labelFontSize=12, titleFontSize=13, titleFontWeight="normal", titleColor=INK,
            labelColor=INK, gridColor="#e4e4e4", domainColor="#888888", tickColor="#888888",
        )
        .configure_view(stroke="#cccccc")
    )  # fmt: skip


# ---------------------------------------------------------------- files


SUFFIXES = (".png", ".svg", ".pdf", ".html")
PNG_SCALE = 2  # pixels a unit of length: sharp in a document
# Before an image, to make a page of it that loads and runs nothing.
PAGE = b"""<!doctype html>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Chart</title>
"""


def check_chart_path(path: Path) -> None:
    """UserError for an unknown format, a missing library, or a file that cannot be written.

    Call it before measuring.
    """
    _suffix(path)
    library()
    check_writable(path, "--chart")


def write_chart(chart: Any, path: Path) -> None:
    """Write an Altair chart, whole or not at all. UserError where the disk refuses."""
    write_output("--chart", path, rendered(chart, _suffix(path).removeprefix(".")))


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
        return PAGE + rendered(chart, "svg")
    image = io.StringIO() if form == "svg" else io.BytesIO()
    try:
        chart.save(image, format=form, scale_factor=PNG_SCALE if form == "png" else 1)
    except ValueError as error:
        raise UserError(f"the chart cannot be drawn: {first_line(error)}") from None
    content = image.getvalue()
    return content if isinstance(content, bytes) else content.encode()
