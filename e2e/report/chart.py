"""Throughput as a chart of characters: bars by arm, or curves over the batch size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.text import Text

from e2e.report.arms import Group, View, batches_of, grouped, shows_no_difference
from e2e.results.types import Training
from microbench import fmt
from microbench.report.canvas import RULE, log_ticks
from microbench.report.chart import (
    ASKED_MARKERS,
    ASKED_STYLES,
    BASELINE_MARKERS,
    FEWEST_COLUMNS,
    FEWEST_SIZES,
    READING,
    Series,
    draw,
    legend,
)

BAR = "━"
MOST_BARS = 30
FEWEST_BARS = 2
WIDEST_LABEL = 34


def train_chart(view: View, width: int) -> list[Text]:
    """The chart, at most `width` columns wide; empty when it would show nothing.

    Curves for a family of at least FEWEST_SIZES batch sizes, bars for the rest.
    """
    if width < FEWEST_COLUMNS:
        return []
    lines: list[Text] = []
    bars: list[Group] = []
    for family in view.families:
        curves = _curves(view, family, width) if batches_of(family) >= FEWEST_SIZES else []
        if curves:
            lines += [*([Text()] if lines else []), *curves]
        else:
            bars += family
    found = _bars(view, bars, width)
    return [*lines, *([Text()] if lines and found else []), *found]


# ---------------------------------------------------------------- bars


def _bars(view: View, groups: Sequence[Group], width: int) -> list[Text]:
    """A bar an arm, to one scale for each network; longer is faster."""
    timed = [(group, arm) for group in groups for arm in group.arms if arm.per_s]
    if not FEWEST_BARS <= len(timed) <= MOST_BARS:
        return []
    label_width = min(WIDEST_LABEL, max(cell_len(view.label(arm)) for _, arm in timed))
    values = {id(arm): _value(arm) for _, arm in timed}
    longest = width - label_width - max(map(cell_len, values.values())) - 3
    if longest < 10:
        return []
    rates = grouped(((arm.case.network, arm.unit), arm.per_s or 0.0) for _, arm in timed)
    lines: list[Text] = []
    for title, members in groupby(timed, key=lambda pair: pair[0].title):
        if title:
            lines.append(Text(title, "bold"))
        for _, arm in members:
            label = Text(view.label(arm), _style(view, arm))
            label.truncate(label_width, overflow="ellipsis", pad=True)
            fastest = max(rates[arm.case.network, arm.unit])
            length = max(1, round(longest * ((arm.per_s or 0.0) / fastest)))
            bar = Text(BAR * length, _style(view, arm))
            lines.append(Text.assemble(label, "  ", bar, f" {values[id(arm)]}", no_wrap=True))
    return [Text("longer is faster", "dim"), *lines]


def _value(arm: Training) -> str:
    steps = arm.steps
    half = fmt.half_interval(steps.median_s, steps.ci95_s) if steps else ""
    text = f"{fmt.throughput(arm.per_s or 0.0)} {fmt.clean(arm.unit)}/s"
    return text + f" ±{half}" * bool(half) + ", not converged" * (arm.converged is False)


def _style(view: View, arm: Training) -> str:
    if arm.converged is False:
        return "red"
    if view.is_baseline(arm):
        return "dim"
    return "" if shows_no_difference(arm, view.compared) else ASKED_STYLES[0]


# ---------------------------------------------------------------- curves


def _curves(view: View, family: Sequence[Group], width: int) -> list[Text]:
    """Throughput against batch, both logarithmic; empty when the markers do not suffice."""
    series = _series(view, family)
    if series is None:
        return []
    rates = [y for curve in series for _, y in curve.points]
    ticks = [(tick, fmt.throughput(tick)) for tick in _ticks(min(rates), max(rates))]
    label_width = max(len("batch"), *(len(text) for _, text in ticks))
    canvas, hidden = draw(series, {}, width, label_width)
    sizes = sorted({x for curve in series for x, _ in curve.points})
    case, unit = family[0].case, fmt.clean(family[0].arms[0].unit)
    title = f"{fmt.clean(case.network)}: {unit}/s by batch; {READING}"
    return [
        Text(title, overflow="ellipsis"),
        *canvas.lines(ticks),
        Text(" " * label_width + " └" + RULE * canvas.width),
        canvas.under("batch", [(size, f"{size:.0f}") for size in sizes]),
        *legend(series, hidden, width),
    ]


def _series(view: View, family: Sequence[Group]) -> list[Series] | None:
    asked, baseline = list(ASKED_MARKERS), list(BASELINE_MARKERS)
    found: list[Series] = []
    for label, arms in view.curves(family).items():
        points = [(float(arm.case.batch), arm.per_s) for arm in arms if arm.per_s]
        if not points:
            continue
        is_baseline = view.is_baseline(arms[0])
        markers = baseline if is_baseline else asked
        if not markers:
            return None
        used = len(ASKED_MARKERS) - len(asked)
        style = "dim" if is_baseline else ASKED_STYLES[used % len(ASKED_STYLES)]
        lost = any(arm.converged is False for arm in arms)
        name = f"{label} (not converged)" if lost else label
        found.append(Series(name, markers.pop(0), style, sorted(points)))
    return found


def _ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, ...; the ends themselves where fewer than two of those lie between."""
    ticks = log_ticks(low / 1.1, high * 1.05)
    return ticks if len(ticks) > 1 else sorted({low, high})
