"""Charts with a row for each thing timed: the layers of a network, or callables side by side.

A layer has a bar, longest time first, coloured by the verdict; a callable a tick for each sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from microbench import fmt
from microbench.errors import UserError
from microbench.report.arms import arms_of
from microbench.report.drawing_style import COLOURS, FAINT, INK, heading, library, styled
from microbench.report.layers_table import Layer, layers_of
from microbench.results.types import Json, Measurement, Run

WIDTH, HEIGHT = 560, 700  # pixels: of the bars; with names, title and key about 900 by 900
BAR, THINNEST = 22, 7  # height of a bar with its gap; many layers share HEIGHT
LARGEST_FONT = 11
BASE, NEUTRAL, FASTER, SLOWER = "#e4e4e4", "#9a9a9a", "#1f77b4", "#e07b39"
VERDICTS = {"faster": FASTER, "no difference": NEUTRAL, "slower": SLOWER}


def layers_chart(run: Run) -> Any:
    """Milliseconds per step of every layer, in the precision asked for, over those of the baseline.

    Returns an Altair chart. UserError for a run without a layer measured in both.
    """
    network, arms = run.network, arms_of(run)
    if network is None or not arms.asked or not arms.baselines:
        raise UserError("nothing to draw: the run has no layers with a baseline")
    name, baseline = arms.asked[0], arms.baselines[-1]
    rows = layer_rows(layers_of(run, network), name, baseline)
    if not rows:
        raise UserError(f"nothing to draw: no layer was measured in {name} and {baseline}")
    alt = library()
    results = [r for r in run.results if r.measurement]
    reading = (
        f"{fmt.clean(network.name)}, batch {network.batch}: time per step, all passes; "
        f"grey: {baseline}, coloured: {name}, number: speed-up",
        "~1: no difference seen (the 95 % interval holds 1)",
    )
    title = heading(run, results, reading)
    step = max(THINNEST, min(BAR, HEIGHT // len(rows)))
    bars = _bars(alt, rows, step).properties(width=WIDTH, height=step * len(rows), title=title)
    return styled(bars)


def layer_rows(layers: Sequence[Layer], name: str, baseline: str) -> list[Json]:
    """A dictionary per layer, the longest time first.

    Times are ms per step, all passes and uses.
    """
    found: list[Json] = []
    for layer in layers:
        ratio, own_s = layer.ratio(name, baseline), layer.seconds(name)
        if ratio is None or own_s is None:
            continue
        verdict = "faster" if ratio.ratio > 1 else "slower"
        label = f"{layer.label} x{layer.count}" if layer.count > 1 else layer.label
        alike = sum(row["layer"].split(" #")[0] == label for row in found)
        found.append({
            "layer": f"{label} #{alike + 1}" if alike else label,
            "ms": 1e3 * own_s,
            "base_ms": 1e3 * own_s * ratio.ratio,
            "text": fmt.short_ratio(ratio),
            "verdict": "no difference" if ratio.no_difference else verdict,
            "bottleneck": layer.bound(name),
        })  # fmt: skip
    return sorted(found, key=lambda row: -row["ms"])


def _bars(alt: Any, rows: Sequence[Json], step: int) -> Any:
    size = min(LARGEST_FONT, step - 1)
    base = alt.Chart(alt.InlineData(values=list(rows))).encode(
        y=alt.Y("layer:N", sort=[row["layer"] for row in rows], title=None,
                axis=alt.Axis(labelFontSize=size, labelLimit=240, labelOverlap=False)),
        tooltip=[alt.Tooltip("layer:N"), alt.Tooltip("ms:Q", format=".3f"),
                 alt.Tooltip("base_ms:Q", format=".3f"), alt.Tooltip("bottleneck:N")],
    )  # fmt: skip
    longest = max(max(row["ms"], row["base_ms"]) for row in rows)
    scale = alt.Scale(domain=[0, 1.08 * longest], nice=False)
    colour = alt.Color(
        "verdict:N", scale=alt.Scale(domain=list(VERDICTS), range=list(VERDICTS.values())),
        legend=alt.Legend(title=None, orient="bottom", labelColor=FAINT),
    )  # fmt: skip
    end = alt.X("longer:Q", scale=scale)
    return alt.layer(
        base.mark_bar(color=BASE).encode(x=alt.X("base_ms:Q", title="ms/step", scale=scale)),
        base.mark_bar(height={"band": 0.55}).encode(
            x=alt.X("ms:Q", title="ms/step", scale=scale), color=colour
        ),
        base.transform_calculate(longer="max(datum.ms, datum.base_ms)")
        .mark_text(align="left", dx=4, fontSize=size, color=INK)
        .encode(x=end, text="text:N"),
    )


# ---------------------------------------------------------------- callables

ROW = 44  # pixels: height of a callable's row
SAMPLES_WIDTH = 620
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
            width=SAMPLES_WIDTH,
            height=ROW * len(found),
            title=alt.TitleParams(
                "Time per call",
                subtitle=["grey: samples; point: median; bar: 95 % confidence interval"],
                subtitleColor=FAINT, color=INK, anchor="start",
            ),
        )
    )  # fmt: skip
