"""The chart of a run of trainings: bars or curves, then loss curves, then ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from e2e.report.arms import (
    View,
    batches_of,
    grouped,
    is_generated,
    shows_no_difference,
    view_of,
)
from e2e.report.figures import ratio
from e2e.report.plot_curves import curves, loss_panels
from e2e.report.plot_style import (
    BAR,
    BARS_WIDTH,
    NEUTRAL,
    Panel,
    Values,
    band,
    heading,
    looks_of,
    recipe_colour,
)
from e2e.report.plot_waterfall import waterfall_panels
from e2e.results.types import Training
from microbench import fmt
from microbench.errors import UserError
from microbench.report.drawing_style import INK, library, panel_title, styled
from microbench.results.types import Json, Run


def training_chart(run: Run) -> Any:
    """An Altair chart: curves over several batch sizes, else bars; ledgers below.

    UserError when the run has neither times nor ledgers, or when Altair is not installed.
    """
    view = view_of(run)
    timed = [arm for arm in run.of(Training) if arm.per_s]
    falls = waterfall_panels(view)
    if not timed and not falls:
        raise UserError("nothing to draw: the run has no training with step times")
    family = max(view.families, key=batches_of)
    if not timed:
        found = library().vconcat(*falls, spacing=24).properties(title=heading(run, []))
        return styled(found)
    chart = curves(run, view, family) if batches_of(family) >= FEWEST_SIZES else bars(run, view)
    looks = looks_of({view.label(arm): arm.case.recipe for arm in view.arms})
    if losses := loss_panels(library(), view, looks):
        chart = (
            library()
            .vconcat(chart, *losses, spacing=36)
            .resolve_scale(color="independent", strokeDash="independent")
        )
    if falls:
        chart = library().vconcat(chart, *falls, spacing=36).resolve_scale(color="independent")
    return styled(chart)


# ---------------------------------------------------------------- bars


MOST_ROWS = 60
FEWEST_SIZES = 3  # batch sizes of a curve
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


# ---------------------------------------------------------------- repeats


def learning_panels(view: View) -> list[Panel]:
    """Accuracy, held-out loss and training loss by arm, where arms were trained several times.

    Rows hold mean, mean minus and plus one standard deviation, and each repeat's value.
    """
    if not any(len(arm.repeats) > 1 for arm in view.arms):
        return []
    data = " (generated data)" * any(is_generated(arm.case) for arm in view.arms)
    read: list[tuple[str, Values]] = [
        (f"held-out accuracy, %{data}",
         lambda arm: [r.accuracy and 100 * r.accuracy for r in arm.repeats]),
        (f"held-out loss{data}", lambda arm: [repeat.loss for repeat in arm.repeats]),
        ("training loss, mean of the last tenth of the steps",
         lambda arm: [repeat.train_loss for repeat in arm.repeats]),
    ]  # fmt: skip
    found = [Panel(title, _repeat_rows(view, values), False) for title, values in read]
    return [panel for panel in found if panel.rows]


def _repeat_rows(view: View, values_of: Values) -> list[Json]:
    """A row for each repeat, with the mean and deviation of its arm."""
    return [
        {
            "label": view.full_label(arm), "recipe": fmt.clean(arm.case.recipe), "one": one,
            **band(values, "mean"),
        }
        for arm in view.arms
        if (values := [value for value in values_of(arm) if value is not None])
        for one in values
    ]  # fmt: skip


def learning_panel(alt: Any, panel: Panel, recipes: Sequence[str]) -> Any:
    """One panel of `learning_panels` as an Altair chart; colours by recipe, in this order."""
    base = alt.Chart(alt.InlineData(values=panel.rows))
    labels = len({row["label"] for row in panel.rows})
    names = alt.Axis(labelFontWeight="bold", labelLimit=260, ticks=False)
    y = alt.Y("label:N", sort=None, title=None, axis=names)
    x_scale, axis = alt.Scale(zero=False, padding=12), alt.Axis(grid=False, tickCount=6)
    colours = alt.Scale(domain=list(recipes), range=[recipe_colour(recipe) for recipe in recipes])
    colour = alt.Color("recipe:N", scale=colours, legend=None)

    def x(name: str) -> Any:
        return alt.X(f"{name}:Q", title=None, scale=x_scale, axis=axis)

    return alt.layer(
        base.mark_rule(strokeWidth=2).encode(x=x("low"), x2="high:Q", y=y, color=colour),
        base.mark_tick(thickness=1.5, size=BAR * 0.5, opacity=0.6).encode(
            x=x("one"), y=y, color=colour
        ),
        base.mark_point(filled=True, size=90, opacity=1).encode(x=x("mean"), y=y, color=colour),
    ).properties(width=BARS_WIDTH, height=BAR * labels, title=panel_title(alt, panel.title))
