"""The training loss over the steps: mean and deviation of an arm's repeats, a panel per group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from e2e.report.arms import Group, View
from e2e.results.types import Training
from microbench import fmt
from microbench.report.drawing_style import panel_title
from microbench.results.types import Json

MOST_PANELS = 4
WIDTH, HEIGHT = 520, 220

Looks = Mapping[str, tuple[str, Sequence[int]]]  # arm -> colour, dashes


def loss_rows(view: View, group: Group) -> list[Json]:
    """A row for each arm and point of its curves; a point where a loss is not finite is left out.

    `step` is the middle of the steps that the point is a mean over. Repeats of another length than
    the first one's are left out.
    """
    return [
        {
            "arm": view.label(arm), "recipe": fmt.clean(arm.case.recipe), "step": step,
            "value": mean, "low": mean - deviation, "high": mean + deviation,
        }
        for arm in group.arms
        for step, losses in _points(arm)
        for mean, deviation in [(fmean(losses), stdev(losses) if len(losses) > 1 else 0.0)]
    ]  # fmt: skip


def _points(arm: Training) -> list[tuple[float, list[float]]]:
    """(step, finite losses of all repeats) of each point that every repeat has."""
    drawn = [repeat for repeat in arm.repeats if repeat.curve]
    alike = [r for r in drawn if (r.steps, len(r.curve)) == (drawn[0].steps, len(drawn[0].curve))]
    found: list[tuple[float, list[float]]] = []
    for place, losses in enumerate(zip(*(repeat.curve for repeat in alike), strict=True)):
        finite = [loss for loss in losses if loss is not None]
        if len(finite) == len(losses):
            found.append(((place + 0.5) * alike[0].steps / len(alike[0].curve), finite))
    return found


def loss_panels(alt: Any, view: View, looks: Looks) -> list[Any]:
    """A panel a group of arms, the first MOST_PANELS of those with curves."""
    groups = [(group.title, rows) for group in view.groups if (rows := loss_rows(view, group))]
    shown = groups[:MOST_PANELS]
    if more := groups[MOST_PANELS:]:
        title, rows = shown[-1]
        shown[-1] = (f"{title} (and {len(more)} more in the run)", rows)
    return [_panel(alt, title, rows, looks) for title, rows in shown]


def _panel(alt: Any, title: str, rows: Sequence[Json], looks: Looks) -> Any:
    base = alt.Chart(alt.InlineData(values=list(rows)))
    scale = alt.Scale(zero=False)
    what = "training loss"
    x = alt.X("step:Q", title="step", axis=alt.Axis(grid=False, tickCount=6))
    y = alt.Y("value:Q", title=what, scale=scale)
    arms = [arm for arm in looks if any(row["arm"] == arm for row in rows)]
    colour = alt.Color(
        "arm:N",
        scale=alt.Scale(domain=arms, range=[looks[arm][0] for arm in arms]),
        legend=alt.Legend(title=None, labelFontSize=13, symbolOpacity=1, orient="top"),
    )
    dash = alt.StrokeDash(
        "arm:N", scale=alt.Scale(domain=arms, range=[looks[arm][1] for arm in arms]), legend=None
    )
    return alt.layer(
        base.mark_area(opacity=0.2).encode(
            x=x, y=alt.Y("low:Q", title=what, scale=scale), y2="high:Q", color=colour
        ),
        base.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour, strokeDash=dash),
    ).properties(
        width=WIDTH, height=HEIGHT,
        title=panel_title(alt, f"{what}, mean ± std of the repeats{', ' * bool(title)}{title}"),
    )  # fmt: skip
