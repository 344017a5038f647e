"""The table of a run: one row a result, grouped by size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from microbench import fmt
from microbench.report.arms import Arms, arms_of, groups_of, rate_unit, varying
from microbench.report.grid import DIM, Column, Grid, Row
from microbench.results.types import Result, Run

WIDEST_SIZE = 11  # beyond it a size stands on a line of its own, over its rows
SENTENCE = {"skipped": "skipped", "failed": "FAILED"}


@dataclass(frozen=True)
class RunTable:
    """Lines ready to print, columns left out, and results whose reason did not fit its row."""

    lines: list[Text]
    left_out: list[str]
    cut: list[Result]


def run_table(run: Run, width: int) -> RunTable:
    """The table, no wider than `width`."""
    arms, vary = arms_of(run), varying(run)
    groups = groups_of(run)
    titles = [_title(fmt.size(group[0].case), group[0], vary) for group in groups]
    heading = any(cell_len(title) > WIDEST_SIZE for title in titles)
    if heading:
        titles = [_title(fmt.long_size(group[0].case), group[0], vary) for group in groups]
    grid = Grid(_columns(run, arms, heading))
    unit = rate_unit(run.results)
    several = any(len(group) > 1 for group in groups)
    for title, group in zip(titles, groups, strict=True):
        if grid.rows and (several or heading):
            grid.rows.append(None)
        if heading:
            grid.rows.append(title)
        for place, result in enumerate(group):
            first = [] if heading else ["" if place else title]
            grid.rows.append(_row(result, first, arms, unit))
    lines, left_out = grid.lines(width)
    rows = [row for row in grid.rows if isinstance(row, Row)]
    results = [result for group in groups for result in group]
    cut = [
        result
        for row, result in zip(rows, results, strict=True)
        if row.sentence and cell_len(row.sentence) > grid.space_for_sentence(row, width)
    ]
    return RunTable(lines, left_out, cut)


def _title(size: str, result: Result, vary: tuple[bool, bool]) -> str:
    """The size, with the layout and the data where these vary."""
    case = result.case
    parts = [text for text, varies in zip((case.layout, case.data), vary, strict=True) if varies]
    return " ".join([size, *map(fmt.clean, parts)])


def _columns(run: Run, arms: Arms, heading: bool) -> list[Column]:
    first = [] if heading else [Column("size", right=True, bold=True)]
    speedups = [
        Column(f"x faster\nthan {fmt.clean(b)}", right=True, drop=i)
        for i, b in enumerate(arms.baselines)
    ]
    return [
        *first,
        Column("precision"),
        Column("back end"),
        Column("time", right=True),
        Column("±", right=True, drop=8),
        Column(rate_unit(run.results).name, right=True),
        Column("% of\nceiling", right=True, drop=6),
        *speedups,
        Column("rel.\nerror", right=True, drop=9),
        Column("limited\nby", drop=7),
    ]


def _row(result: Result, first: list[str], arms: Arms, unit: fmt.Unit) -> Row:
    case, style = result.case, DIM if arms.is_baseline(result) else ""
    cells = [*first, fmt.clean(case.precision_name), fmt.clean(case.backend)]
    measurement = result.measurement
    if result.status != "ok" or measurement is None:
        label = SENTENCE.get(result.status, "not measured")
        reason = fmt.clean(result.reason or "no reason given")
        style = "red" if result.status == "failed" else DIM
        return Row(cells, f"{label}: {reason}", style)
    cells += [
        fmt.duration(measurement.median_s),
        fmt.half_interval(measurement.median_s, measurement.ci95_s),
        unit.text(result.flop_per_s or 0.0),
        fmt.per_cent(result.ceiling_pct),
        *_speedups(result, arms.baselines),
        fmt.error(result.total_error),
        fmt.clean(result.bound or ""),
    ]
    return Row(cells, style=style)


def _speedups(result: Result, baselines: Sequence[str]) -> list[str]:
    """A cell for each baseline. A baseline is compared with those before it only: the rest would
    repeat the same ratios upside down."""
    cells: list[str] = []
    own = False
    for baseline in baselines:
        found = result.speedup.get(baseline)
        own = own or result.case.precision_name == baseline
        if result.case.precision_name == baseline and found is None:
            cells.append("base")
        else:
            cells.append(fmt.ratio(found) if found and not own else "-")
    return cells
