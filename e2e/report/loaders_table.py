"""The table of loaders that were measured alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text

from e2e.results.loader_types import LoadCase, Loading
from microbench import fmt
from microbench.report.grid import DIM, Column, Grid, Row
from microbench.results.types import Run

TITLE = "Loaders alone"


class Telling(NamedTuple):
    """Which settings tell rows from one another, and so have a column."""

    files: bool
    batch: bool
    ahead: bool


def telling_of(loadings: Sequence[Loading]) -> Telling:
    """What is not the same, and as usual, in all rows of a table."""
    cases = [loading.case for loading in loadings]
    return Telling(
        files=any(case.cold for case in cases),
        batch=len({case.batch for case in cases}) > 1,
        ahead=any(case.prefetch for case in cases),
    )


def ahead(case: LoadCase) -> str:
    """How many batches each worker is ahead."""
    return str(case.prefetch or "usual")


SENTENCE = {"skipped": "skipped", "failed": "FAILED"}


def loaders_table(run: Run, width: int) -> list[Text]:
    """One row a loader and number of workers, no wider than `width`; nothing without any."""
    if not run.of(Loading):
        return []
    grid = Grid(
        [
            Column("loader"), Column("files", drop=6), Column("batch", right=True, drop=7),
            Column("workers", right=True), Column("ahead", right=True, drop=8),
            Column("img/s", right=True), Column("±", right=True, drop=3),
            Column("img/s\na core", right=True, drop=2), Column("MB/s\nread", right=True, drop=4),
            Column("first\nbatch", right=True, drop=5),
        ]
    )  # fmt: skip
    telling = telling_of(run.of(Loading))
    for loading in run.of(Loading):
        row = _row(loading, telling)
        if row.sentence and row in grid.rows:
            continue  # it lacks the same with any number of workers
        grid.rows.append(row)
    lines, _ = grid.lines(width)
    cut = [row for row in grid.rows if isinstance(row, Row) and _is_cut(row, grid, width)]
    in_full = [Text(f"{row.cells[0]} {row.sentence}", row.style) for row in cut]
    return [*lines, *in_full, *(Text(line, "dim") for line in notes(run.of(Loading)))]


def _is_cut(row: Row, grid: Grid, width: int) -> bool:
    """Whether a reason has no room in the row."""
    return cell_len(row.sentence) > grid.space_for_sentence(row, width) if row.sentence else False


def _row(loading: Loading, telling: Telling) -> Row:
    case = loading.case
    name, files = fmt.clean(case.loader), ("cold" if case.cold else "warm") * telling.files
    if loading.per_s is None:
        reason = fmt.clean(loading.reason or "")
        style = "red" if loading.status == "failed" else DIM
        return Row(
            [name, files], f"{SENTENCE.get(loading.status, 'not measured')}: {reason}", style
        )
    read = loading.bytes_per_s
    interval = loading.ci95_per_s
    return Row(
        [
            name,
            files,
            str(case.batch) if telling.batch else "",
            str(case.workers),
            ahead(case) if telling.ahead else "",
            fmt.throughput(loading.per_s),
            fmt.half_interval(loading.per_s, interval),
            fmt.throughput(loading.per_s_per_core) if loading.per_s_per_core else "",
            fmt.throughput(read / 1e6) if read is not None else "",
            fmt.duration(loading.first_s) if loading.first_s is not None else "",
        ]
    )


def notes(loadings: Sequence[Loading]) -> list[str]:
    """How to read the table, and what all of it shares."""
    cases = [loading.case for loading in loadings]
    parts = [
        f"batches of {fmt.listed([str(batch) for batch in sorted({c.batch for c in cases})])}, "
        f"{fmt.listed(sorted({fmt.clean(c.input) for c in cases}))}, "
        f"{fmt.listed(sorted({fmt.clean(c.data) for c in cases}))} data{_cpus(cases)}",
        "a core: by the processor time of the workers and of the process that takes the batches",
        *["ahead: batches that each worker is ahead"] * telling_of(loadings).ahead,
    ]
    return ["; ".join(parts)]


def _cpus(cases: Sequence[LoadCase]) -> str:
    limited = {case.cpus for case in cases if case.cpus}
    return f", on {fmt.count(max(limited), 'core')}" if limited else ""
