"""The chart of a run with few batch sizes: bars of throughput by variant, panels of the repeats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from e2e.report.arms import View, grouped, shows_no_difference
from e2e.report.figures import ratio
from e2e.report.plot_repeats import learning_panel, learning_panels
from e2e.report.plot_style import BAR, BARS_WIDTH, NEUTRAL, heading, recipe_colour
from e2e.results.types import Training
from microbench import fmt
from microbench.errors import UserError
from microbench.report.drawing_style import INK, library, panel_title
from microbench.results.types import Json, Run

MOST_ROWS = 60
TEXT_ROOM = 1.5  # times the longest bar, for the text after it
LOST = "not converged"


def bar_rows(view: View) -> dict[str, list[Json]]:
    """One row per arm with times, in the order measured, by the group's title."""
    return grouped(
        (group.title, _bar(arm, view)) for group in view.groups for arm in group.arms if arm.per_s
    )


def _bar(arm: Training, view: View) -> Json:
    per_s, steps = arm.per_s or 0.0, arm.steps
    fast, slow = steps.ci95_s if steps and steps.ci95_s else (None, None)
    name = next(iter(view.compared), "")
    gain = f" ({ratio(arm.speedup[name])} x {view.title(name)})" if name in arm.speedup else ""
    lost = arm.converged is False
    return {
        "label": view.label(arm),
        "rate": per_s,
        "low": per_s * steps.median_s / slow if steps and slow else per_s,
        "high": per_s * steps.median_s / fast if steps and fast else per_s,
        "recipe": fmt.clean(arm.case.recipe),
        "unit": f"{fmt.clean(arm.unit)}/s",
        "text": f"{fmt.throughput(per_s)}{f', {LOST}' if lost else gain}",
        "lost": lost,
        "same": shows_no_difference(arm, view.compared),
    }


def bars(run: Run, view: View) -> Any:
    """The Altair chart, images or samples per second. UserError for more than MOST_ROWS bars."""
    panels = bar_rows(view)
    if sum(map(len, panels.values())) > MOST_ROWS:
        raise UserError(f"a chart of more than {MOST_ROWS} bars is too large; draw a smaller run")
    alt = library()
    recipes = list(dict.fromkeys(row["recipe"] for rows in panels.values() for row in rows))
    charts = [_bar_panel(alt, title, rows, recipes) for title, rows in panels.items()]
    same = any(row["same"] for rows in panels.values() for row in rows)
    learnt = learning_panels(view)
    charts += [learning_panel(alt, panel, recipes) for panel in learnt]
    reading = [
        "lines at the ends of the bars: 95 % confidence interval",
        *["grey: no difference measured"] * same,
    ]
    if learnt:
        reading.append(
            "points: mean of the repeats; lines: standard deviation; ticks: single repeats"
        )
    chart = charts[0] if len(charts) == 1 else alt.vconcat(*charts, spacing=24)
    return chart.properties(title=heading(run, reading))


def _bar_panel(alt: Any, title: str, rows: Sequence[Json], recipes: Sequence[str]) -> Any:
    base = alt.Chart(alt.InlineData(values=list(rows)))
    unit = rows[0]["unit"]
    names = alt.Axis(labelFontWeight="bold", labelLimit=260, ticks=False)
    y = alt.Y("label:N", sort=None, title=None, axis=names)
    top = max(row["high"] for row in rows) * TEXT_ROOM
    axis = alt.Axis(grid=False, tickCount=6, labelOverlap="greedy", labelSeparation=6)
    x = alt.X("rate:Q", title=unit, scale=alt.Scale(domain=[0, top], nice=False), axis=axis)
    colours = alt.Scale(domain=list(recipes), range=[recipe_colour(recipe) for recipe in recipes])
    faded = alt.condition(alt.datum.lost, alt.value(0.35), alt.value(1))
    high = alt.X("high:Q", title=unit)
    coloured = alt.Color("recipe:N", scale=colours, legend=None)
    neutral = alt.condition(alt.datum.same, alt.value(NEUTRAL), coloured)
    return alt.layer(
        base.mark_bar(height=BAR * 0.62).encode(x=x, y=y, color=neutral, opacity=faded),
        base.mark_rule(strokeWidth=2, color=INK).encode(
            x=alt.X("low:Q", title=unit), x2="high:Q", y=y
        ),
        base.mark_text(align="left", dx=7, fontSize=12, color=INK).encode(
            x=high, y=y, text="text:N"
        ),
    ).properties(width=BARS_WIDTH, height=BAR * len(rows), title=panel_title(alt, title))
