"""What a chart of rates shows, as rows: points, ceilings and labels, panel by panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kernels import OPS
from microbench import fmt
from microbench.errors import UserError
from microbench.report.arms import arms_of, rate_unit
from microbench.report.drawing_style import in_words, ordered, varying
from microbench.results.types import Ceiling, Json, Result, Run

MOST_PANELS = 24
MOST_ARMS = 8  # in a panel: with more, each back end gets its own
LARGE, SMALL = (620, 420), (400, 310)  # width and height of one panel, of each of several
LABEL_GAP = 13  # pixels between the lines of the labels
HEADROOM, FOOTROOM = 1.7, 1.35  # times the highest and under the lowest rate
CEILINGS = {"datasheet": "peak", "measured": "largest"}


@dataclass
class Panel:
    """One pair of axes: what is drawn in it, a dictionary a mark. Rates are in the unit of all."""

    title: str
    points: list[Json] = field(default_factory=list[Json])
    labels: list[Json] = field(default_factory=list[Json])
    missing: int = 0


@dataclass(frozen=True)
class Lines:
    """All panels, and what they share."""

    unit: str
    axis: str
    panels: Mapping[tuple[str, str], Panel]
    ceilings: Sequence[Json]
    markers: Sequence[str]  # the back ends that share panels
    precisions: Sequence[str]
    y_range: tuple[float, float]
    size: tuple[int, int]

    @property
    def sizes(self) -> list[int]:
        """Every size that some panel has, smallest first."""
        return sorted({p["size"] for panel in self.panels.values() for p in panel.points})


def drawable(run: Run) -> list[Result]:
    """The results with a rate and a size that is one number."""
    return [r for r in run.results if r.flop_per_s and OPS[r.case.op].axis(r.case)]


def line_rows(run: Run, results: Sequence[Result]) -> Lines:
    """What stands where: points, ceilings and labels of these results, panel by panel."""
    unit = rate_unit(results)
    panels = _panels(results, unit)
    points = [p for panel in panels.values() for p in panel.points]
    limits = _limits(run, results)
    rates = [p[name] for p in points for name in ("low", "high")]
    rates += [_flop_per_s(c) / unit.per_s for c in limits]
    y_range = (min(rates) / FOOTROOM, max(rates) * HEADROOM)
    size = LARGE if len(panels) == 1 else SMALL
    gap = (y_range[1] / y_range[0]) ** (LABEL_GAP / size[1])
    for panel in panels.values():
        panel.missing = _break(panel.points)
        panel.labels = _labels_of(panel.points, gap, y_range[0])
    return Lines(
        unit.name, OPS[results[0].case.op].axis_name, panels,
        _ceiling_rows(limits, unit, gap, y_range[0]),
        ordered(p["marker"] for p in points), ordered(p["precision"] for p in points),
        y_range, size,
    )  # fmt: skip


def _panels(results: Sequence[Result], unit: fmt.Unit) -> dict[tuple[str, str], Panel]:
    """The points in a grid: down it the first setting that varies, across it the others."""
    names = varying(results)
    down, across = (names[:1], names[1:]) if len(names) > 1 else ([], names)
    backends = {r.case.backend for r in results}
    arms = {(r.case.precision_name, r.case.backend) for r in results}
    apart = len(backends) > 1 and len(arms) > MOST_ARMS
    placed: list[tuple[str, str, Json]] = []
    for result in sorted(results, key=lambda r: OPS[r.case.op].axis(r.case) or 0):
        point = _point(result, unit, len(backends) > 1 and not apart)
        column = [in_words(result.case, across), point["backend"] if apart else ""]
        row = in_words(result.case, down)
        placed.append((row, ", ".join(part for part in column if part), point))
    rows = ordered(in_words(r.case, down) for r in results)
    columns = ordered(column for _, column, _ in placed)
    if len(rows) * len(columns) > MOST_PANELS:
        raise UserError(
            f"a chart of {len(rows) * len(columns)} settings is too large ({MOST_PANELS} at most); "
            "draw a run of fewer settings"
        )
    panels = {(r, c): Panel(", ".join(part for part in (r, c) if part))
              for r in rows for c in columns}  # fmt: skip
    for row, column, point in placed:
        panels[row, column].points.append(point)
    return panels


def _point(result: Result, unit: fmt.Unit, with_backend: bool) -> Json:
    case, seconds = result.case, result.median_s or 1.0
    rate = (result.flop_per_s or 0.0) / unit.per_s
    interval = result.measurement.ci95_s if result.measurement else None
    fast, slow = interval if interval and interval[0] > 0 else (seconds, seconds)
    precision, backend = fmt.clean(case.precision_name), fmt.clean(case.backend)
    return {
        "size": OPS[case.op].axis(case),
        "rate": rate,
        "low": rate * seconds / slow,
        "high": rate * seconds / fast,
        "precision": precision,
        "backend": backend,
        "marker": backend if with_backend else "",
        "arm": f"{precision} {backend}" if with_backend else precision,
        "bound": fmt.clean(result.bound or ""),
    }


def _break(points: Sequence[Json]) -> int:
    """Number the unbroken segments of each curve of a panel; returns how many cases they miss."""
    sizes = sorted({p["size"] for p in points})
    missed = 0
    for arm in ordered(p["arm"] for p in points):
        there = {p["size"]: p for p in points if p["arm"] == arm}
        segment = 0
        for size in sizes:
            if size in there:
                there[size]["segment"] = f"{arm} {segment}"
            else:
                segment += 1
        missed += len(sizes) - len(there)
    return missed


def _limits(run: Run, results: Sequence[Result]) -> list[Ceiling]:
    """Ceilings of arithmetic of the precisions that were asked for and are drawn."""
    wanted = {r.case.precision_name for r in results} & set(arms_of(run).asked)
    return [
        c
        for c in run.ceilings
        if c.flop_per_s
        and c.precision in wanted
        and (c.name, c.source) in (("dense peak", "datasheet"), ("large GEMM", "measured"))
    ]


def _ceiling_rows(
    limits: Sequence[Ceiling], unit: fmt.Unit, gap: float, lowest: float
) -> list[Json]:
    """A rule a ceiling; ceilings of one source too close to be labelled apart share a label."""
    rows: list[Json] = []
    for source, what in CEILINGS.items():
        near: list[list[Ceiling]] = []
        for limit in sorted((c for c in limits if c.source == source), key=_flop_per_s):
            if near and _flop_per_s(limit) < _flop_per_s(near[-1][0]) * gap:
                near[-1].append(limit)
            else:
                near.append([limit])
        for group in near:
            rates = ordered(unit.text(_flop_per_s(c)) for c in (group[0], group[-1]))
            names = ", ".join(fmt.clean(c.precision) for c in group)
            rows += [{
                "rate": _flop_per_s(c) / unit.per_s,
                "precision": fmt.clean(c.precision),
                "text": f"{what} {'-'.join(rates)}: {names}" if c is group[-1] else "",
            } for c in group]  # fmt: skip
    labelled = [row for row in rows if row["text"]]
    places = _spread([row["rate"] for row in labelled], gap, lowest)
    for row, place in zip(labelled, places, strict=True):
        row["place"] = place
    return rows


def _flop_per_s(ceiling: Ceiling) -> float:
    return ceiling.flop_per_s or 0.0


def _labels_of(points: Sequence[Json], gap: float, lowest: float) -> list[Json]:
    """The name of each curve, to stand right of its last point."""
    last = {p["arm"]: p for p in points}
    places = _spread([p["rate"] for p in last.values()], gap, lowest)
    return [
        {"text": arm, "precision": p["precision"], "marker": p["marker"], "place": place}
        for (arm, p), place in zip(last.items(), places, strict=True)
    ]


def _spread(rates: Sequence[float], gap: float, lowest: float) -> list[float]:
    """The rates moved apart, first down and then up, until each is a factor `gap` from the next."""
    order = sorted(range(len(rates)), key=lambda i: -rates[i])
    placed = list(rates)
    for above, i in pairwise(order):
        placed[i] = min(placed[i], placed[above] / gap)
    floor = lowest
    for i in reversed(order):
        placed[i] = max(placed[i], floor)
        floor = placed[i] * gap
    return placed
