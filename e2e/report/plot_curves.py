"""Lines with the deviation of repeats: quantities over the batch size, losses over the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from e2e.report.arms import (
    Group,
    View,
    arms_of,
    is_generated,
)
from e2e.report.plot_style import (
    Looks,
    Panel,
    Values,
    band,
    heading,
    looks_of,
)
from e2e.results.types import Training
from microbench import fmt
from microbench.report.drawing_style import library, panel_title
from microbench.results.types import Json, Run

CURVE_SIZE = (400, 260)  # width and height


def curve_panels(view: View, family: Sequence[Group]) -> list[Panel]:
    """Throughput, time (of a training in s, or of a step in ms), memory and accuracy, if known."""
    unit = fmt.clean(family[0].arms[0].unit)
    data = " (generated data)" if is_generated(family[0].case) else ""
    accuracy = f"held-out accuracy, %{data}"
    times: tuple[str, Values] = ("ms/step", lambda arm: [arm.step_s and 1e3 * arm.step_s])
    if any(arm.train_s for arm in arms_of(family)):
        times = ("training time, s", lambda arm: [repeat.train_s for repeat in arm.repeats])
    values: list[tuple[str, Values]] = [
        (f"{unit}/s", lambda arm: [arm.per_s]),
        times,
        ("peak memory, GB", lambda arm: [_peak_gb(arm)]),
        (accuracy, lambda arm: [r.accuracy and 100 * r.accuracy for r in arm.repeats]),
    ]
    found = [
        Panel(title, _curve_rows(view, family, read), title != accuracy) for title, read in values
    ]
    return [panel for panel in found if panel.rows]


def _peak_gb(arm: Training) -> float | None:
    ran = arm.memory_peak_bytes and arm.status == "ok"
    return arm.memory_peak_bytes / 1e9 if ran and arm.memory_peak_bytes else None


def _curve_rows(view: View, family: Sequence[Group], values_of: Values) -> list[Json]:
    """A row an arm and batch: mean and deviation of its values."""
    return [
        {
            "arm": label, "recipe": fmt.clean(arm.case.recipe), "batch": arm.case.batch,
            **band(values, "value"), "lost": arm.converged is False,
        }
        for label, arms in view.curves(family).items()
        for arm in arms
        if (values := [value for value in values_of(arm) if value is not None])
    ]  # fmt: skip


def curves(run: Run, view: View, family: Sequence[Group]) -> Any:
    """The Altair chart of one network's or setting's groups, a panel a quantity."""
    alt = library()
    arms = view.curves(family)
    looks = looks_of({label: arms[label][0].case.recipe for label in arms})
    batches = sorted({group.case.batch for group in family})
    panels = [_curve_panel(alt, panel, batches, looks) for panel in curve_panels(view, family)]
    reading = ["crosses: not converged"] * any(arm.converged is False for arm in run.of(Training))
    if any(len(arm.repeats) > 1 for arm in arms_of(family)):
        reading.insert(0, "shaded: mean and standard deviation of the repeats")
    if len(view.families) > 1:
        several = fmt.count(len(view.families), "", "networks or settings")
        reading.append(f"{fmt.clean(family[0].case.network)} only: the run holds {several}")
    chart = alt.concat(*panels, columns=2, spacing=30)
    return chart.properties(title=heading(run, reading)).resolve_legend(color="shared")


def _curve_panel(alt: Any, panel: Panel, batches: Sequence[int], looks: Looks) -> Any:
    scale = alt.Scale(type="log", base=2, domain=[batches[0], batches[-1]], padding=12, nice=False)
    axis = alt.Axis(values=list(batches), format="d", grid=False, labelOverlap="greedy")
    x = alt.X("batch:Q", title="batch", scale=scale, axis=axis)

    def y(name: str) -> Any:
        return alt.Y(f"{name}:Q", title=panel.title, scale=alt.Scale(zero=panel.from_zero))

    colour = _colour(alt, looks, symbolType="circle")
    shape = alt.condition(alt.datum.lost, alt.value("cross"), alt.value("circle"))
    base = alt.Chart(alt.InlineData(values=panel.rows))
    return alt.layer(
        *_area_and_line(alt, base, x, y, colour, looks),
        base.mark_point(filled=True, size=46, opacity=1).encode(
            x=x, y=y("value"), color=colour, shape=shape
        ),
    ).properties(width=CURVE_SIZE[0], height=CURVE_SIZE[1])


def _colour(alt: Any, looks: Looks, **symbols: str) -> Any:
    """The colour of each arm, with a legend above the panel."""
    colours = [colour for colour, _ in looks.values()]
    return alt.Color(
        "arm:N", scale=alt.Scale(domain=list(looks), range=colours),
        legend=alt.Legend(title=None, labelFontSize=13, symbolOpacity=1, orient="top", **symbols),
    )  # fmt: skip


def _area_and_line(
    alt: Any, base: Any, x: Any, y: Callable[[str], Any], colour: Any, looks: Looks
) -> Sequence[Any]:
    """A line through the means of each arm, and the area of their deviations."""
    dashes = alt.Scale(domain=list(looks), range=[dash for _, dash in looks.values()])
    dash = alt.StrokeDash("arm:N", scale=dashes, legend=None)
    return (
        base.mark_area(opacity=0.2).encode(x=x, y=y("low"), y2="high:Q", color=colour),
        base.mark_line(strokeWidth=2).encode(x=x, y=y("value"), color=colour, strokeDash=dash),
    )


# ---------------------------------------------------------------- losses over the steps


MOST_PANELS = 4
LOSS_SIZE = (520, 220)


def loss_rows(view: View, group: Group) -> list[Json]:
    """A row for each arm and point of its curves; a point where a loss is not finite is left out.

    `step` is the middle of the steps that the point is a mean over. Repeats of another length than
    the first one's are left out.
    """
    return [
        {
            "arm": view.label(arm), "recipe": fmt.clean(arm.case.recipe), "step": step,
            **band(losses, "value"),
        }
        for arm in group.arms
        for step, losses in _points(arm)
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
    return [_loss_panel(alt, title, rows, looks) for title, rows in shown]


def _loss_panel(alt: Any, title: str, rows: Sequence[Json], looks: Looks) -> Any:
    what = "training loss"
    x = alt.X("step:Q", title="step", axis=alt.Axis(grid=False, tickCount=6))
    own = {arm: look for arm, look in looks.items() if any(row["arm"] == arm for row in rows)}
    base = alt.Chart(alt.InlineData(values=list(rows)))

    def y(name: str) -> Any:
        return alt.Y(f"{name}:Q", title=what, scale=alt.Scale(zero=False))

    layers = _area_and_line(alt, base, x, y, _colour(alt, own), own)
    return alt.layer(*layers).properties(
        width=LOSS_SIZE[0], height=LOSS_SIZE[1],
        title=panel_title(alt, f"{what}, mean ± std of the repeats{', ' * bool(title)}{title}"),
    )  # fmt: skip
