"""The chart of a run of trainings: bars or curves, then loss curves, then ledgers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from e2e.report.arms import (
    Group,
    View,
    arms_of,
    batches_of,
    grouped,
    is_generated,
    shows_no_difference,
    view_of,
)
from e2e.report.figures import ratio
from e2e.report.plot_style import (
    BAR,
    BARS_WIDTH,
    NEUTRAL,
    Panel,
    Values,
    heading,
    looks_of,
    recipe_colour,
)
from e2e.report.plot_waterfall import waterfall_panels
from e2e.results.types import Training
from microbench import fmt
from microbench.errors import UserError
from microbench.report.chart import FEWEST_SIZES
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


# ---------------------------------------------------------------- curves over batch sizes


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
    rows: list[Json] = []
    for label, arms in view.curves(family).items():
        for arm in arms:
            values = [value for value in values_of(arm) if value is not None]
            if values:
                mean = fmean(values)
                spread = stdev(values) if len(values) > 1 else 0.0
                rows.append({
                    "arm": label, "recipe": fmt.clean(arm.case.recipe), "batch": arm.case.batch,
                    "value": mean, "low": mean - spread, "high": mean + spread,
                    "lost": arm.converged is False,
                })  # fmt: skip
    return rows


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


def _curve_panel(
    alt: Any, panel: Panel, batches: Sequence[int], looks: dict[str, tuple[str, list[int]]]
) -> Any:
    base = alt.Chart(alt.InlineData(values=panel.rows))
    scale = alt.Scale(type="log", base=2, domain=[batches[0], batches[-1]], padding=12, nice=False)
    axis = alt.Axis(values=list(batches), format="d", grid=False, labelOverlap="greedy")
    x = alt.X("batch:Q", title="batch", scale=scale, axis=axis)
    y_scale = alt.Scale(zero=panel.from_zero)
    y = alt.Y("value:Q", title=panel.title, scale=y_scale)
    colour = alt.Color(
        "arm:N",
        scale=alt.Scale(domain=list(looks), range=[colour for colour, _ in looks.values()]),
        legend=alt.Legend(
            title=None, labelFontSize=13, symbolType="circle", symbolOpacity=1, orient="top"
        ),
    )
    dash = alt.StrokeDash(
        "arm:N",
        scale=alt.Scale(domain=list(looks), range=[dash for _, dash in looks.values()]),
        legend=None,
    )
    low = alt.Y("low:Q", title=panel.title, scale=y_scale)
    shape = alt.condition(alt.datum.lost, alt.value("cross"), alt.value("circle"))
    width, height = CURVE_SIZE
    return alt.layer(
        base.mark_area(opacity=0.2).encode(x=x, y=low, y2="high:Q", color=colour),
        base.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour, strokeDash=dash),
        base.mark_point(filled=True, size=46, opacity=1).encode(
            x=x, y=y, color=colour, shape=shape
        ),
    ).properties(width=width, height=height)


# ---------------------------------------------------------------- losses over the steps


MOST_PANELS = 4
LOSS_SIZE = (520, 220)

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
    return [_loss_panel(alt, title, rows, looks) for title, rows in shown]


def _loss_panel(alt: Any, title: str, rows: Sequence[Json], looks: Looks) -> Any:
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
        width=LOSS_SIZE[0], height=LOSS_SIZE[1],
        title=panel_title(alt, f"{what}, mean ± std of the repeats{', ' * bool(title)}{title}"),
    )  # fmt: skip
