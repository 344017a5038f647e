"""The chart of a validation: predicted against measured step times, a point per training."""

from __future__ import annotations

from typing import Any

from e2e.report.figures import bottleneck, signed_pct
from e2e.report.plot_style import RECIPE_COLOURS
from e2e.report.predictions import error_pct, is_beside
from e2e.results.types import Training
from microbench import fmt
from microbench.report.drawing_style import FAINT, INK, OTHER_COLOUR, library, main_title, styled
from microbench.results.types import Json, Run

SIDE = 460  # of the square, in pixels
MOST_NAMED = 4  # networks that have a point with its name
MARGIN = 1.25  # of the range, at both ends of the axes
SHAPES = {"GPU": "circle", "CPU launch": "triangle-up", "data loading": "square", "CPU": "diamond"}


def prediction_rows(run: Run) -> list[Json]:
    """One row per training that was predicted and measured; times in milliseconds."""
    rows: list[Json] = []
    for arm in filter(is_beside, run.of(Training)):
        predicted, error = arm.predicted, error_pct(arm)
        if predicted is None or not arm.measured_s or error is None:
            continue
        case = arm.case
        parts = (case.network, case.recipe, f"batch {case.batch}", "graph" * case.graph)
        rows.append({
            "name": fmt.clean(" ".join(filter(None, parts))),
            "network": fmt.clean(case.network),
            "recipe": fmt.clean(case.recipe),
            "bottleneck": bottleneck(arm.limit) or "CPU",
            "measured": 1e3 * arm.measured_s,
            "predicted": 1e3 * predicted.step_s,
            "error": signed_pct(error),
            "off": abs(error),
            "long": error > 0,
        })  # fmt: skip
    return _labelled(rows)


def _labelled(rows: list[Json]) -> list[Json]:
    """With the worst point of each of the worst networks named."""
    worst: dict[str, Json] = {}
    for row in sorted(rows, key=lambda row: -row["off"]):
        worst.setdefault(row["network"], row)
    named = list(worst.values())[:MOST_NAMED]
    return [row | {"label": f"{row['name']} {row['error']}" * (row in named)} for row in rows]


def prediction_chart(run: Run) -> Any:
    """Predicted against measured ms per step on logarithmic axes, as an Altair chart.

    On the diagonal the prediction is exact; above it, it is too long. UserError when Altair is not
    installed.
    """
    alt = library()
    rows = prediction_rows(run)
    times = [row[name] for row in rows for name in ("measured", "predicted")]
    ends = [min(times) / MARGIN, max(times) * MARGIN]
    scale = alt.Scale(type="log", domain=ends, nice=False)
    x = alt.X("measured:Q", title="measured ms/step", scale=scale, axis=alt.Axis(grid=False))
    y = alt.Y("predicted:Q", title="predicted ms/step", scale=scale, axis=alt.Axis(grid=False))
    recipes = list(dict.fromkeys(row["recipe"] for row in rows))
    colours = [RECIPE_COLOURS.get(recipe, OTHER_COLOUR) for recipe in recipes]
    legend = alt.Legend(orient="top-left", offset=8)  # where a diagonal leaves room
    limits = [name for name in SHAPES if any(row["bottleneck"] == name for row in rows)]
    exact = alt.Chart(alt.InlineData(values=[{"measured": end, "predicted": end} for end in ends]))
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y)
    chart = alt.layer(
        exact.mark_line(color=FAINT, strokeWidth=1, strokeDash=[4, 4]).encode(x=x, y=y),
        base.mark_point(size=60, strokeWidth=1.8, fillOpacity=0.25, filled=False).encode(
            color=alt.Color(
                "recipe:N", scale=alt.Scale(domain=recipes, range=colours), legend=legend
            ),
            shape=alt.Shape(
                "bottleneck:N",
                scale=alt.Scale(domain=limits, range=[SHAPES[name] for name in limits]),
                legend=legend,
            ),
            tooltip=["name:N", "measured:Q", "predicted:Q", "error:N"],
        ),
        *(
            base.transform_filter(alt.datum.long == is_long)
            .mark_text(align=align, dx=dx, fontSize=10.5, color=INK)
            .encode(text="label:N")
            for is_long, align, dx in ((True, "right", -9), (False, "left", 9))
        ),
    )
    return styled(chart.properties(width=SIDE, height=SIDE, title=_heading(run, rows)))


def _heading(run: Run, rows: list[Json]) -> Any:
    device = fmt.clean(run.device.get("name") or "unknown device")
    reading = "dashed: exact prediction; above it, predicted too long"
    facts = f"{fmt.count(len(rows), 'step')}, measured {fmt.clean(run.started_at[:10])}"
    return main_title(f"predicted and measured steps on {device}", [facts, reading])
