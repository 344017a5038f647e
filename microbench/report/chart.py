"""The chart of a run: rate against size, the ceilings, and the speed-up under each size."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from rich.cells import cell_len
from rich.text import Text

from kernels import OPS
from microbench import fmt
from microbench.break_even import subject_of
from microbench.report.arms import (
    Arms,
    arms_of,
    groups_of,
    limits_of,
    rate_unit,
    representative,
    varying,
)
from microbench.report.canvas import RULE, Canvas, log_ticks
from microbench.results.types import Result, Run

HEIGHT = 17
FEWEST_SIZES = 3
FEWEST_COLUMNS = 50
MOST_SPEEDUP_LINES = 6
ASKED_MARKERS = "●▲■◆★♥♣♠"
BASELINE_MARKERS = "○△□◇"
ASKED_STYLES = ("bold green", "bold cyan", "bold magenta", "bold yellow")
CEILINGS = {"datasheet": "dense peak of the datasheet", "measured": "largest GEMM measured"}

READING = "log scale: the vertical gap between two curves is a speed-up"

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """One curve. `points` are (size, FLOP/s), by size."""

    label: str
    marker: str
    style: str
    points: Points


def chart(run: Run, width: int) -> list[Text]:
    """The lines of the chart, no wider than `width`; none when it would show nothing.

    Logarithmic both ways, so that the vertical distance between two curves is a speed-up.
    """
    run, subject = _one_subject(run)
    results = [r for r in run.results if r.measurement and r.flop_per_s]
    sizes = {fmt.size(r.case) for r in results}
    if len(sizes) < FEWEST_SIZES or width < FEWEST_COLUMNS:
        return []
    if not all(_along(r) for r in results):
        return [Text("No chart: a chart needs sizes that are a single number.", "dim")]
    arms = arms_of(run)
    axis = OPS[results[0].case.op].axis_name
    series = _series(run, results, arms)
    if series is None:
        return [Text("No chart: too many curves. Measure fewer precisions or back ends.", "dim")]
    speedups, unit = _speedups(run, arms), rate_unit(results)
    label_width = max(6, len(axis), *map(len, speedups))
    canvas, hidden = draw(series, _levels(run, results, unit), width, label_width)
    low, high = (y / unit.per_s for y in canvas.y_range)
    ticks = log_ticks(low, high)
    if len(ticks) < 2:
        rates = [y for curve in series for _, y in curve.points]
        ticks = [float(f"{y / unit.per_s:.3g}") for y in (min(rates), max(rates))]
    return [
        Text(f"{subject}{unit.name} by {axis}; {READING}", overflow="ellipsis"),
        *canvas.lines([(tick * unit.per_s, f"{tick:g}") for tick in ticks]),
        Text(" " * label_width + " └" + RULE * canvas.width),
        canvas.under(
            axis,
            [(size, f"{size:.0f}") for size in sorted({x for c in series for x, _ in c.points})],
        ),
        *(canvas.under(label, values) for label, values in speedups.items()),
        *legend(series, hidden, width),
        *_key(run, arms, list(speedups)),
    ]


def _one_subject(run: Run) -> tuple[Run, str]:
    """The run cut to its first setting, and what that is; gemm keeps all, a curve for each."""
    subjects = {} if not run.results or run.results[0].case.op == "gemm" else {
        subject_of(r, run): None for r in run.results
    }  # fmt: skip
    if len(subjects) < 2:
        return run, ""
    first = next(iter(subjects))
    return replace(
        run, results=tuple(r for r in run.results if subject_of(r, run) == first)
    ), f"{fmt.clean(first)}: "


def _along(result: Result) -> int | None:
    """The result's place on the axis of sizes; None where its size is not one number."""
    return OPS[result.case.op].axis(result.case)


def _series(run: Run, results: list[Result], arms: Arms) -> list[Series] | None:
    """A curve for each precision and back end; None when the markers do not suffice."""
    with_layout, _ = varying(run)
    curves: dict[str, list[Result]] = {}
    for result in results:
        case = result.case
        label = f"{case.precision_name} {case.backend}" + f" {case.layout}" * with_layout
        curves.setdefault(fmt.clean(label), []).append(result)
    asked, baseline = list(ASKED_MARKERS), list(BASELINE_MARKERS)
    found: list[Series] = []
    for label, curve in curves.items():
        markers = baseline if arms.is_baseline(curve[0]) else asked
        if not markers:
            return None
        used = len(ASKED_MARKERS) - len(asked)
        style = "dim" if markers is baseline else ASKED_STYLES[used % len(ASKED_STYLES)]
        points = {float(_along(r) or 1): r.flop_per_s or 0.0 for r in curve}
        found.append(Series(label, markers.pop(0), style, sorted(points.items())))
    return found


def _levels(run: Run, results: list[Result], unit: fmt.Unit) -> dict[str, float]:
    """Label -> FLOP/s of the peaks of the precisions that were asked for, highest first."""
    names: dict[tuple[float, str], list[str]] = {}
    for ceiling in limits_of(run, results):
        key = ceiling.flop_per_s or 0.0, CEILINGS[ceiling.source]
        names.setdefault(key, []).append(str(ceiling.precision))
    return {
        fmt.clean(f"{', '.join(precisions)}: {word} {unit.text(flop_per_s)}"): flop_per_s
        for (flop_per_s, word), precisions in sorted(names.items(), reverse=True)
    }


def draw(
    series: list[Series], levels: dict[str, float], width: int, label_width: int
) -> tuple[Canvas, int]:
    """The canvas, and how many points are hidden under others."""
    xs = [x for curve in series for x, _ in curve.points]
    ys = [y for curve in series for _, y in curve.points] + list(levels.values())
    canvas = Canvas(
        width - label_width - 2,
        HEIGHT,
        (min(xs), max(xs)),
        (min(ys) / 1.1, max(ys) * 1.05),
        margin=max(3, len(series)),
        label_width=label_width,
    )
    columns = sorted({canvas.column(x) for x in xs})
    nearest = min(b - a for a, b in pairwise(columns))
    canvas.dodge = min(nearest, len(series)) - 1
    hidden = 0
    series = sorted(series, key=lambda curve: curve.marker in BASELINE_MARKERS)  # asked-for first
    for curve in series:
        hidden += canvas.points(curve.points, curve.marker, curve.style)
    for curve in series:
        canvas.trace(curve.points, curve.style)
    drawn: set[int] = set()
    for label, y in levels.items():
        if canvas.row(y) not in drawn and canvas.level(y, label, "dim"):
            drawn.add(canvas.row(y))
    return canvas, hidden


def _speedups(run: Run, arms: Arms) -> dict[str, list[tuple[float, str]]]:
    """Label -> (size, times faster), to write under the sizes, for the variant of the verdict."""
    lines: dict[str, list[tuple[float, str]]] = {}
    if any(varying(run)):  # several problems of one size
        return lines
    pairs = [(p, b) for p in arms.asked for b in arms.baselines if p != b]
    for precision, baseline in pairs[:MOST_SPEEDUP_LINES]:
        label = f"x {baseline}" if len(arms.asked) == 1 else f"{precision} x {baseline}"
        values: dict[float, str] = {}
        for group in groups_of(run):
            best = representative(group, [precision])
            ratio = best and best.speedup.get(baseline)
            if best and ratio:
                values[float(_along(best) or 1)] = fmt.short_ratio(ratio)
        if values:
            lines[fmt.clean(label)] = sorted(values.items())
    return lines


def legend(series: list[Series], hidden: int, width: int) -> list[Text]:
    """The markers and their meaning; also how many are hidden under others."""
    lines = [Text()]
    for curve in series:
        if lines[-1] and cell_len(lines[-1].plain) + cell_len(curve.label) + 5 > width:
            lines.append(Text())
        lines[-1].append("   " if lines[-1] else "")
        lines[-1].append(f"{curve.marker} ", curve.style).append(curve.label)
    if hidden:
        lines.append(Text("where markers overlap, only the first is drawn", "dim"))
    return lines


def _key(run: Run, arms: Arms, labels: list[str]) -> list[Text]:
    """What the speed-ups under the sizes are."""
    best = [r for group in groups_of(run) if (r := representative(group, arms.asked))]
    backends = list(dict.fromkeys(fmt.clean(r.case.backend) for r in best))
    if not labels or not backends:
        return []
    one = len(arms.asked) == 1
    of = f"{fmt.clean(arms.asked[0])} over each baseline" if one else "the first over the second"
    return [Text(f"{', '.join(labels)}: speed-up of {of} ({fmt.listed(backends)})")]
