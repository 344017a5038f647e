"""The table of loaders that were measured alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from operator import attrgetter

from rich.text import Text

from e2e.case import DATA_WORDS
from e2e.report.table import raw, raw_pair
from e2e.results.loader_types import OP, LoadCase, Loading
from microbench import fmt
from microbench.report.table import DIM, MISSING, Column, Row, Table, screen
from microbench.results.types import Run

TITLE = "Loaders alone"
SETTINGS = tuple(field.name for field in fields(LoadCase))


def loaders_table(run: Run) -> Table[Loading]:
    """One row per loader and number of workers; the reason where a loader did not run."""
    loadings = run.of(Loading)
    return Table(_columns([loading.case for loading in loadings]), [*map(_row, loadings)])


def _columns(cases: Sequence[LoadCase]) -> list[Column[Loading]]:
    """Settings that are the same, and as usual, in all rows have no column on the screen."""
    is_cold = ("warm", "cold")
    files, batch = any(case.cold for case in cases), len({case.batch for case in cases}) > 1
    return [
        Column(csv={"op": lambda _: OP, **raw("case", *SETTINGS)}),
        Column("loader", lambda one: fmt.clean(one.case.loader), key=True),
        Column("files", lambda one: is_cold[one.case.cold] if files else "", drop=6, key=True,
               markdown=lambda one: is_cold[one.case.cold]),
        Column("batch", (lambda one: str(one.case.batch)) if batch else None, right=True, drop=7),
        Column("workers", lambda one: str(one.case.workers), right=True),
        Column("prefetch",
               (lambda one: str(one.case.prefetch or "usual")) if _are_ahead(cases) else None,
               right=True, drop=8),
        Column(csv=raw("", "status", "reason")),
        Column("img/s", lambda one: _rate(one.per_s), right=True,
               csv=raw("", images_per_s="per_s")),
        Column("±", lambda one: fmt.half_interval(one.per_s or 0.0, one.ci95_per_s), right=True,
               drop=3, csv={
            **raw_pair("ci95_low_per_s", "ci95_high_per_s", attrgetter("ci95_per_s")),
            "samples": lambda one: len(one.blocks),
        }),
        Column("img/s\nper core", lambda one: _rate(one.per_s_per_core), right=True, drop=2,
               csv=raw("", images_per_s_per_core="per_s_per_core")),
        Column("MB/s\nread", lambda one: "" if one.bytes_per_s is None else (
                   fmt.throughput(one.bytes_per_s / 1e6)), right=True, drop=4,
               csv=raw("", read_bytes_per_s="bytes_per_s")),
        Column("first\nbatch",
               lambda one: "" if one.first_s is None else fmt.duration(one.first_s),
               right=True, drop=5, csv=raw("", "first_s")),
    ]  # fmt: skip


def _row(loading: Loading) -> Row[Loading]:
    if loading.per_s is not None:
        return Row(loading)
    reason = fmt.clean(loading.reason or "")
    style = "red" if loading.status == "failed" else DIM
    said = f"{MISSING.get(loading.status, 'not measured')}: {reason}"
    return Row(loading, said, style, f"{loading.status}: {reason}")


def _are_ahead(cases: Sequence[LoadCase]) -> bool:
    return any(case.prefetch for case in cases)


def _rate(per_s: float | None) -> str:
    return fmt.throughput(per_s) if per_s else ""


# ---------------------------------------------------------------- the screen


def loaders_lines(run: Run, width: int) -> list[Text]:
    """The table with its notes, at most `width` columns wide; empty without loaders."""
    if not run.of(Loading):
        return []
    table = loaders_table(run)
    table.rows = [*_once(table.items)]
    shown = screen(table, width)
    in_full = [
        Text(f"{fmt.clean(row.item.case.loader)} {row.sentence}", row.style)
        for row in map(_row, shown.cut)
    ]
    return [*shown.lines, *in_full, Text(_note([one.case for one in run.of(Loading)]), DIM)]


def _once(rows: Sequence[Row[Loading]]) -> Iterator[Row[Loading]]:
    """Without what says the same for another number of workers."""
    said: set[tuple[str, bool, str]] = set()
    for row in rows:
        words = row.item.case.loader, row.item.case.cold, row.sentence
        if words not in said:
            yield row
        if row.sentence:
            said.add(words)


def _note(cases: Sequence[LoadCase]) -> str:
    """How to read the table, and what all of it shares."""
    batches = [str(batch) for batch in sorted({case.batch for case in cases})]
    inputs = sorted({fmt.clean(case.input) for case in cases})
    data = sorted({fmt.clean(DATA_WORDS.get(case.data, case.data)) for case in cases})
    cores = max(case.cpus for case in cases)
    parts = [
        f"batches of {fmt.listed(batches)}, {fmt.listed(inputs)}, {fmt.listed(data)} data"
        + f", on {fmt.count(cores, 'core')}" * bool(cores),
        "per core: by the CPU time of the workers and of the process that takes the batches",
        *["prefetch: batches loaded ahead by each worker"] * _are_ahead(cases),
    ]
    return "; ".join(parts)
