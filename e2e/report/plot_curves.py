"""The chart of a run with several batch sizes: panels of curves over the batch size."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from e2e.report.arms import Group, View, arms_of, is_generated
from e2e.report.plot_style import Panel, Values, heading, looks_of
from e2e.results.types import Training
from microbench import fmt
from microbench.report.drawing_style import library
from microbench.results.types import Json, Run

PANEL = (400, 260)  # width and height


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
    found = [Panel(title, _rows(view, family, read), title != accuracy) for title, read in values]
    return [panel for panel in found if panel.rows]


def _peak_gb(arm: Training) -> float | None:
    ran = arm.memory_peak_bytes and arm.status == "ok"
    return arm.memory_peak_bytes / 1e9 if ran and arm.memory_peak_bytes else None


def _rows(view: View, family: Sequence[Group], values_of: Values) -> list[Json]:
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
    width, height = PANEL
    return alt.layer(
        base.mark_area(opacity=0.2).encode(x=x, y=low, y2="high:Q", color=colour),
        base.mark_line(strokeWidth=2).encode(x=x, y=y, color=colour, strokeDash=dash),
        base.mark_point(filled=True, size=46, opacity=1).encode(
            x=x, y=y, color=colour, shape=shape
        ),
    ).properties(width=width, height=height)
