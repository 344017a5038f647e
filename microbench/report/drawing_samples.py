"""The chart of callables timed side by side: every sample as a tick, a row a callable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from microbench import fmt
from microbench.report.drawing_style import COLOURS, FAINT, INK, library, styled
from microbench.results.types import Measurement

ROW = 44  # pixels
WIDTH = 620
UNITS = ((1e-3, "ms"), (1e-6, "us"))


def samples_chart(found: Mapping[str, Measurement]) -> Any:
    """Samples, median and its 95 % interval of each callable, in one time unit; an Altair chart."""
    alt = library()
    slowest = max(one.median_s for one in found.values())
    scale, unit = next((u for u in UNITS if slowest >= u[0]), UNITS[-1])
    samples = [
        {"name": fmt.clean(name), "time": seconds / scale}
        for name, one in found.items()
        for seconds in one.times_s
    ]
    medians = [
        {
            "name": fmt.clean(name),
            "time": one.median_s / scale,
            "low": (one.ci95_s or (one.median_s,) * 2)[0] / scale,
            "high": (one.ci95_s or (one.median_s,) * 2)[1] / scale,
        }
        for name, one in found.items()
    ]
    row = alt.Y("name:N", title=None, sort=None)
    axis = alt.X("time:Q", title=f"{unit}/call", scale=alt.Scale(zero=False))
    ticks = alt.Chart(alt.Data(values=samples)).mark_tick(color=FAINT, opacity=0.4)
    middle = alt.Chart(alt.Data(values=medians))
    layers = alt.layer(
        ticks.encode(x=axis, y=row),
        middle.mark_rule(color=COLOURS["fp16"], strokeWidth=3).encode(
            x="low:Q", x2="high:Q", y=row
        ),
        middle.mark_point(color=INK, filled=True, size=60, opacity=1).encode(x="time:Q", y=row),
    )
    return styled(
        layers.properties(
            width=WIDTH,
            height=ROW * len(found),
            title=alt.TitleParams(
                "Time per call",
                subtitle=["grey: samples; point: median; bar: 95 % confidence interval"],
                subtitleColor=FAINT, color=INK, anchor="start",
            ),
        )
    )  # fmt: skip
