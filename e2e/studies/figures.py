"""The author's figures on their axes: published lines dashed, ours solid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from e2e.report.plots import recipe_colour
from e2e.studies.cells import Cell
from e2e.studies.tables import HERE, measured_as, number_of, own_word
from e2e.studies.types import FigureForm, Published
from microbench.report.drawing_style import library, main_title, styled

SIZE = (620, 380)
PUBLISHED, MEASURED = "published", "measured here"


def points(
    form: FigureForm, published: Published | None, cells: Sequence[Cell]
) -> list[dict[str, Any]]:
    """The points of a figure, published and measured: x, y, ends of the bar, line, source."""
    found: list[dict[str, Any]] = []
    for record in published.records() if published else []:
        y = number_of(record[form.y])
        words = [str(record[key]) for key in form.line]
        if y is not None and published:
            recipe = published.alias.get(words[-1], words[-1])
            error = _deviation(record[form.y])
            found.append(
                _point(form, number_of(record[form.x]), y, error, words, recipe, PUBLISHED)
            )
    for cell in cells:
        if cell.part not in form.parts:
            continue
        y = cell.values.get(measured_as(published, form.y) if published else form.y)
        x = cell.factors.get(form.x)
        if y is None or x is None:
            continue
        words = [
            own_word(published, key, cell) if published else str(cell.factors.get(key, ""))
            for key in form.line
        ]
        if len(form.parts) > 1:
            words.append(cell.part)
        error = cell.values.get(form.error)
        recipe = str(cell.factors.get("recipe", ""))
        found.append(_point(form, x, y, error, words, recipe, MEASURED))
    return found


def _deviation(text: Any) -> float | None:
    _, sign, after = str(text).partition("±")
    return number_of(after.strip()) if sign else None


def _point(
    form: FigureForm, x: Any, y: float, error: float | None, words: Sequence[str], recipe: Any,
    source: str,
) -> dict[str, Any]:  # fmt: skip
    low, high = (y - error, y + error) if error is not None and form.error else (y, y)
    return {
        "x": x, "y": y, "low": low, "high": high, "line": " ".join(words), "machine": words[0],
        "recipe": str(recipe), "source": source,
    }  # fmt: skip


def figure(
    form: FigureForm, published: Published | None, cells: Sequence[Cell], device: str
) -> Any:
    """The Altair chart; None where nothing was measured. UserError without Altair."""
    rows = points(form, published, cells)
    if not any(row["source"] == MEASURED for row in rows):
        return None
    alt = library()
    recipes = list(dict.fromkeys(row["recipe"] for row in rows))
    base = alt.Chart(alt.InlineData(values=rows))
    numbers = all(isinstance(row["x"], int | float) for row in rows)
    values = sorted({row["x"] for row in rows}) if numbers else None
    scale = alt.Scale(type="log", base=2, nice=False, padding=14) if numbers else alt.Undefined
    x = alt.X(
        "x:Q" if numbers else "x:N", title=form.x_title or form.x, scale=scale,
        axis=alt.Axis(values=values, format="d", grid=False) if numbers else alt.Axis(labelAngle=0),
    )  # fmt: skip
    y_scale = alt.Scale(type=form.scale, zero=form.scale == "linear")
    title = form.y_title or form.y
    y = alt.Y("y:Q", title=title, scale=y_scale)
    colour = alt.Color(
        "recipe:N",
        scale=alt.Scale(domain=recipes, range=[recipe_colour(one) for one in recipes]),
        legend=alt.Legend(title=None, orient="top"),
    )
    dash = alt.StrokeDash(
        "source:N", scale=alt.Scale(domain=[PUBLISHED, MEASURED], range=[[4, 4], [1, 0]]),
        legend=alt.Legend(title=None, orient="top", symbolStrokeColor="#222222"),
    )  # fmt: skip
    shape = alt.Shape("machine:N", legend=alt.Legend(title=None, orient="top", labelLimit=220))
    shared = base.encode(x=x, y=y, color=colour, detail="line:N")
    chart = alt.layer(
        base.mark_rule(strokeWidth=4, opacity=0.35).encode(
            x=x, y=alt.Y("low:Q", title=title), y2="high:Q", color=colour
        ),
        shared.mark_line(strokeWidth=2).encode(strokeDash=dash),
        shared.mark_point(size=50, opacity=1).encode(shape=shape),
    ).properties(width=SIZE[0], height=SIZE[1])
    drawn = any(row["source"] == PUBLISHED for row in rows)
    below = ["dashed: published; " * drawn + f"solid: {HERE}, {device}"]
    return styled(chart.properties(title=main_title(form.title, below)))
