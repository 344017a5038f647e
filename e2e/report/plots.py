"""The charts of trainings and loaders: bars or curves, losses over the steps, ledgers as
waterfalls, images per second by workers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, stdev
from typing import Any

from e2e.case import DATA_WORDS
from e2e.report.arms import (
    SHORT_MARK,
    SHORT_WORDS,
    Group,
    View,
    arms_of,
    batches_of,
    grouped,
    is_generated,
    shows_no_difference,
    step_word,
    view_of,
    what_was_trained,
)
from e2e.report.figures import ratio
from e2e.report.joint import Joint, joint_title, joints
from e2e.report.ledger import base_name, changes, has_ledger, is_sound, ledger_title, term_words
from e2e.results.loader_types import Loading
from e2e.results.terms import RESIDUAL
from e2e.results.types import Training
from microbench import fmt
from microbench.errors import UserError
from microbench.report.charts import (
    COLOURS,
    INK,
    MIXED_COLOUR,
    OTHER_COLOUR,
    WHOLLY,
    library,
    main_title,
    panel_title,
    styled,
)
from microbench.results.types import Json, Run

# A recipe has the colour of the precision that its arithmetic is in, and never another's.
RECIPE_COLOURS = {
    **COLOURS,
    **WHOLLY,
    "amp": COLOURS["fp16"],
    "amp-bf16": COLOURS["bf16"],
    "O0": COLOURS["fp32"],
    "O1": COLOURS["fp16"],  # apex's names: of amp, of fp16
    "O2": MIXED_COLOUR,
    "O3": WHOLLY["fp16"],
}
DASHES = ([1, 0], [7, 4], [2, 3], [9, 3, 2, 3])  # variants of one recipe that differ in options
BAR, BARS_WIDTH = 26, 520  # height of a bar, width of a panel of bars
NEUTRAL = "#bbbbbb"  # of lines between bars, and of what does not differ

Looks = Mapping[str, tuple[str, Sequence[int]]]  # arm -> colour, dashes
Values = Callable[[Training], Sequence[float | None]]


@dataclass(frozen=True)
class Panel:
    """One pair of axes and its rows. In rows without a deviation it is 0."""

    title: str
    rows: list[Json]
    from_zero: bool


def heading(run: Run, reading: Sequence[str]) -> Any:
    """The title: what was trained, on what, with which data; how to read the chart."""
    title, *conditions = what_was_trained(run)[1:]
    device = fmt.clean(run.device.get("name") or "unknown device")
    torch = fmt.clean(run.software.get("torch", ""))
    ran = any(arm.steps for arm in run.of(Training))
    measured = f"{'measured' if ran else 'predicted'} {fmt.clean(run.started_at[:10])}"
    facts = [*conditions, *([f"torch {torch}"] if torch else []), measured]
    evaluates = view_of(run).evaluates
    what = "evaluation" if evaluates else "training" if ran else "predicted training of"
    return main_title(f"{what} {title} on {device}", [", ".join(facts), *reading])


def recipe_colour(recipe: str) -> str:
    """The colour ("#rrggbb") of a recipe; one colour for all that RECIPE_COLOURS does not list."""
    return RECIPE_COLOURS.get(recipe, OTHER_COLOUR)


def looks_of(recipes: dict[str, str]) -> Looks:
    """Label -> colour and dashes: a colour a recipe, dashes by which of its variants it is."""
    arms = grouped((recipe, label) for label, recipe in recipes.items())
    return {
        label: (recipe_colour(recipe), DASHES[arms[recipe].index(label) % len(DASHES)])
        for label, recipe in recipes.items()
    }


def band(values: Sequence[float], name: str) -> dict[str, float]:
    """Their mean under this name, and the mean less and plus one standard deviation."""
    mean, deviation = fmean(values), stdev(values) if len(values) > 1 else 0.0
    return {name: mean, "low": mean - deviation, "high": mean + deviation}


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
        chart = library().vconcat(*falls, spacing=24)
        return styled(chart.properties(title=heading(run, [])))
    chart = curves(run, view, family) if batches_of(family) >= FEWEST_SIZES else bars(run, view)
    looks = looks_of({view.label(arm): arm.case.recipe for arm in view.arms})
    if losses := loss_panels(library(), view, looks):
        chart = library().vconcat(chart, *losses, spacing=36)
        chart = chart.resolve_scale(color="independent", strokeDash="independent")
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
    name = next((name for name in view.compared if view.is_compared(arm, name)), "")
    over = view.title(name, SHORT_MARK)
    gain = f" ({ratio(arm.speedup[name])} x {over})" if name else ""
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
        *[f"{SHORT_MARK}{SHORT_WORDS}"] * any(map(view.is_short, view.compared)),
    ]
    if learnt:
        reading.append(
            "points: mean of the repeats; lines: standard deviation; ticks: single repeats"
        )
    chart = charts[0] if len(charts) == 1 else alt.vconcat(*charts, spacing=24)
    return chart.properties(title=heading(run, reading))


def _by_arm(alt: Any, recipes: Sequence[str]) -> tuple[Any, Any]:
    """A row for each arm, in the colour of its recipe."""
    names = alt.Axis(labelFontWeight="bold", labelLimit=260, ticks=False)
    colours = alt.Scale(domain=list(recipes), range=[recipe_colour(recipe) for recipe in recipes])
    y = alt.Y("label:N", sort=None, title=None, axis=names)
    return y, alt.Color("recipe:N", scale=colours, legend=None)


def _bar_panel(alt: Any, title: str, rows: Sequence[Json], recipes: Sequence[str]) -> Any:
    base = alt.Chart(alt.InlineData(values=list(rows)))
    unit = rows[0]["unit"]
    y, coloured = _by_arm(alt, recipes)
    top = max(row["high"] for row in rows) * TEXT_ROOM
    axis = alt.Axis(grid=False, tickCount=6, labelOverlap="greedy", labelSeparation=6)
    x = alt.X("rate:Q", title=unit, scale=alt.Scale(domain=[0, top], nice=False), axis=axis)
    faded = alt.condition(alt.datum.lost, alt.value(0.35), alt.value(1))
    high = alt.X("high:Q", title=unit)
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
        (f"held-out accuracy, %{data}", _accuracies),
        (f"held-out loss{data}", lambda arm: [repeat.loss for repeat in arm.repeats]),
        ("training loss, mean of the last tenth of the steps",
         lambda arm: [repeat.train_loss for repeat in arm.repeats]),
    ]  # fmt: skip
    found = [
        Panel(title, [
            {
                "label": view.full_label(arm), "recipe": fmt.clean(arm.case.recipe), "one": one,
                **band(values, "mean"),
            }
            for arm in view.arms
            for values in [_known(values_of(arm))]
            for one in values
        ], False)
        for title, values_of in read
    ]  # fmt: skip
    return [panel for panel in found if panel.rows]


def _accuracies(arm: Training) -> list[float | None]:
    """In per cent, of each repeat."""
    return [repeat.accuracy and 100 * repeat.accuracy for repeat in arm.repeats]


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def learning_panel(alt: Any, panel: Panel, recipes: Sequence[str]) -> Any:
    """One panel of `learning_panels` as an Altair chart; colours by recipe, in this order."""
    base = alt.Chart(alt.InlineData(values=panel.rows))
    labels = len({row["label"] for row in panel.rows})
    y, colour = _by_arm(alt, recipes)
    x_scale, axis = alt.Scale(zero=False, padding=12), alt.Axis(grid=False, tickCount=6)

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
    times: tuple[str, Values] = (
        f"ms/{view.per_step}",
        lambda arm: [arm.step_s and 1e3 * arm.step_s],
    )
    if any(arm.train_s for arm in arms_of(family)):
        times = ("training time, s", lambda arm: [repeat.train_s for repeat in arm.repeats])
    read: list[tuple[str, Values]] = [
        (f"{unit}/s", lambda arm: [arm.per_s]),
        times,
        ("peak memory, GB", lambda arm: [arm.memory_peak_bytes / 1e9]
         if arm.memory_peak_bytes and arm.status == "ok" else []),
        (accuracy, _accuracies),
    ]  # fmt: skip
    found = [
        Panel(title, [
            {
                "arm": label, "recipe": fmt.clean(arm.case.recipe), "batch": arm.case.batch,
                **band(values, "value"), "lost": arm.converged is False,
            }
            for label, arms in view.curves(family).items()
            for arm in arms
            if (values := _known(values_of(arm)))
        ], title != accuracy)
        for title, values_of in read
    ]  # fmt: skip
    return [panel for panel in found if panel.rows]


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


# ---------------------------------------------------------------- ledgers


# By Okabe and Ito: safe for red-green colour blindness.
WHOLE, SAVED, ADDED, REST = "#555555", "#009e73", "#d55e00", "#cc79a7"
MOST_FALLS = 4
LINE = 22  # height of a waterfall's line
ROOM = 0.16  # of the range, right of the bars, for the numbers


def waterfall_panels(view: View) -> list[Any]:
    """One panel per ledger, MOST_FALLS at most. Without ledgers, Altair is not needed."""
    found = [arm for arm in view.arms if has_ledger(arm) and is_sound(view, arm)]
    shown = found[:MOST_FALLS]
    titles = [ledger_title(view, arm) for arm in shown]
    if len(found) > MOST_FALLS:
        titles[-1] += f" (and {len(found) - MOST_FALLS} more in the run)"
    rows = [waterfall_rows(arm, view.label(arm)) for arm in shown]
    return [_waterfall_panel(library(), *one) for one in zip(titles, rows, strict=True)]


def waterfall_rows(arm: Training, label: str) -> list[Json]:
    """One row per line of the ledger, in ms, small terms folded; whole steps begin at 0."""
    *terms, whole = changes(arm, fold=True)
    first_ms, last_ms = whole.base_ms or 0.0, whole.other_ms or 0.0
    ends = list(accumulate((one.ms for one in terms), initial=first_ms))
    word = step_word(arm)
    bars = [(f"{base_name(arm)} {word}", 0.0, first_ms, f"{first_ms:.4g} ms", WHOLE)]
    for one, start, end in zip(terms, ends, ends[1:], strict=False):
        colour = SAVED if one.ms < 0 else ADDED if one.ms > 0 else NEUTRAL
        colour = REST if one.term == RESIDUAL else colour
        bars.append((term_words(one.term), start, end, f"{one.ms:+.3g}", colour))
    bars.append((f"{label} {word}", 0.0, last_ms, f"{last_ms:.4g} ms", WHOLE))
    return [
        {
            "place": place, "term": term, "low": min(start, end), "high": max(start, end),
            "end": end, "next": place + 1, "text": text, "colour": colour,
        }
        for place, (term, start, end, text, colour) in enumerate(bars)
    ]  # fmt: skip


def _waterfall_panel(alt: Any, title: str, rows: list[Json]) -> Any:
    low, high = min(0.0, *(row["low"] for row in rows)), max(row["high"] for row in rows)
    scale = alt.Scale(domain=[low, high + (high - low) * ROOM], nice=False)
    # Places, not terms, on the axis: two lines may have one name.
    terms = json.dumps([row["term"] for row in rows])
    names = alt.Axis(labelLimit=240, ticks=False, labelExpr=f"{terms}[datum.value]")
    y = alt.Y("place:O", title=None, axis=names)
    x_axis = alt.Axis(grid=False, tickCount=6)
    x = alt.X("low:Q", title="ms", scale=scale, axis=x_axis)
    base = alt.Chart(alt.InlineData(values=rows))
    colour = alt.Color("colour:N", scale=None, legend=None)
    stroke = alt.Stroke("colour:N", scale=None, legend=None)  # so that small terms are seen
    links = alt.Chart(alt.InlineData(values=rows[:-1]))
    return alt.layer(
        links.mark_rule(color=NEUTRAL, strokeWidth=1).encode(
            x=alt.X("end:Q", title="ms", scale=scale, axis=x_axis), y=y, y2="next:O"
        ),
        base.mark_bar(height=LINE * 0.68, strokeWidth=1).encode(
            x=x, x2="high:Q", y=y, color=colour, stroke=stroke
        ),
        base.mark_text(align="left", dx=5, fontSize=11.5, color=INK).encode(
            x=alt.X("high:Q", scale=scale), y=y, text="text:N"
        ),
    ).properties(width=BARS_WIDTH, height=LINE * len(rows), title=panel_title(alt, title))


# ---------------------------------------------------------------- loaders

LOADER_LINE, LOADER_COLOUR = "loader alone", "#d55e00"
LOADING_SIZE = (560, 320)
SERIES_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")


def loading_chart(run: Run) -> Any:
    """An Altair chart in img/s: a panel per network fed by a loader, else the loaders alone.

    UserError when no loader was measured, or when Altair is not installed.
    """
    pictures = joints(run)
    alt = library()
    if pictures:
        panels = [
            _loading_panel(alt, joint_title(it), joint_rows(it), _series_colours(it))
            for it in pictures
        ]
        reading = "lines: predicted from recipe and loader alone; points: measured together"
    else:
        rows = loader_rows(run)
        if not rows:
            raise UserError("nothing to draw: the run has no loader with a rate")
        names = list(dict.fromkeys(row["series"] for row in rows))
        colours = dict(zip(names, SERIES_COLOURS * len(names), strict=False))
        panels = [_loading_panel(alt, "", rows, colours)]
        reading = "images per second to the device, without training"
    # One panel too: its own title says of what, the heading of which device.
    chart = alt.vconcat(*panels, spacing=30)
    return styled(chart.properties(title=_loading_heading(run, reading)))


def joint_rows(joint: Joint) -> list[Json]:
    """One row per point: predicted ("line") and measured ("point") img/s, and the loader alone."""
    points = [
        (fmt.clean(t.case.recipe), t.case.workers, per_s, kind)
        for t in joint.trainings
        for per_s, kind in ((t.predicted_per_s, "line"), (t.per_s, "point"))
    ]
    points += [(LOADER_LINE, count, one.per_s, "line") for count, one in joint.loading.items()]
    return _series_rows(points)


def loader_rows(run: Run) -> list[Json]:
    """One row per loader and number of workers, in img/s."""
    return _series_rows(
        (fmt.clean(one.case.loader) + ", cold files" * one.case.cold, one.case.workers, one.per_s,
         kind)
        for one in run.of(Loading)
        for kind in ("line", "point")
    )  # fmt: skip


def _series_rows(points: Iterable[tuple[str, int, float | None, str]]) -> list[Json]:
    """Of those with a rate."""
    names = ("series", "workers", "rate", "kind")
    return [dict(zip(names, point, strict=True)) for point in points if point[2]]


def _series_colours(joint: Joint) -> dict[str, str]:
    named = {fmt.clean(name): recipe_colour(name) for name in joint.recipes}
    return {**named, LOADER_LINE: LOADER_COLOUR}


def _loading_panel(alt: Any, title: str, rows: list[Json], colours: Mapping[str, str]) -> Any:
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
    panel = panel.properties(width=LOADING_SIZE[0], height=LOADING_SIZE[1])
    return panel.properties(title=panel_title(alt, title)) if title else panel


def _loading_heading(run: Run, reading: str) -> Any:
    device = fmt.clean(run.device.get("name") or "unknown device")
    names = {loading.case.data for loading in run.of(Loading)}
    data = sorted(fmt.clean(DATA_WORDS.get(name, name)) for name in names)
    facts = [f"{fmt.listed(data)} data", f"measured {fmt.clean(run.started_at[:10])}"]
    what = "training fed by loaders" if run.of(Training) else "loaders"
    return main_title(f"{what} on {device}", [", ".join(facts), reading])
