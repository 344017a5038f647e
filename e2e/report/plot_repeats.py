"""Panels of accuracy and loss of each variant: mean, deviation and every repeat."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from e2e.report.arms import View, is_generated
from e2e.report.plot_style import BAR, BARS_WIDTH, Panel, Values, recipe_colour
from microbench import fmt
from microbench.report.drawing_style import panel_title
from microbench.results.types import Json


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
            "mean": mean, "low": mean - deviation, "high": mean + deviation,
        }
        for arm in view.arms
        if (values := [value for value in values_of(arm) if value is not None])
        for mean, deviation in [(fmean(values), stdev(values) if len(values) > 1 else 0.0)]
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
