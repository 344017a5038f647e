"""The charts of loaders: recipes against workers, predicted and measured; or loaders alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from e2e.case import DATA_WORDS
from e2e.report.joint import Joint, joint_title, joints
from e2e.report.plots import recipe_colour
from e2e.results.loader_types import Loading
from e2e.results.types import Training
from microbench import fmt
from microbench.errors import UserError
from microbench.report.drawing_style import library, main_title, panel_title, styled
from microbench.results.types import Json, Run

LOADER_LINE, LOADER_COLOUR = "loader alone", "#d55e00"
SIZE = (560, 320)
SERIES_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")


def loading_chart(run: Run) -> Any:
    """An Altair chart in img/s: a panel per network fed by a loader, else the loaders alone.

    UserError when no loader was measured, or when Altair is not installed.
    """
    pictures = joints(run)
    alt = library()
    if pictures:
        panels = [_panel(alt, joint_title(it), joint_rows(it), _colours(it)) for it in pictures]
        reading = "lines: predicted from recipe and loader alone; points: measured together"
    else:
        rows = loader_rows(run)
        if not rows:
            raise UserError("nothing to draw: the run has no loader with a rate")
        names = list(dict.fromkeys(row["series"] for row in rows))
        colours = dict(zip(names, SERIES_COLOURS * len(names), strict=False))
        panels = [_panel(alt, "", rows, colours)]
        reading = "images per second to the device, without training"
    # One panel too: its own title says of what, the heading of which device.
    chart = alt.vconcat(*panels, spacing=30)
    return styled(chart.properties(title=_heading(run, reading)))


def joint_rows(joint: Joint) -> list[Json]:
    """One row per point: predicted ("line") and measured ("point") img/s, and the loader alone."""
    points = [
        (fmt.clean(t.case.recipe), t.case.workers, per_s, kind)
        for t in joint.trainings
        for per_s, kind in ((t.predicted_per_s, "line"), (t.per_s, "point"))
    ]
    points += [(LOADER_LINE, count, one.per_s, "line") for count, one in joint.loading.items()]
    return _rows(points)


def loader_rows(run: Run) -> list[Json]:
    """One row per loader and number of workers, in img/s."""
    return _rows(
        (fmt.clean(one.case.loader) + ", cold files" * one.case.cold, one.case.workers, one.per_s,
         kind)
        for one in run.of(Loading)
        for kind in ("line", "point")
    )  # fmt: skip


def _rows(points: Iterable[tuple[str, int, float | None, str]]) -> list[Json]:
    """Of those with a rate."""
    names = ("series", "workers", "rate", "kind")
    return [dict(zip(names, point, strict=True)) for point in points if point[2]]


def _colours(joint: Joint) -> dict[str, str]:
    named = {fmt.clean(name): recipe_colour(name) for name in joint.recipes}
    return {**named, LOADER_LINE: LOADER_COLOUR}


def _panel(alt: Any, title: str, rows: list[Json], colours: Mapping[str, str]) -> Any:
    counts = sorted({row["workers"] for row in rows})
    scale = alt.Scale(type="symlog", domain=[counts[0], max(counts[-1], counts[0] + 1)], nice=False)
    x = alt.X("workers:Q", title="workers", scale=scale, axis=alt.Axis(values=counts, grid=False))
    y = alt.Y("rate:Q", title="img/s", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=6))
    colour = alt.Color(
        "series:N",
        title=None,
        scale=alt.Scale(domain=list(colours), range=list(colours.values())),
        legend=alt.Legend(orient="right", labelLimit=220),
    )
    dashed = alt.condition(alt.datum.series == LOADER_LINE, alt.value([5, 4]), alt.value([1, 0]))
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y, color=colour)
    lines = base.transform_filter(alt.datum.kind == "line").mark_line(strokeWidth=2)
    points = base.transform_filter(alt.datum.kind == "point").mark_point(filled=True, size=70)
    panel = alt.layer(lines.encode(strokeDash=dashed), points)
    panel = panel.properties(width=SIZE[0], height=SIZE[1])
    return panel.properties(title=panel_title(alt, title)) if title else panel


def _heading(run: Run, reading: str) -> Any:
    device = fmt.clean(run.device.get("name") or "unknown device")
    names = {loading.case.data for loading in run.of(Loading)}
    data = sorted(fmt.clean(DATA_WORDS.get(name, name)) for name in names)
    facts = [f"{fmt.listed(data)} data", f"measured {fmt.clean(run.started_at[:10])}"]
    what = "training fed by loaders" if run.of(Training) else "loaders"
    return main_title(f"{what} on {device}", [", ".join(facts), reading])
