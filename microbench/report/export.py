"""A run as Markdown, for READMEs and issues, as HTML tables for notebooks, and as CSV."""

from __future__ import annotations

from html import escape

from microbench.report.layers_table import layers_table
from microbench.report.run_table import plain_table
from microbench.report.table import (
    Part,
    Records,
    html,
    markdown,
    plain_markdown,
    records,
    write_csv,
)
from microbench.results.kinds import reports
from microbench.results.types import Run


def parts(run: Run) -> list[Part]:
    """The run's tables with their titles.

    One row per result, in the order measured, with the reason of those skipped. A network's layers,
    trainings and loaders have tables of their own.
    """
    found = [Part(table=plain_table(run))] if run.results or not run.others else []
    if run.results and run.network:
        found.append(Part(table=layers_table(run, run.network)))
    found += [part for report in reports(run) for part in report.parts(run)]
    return [part for part in found if part.table is None or part.table.rows]


def to_markdown(run: Run) -> str:
    """The run's tables as Markdown."""
    return plain_markdown("\n".join(map(_markdown_part, parts(run))))


def _markdown_part(part: Part) -> str:
    said = "".join(f"\n{sentence}\n" for sentence in part.below)
    shown = [f"{part.title}\n"] if part.title else []
    shown += [markdown(part.table)] if part.table else []
    return "\n".join(shown) + said


def to_html(run: Run) -> str:
    """The run's tables as HTML elements, for notebooks. All text is escaped."""
    return "\n".join(map(_html_part, parts(run)))


def _html_part(part: Part) -> str:
    title = f"<p><b>{escape(part.title)}</b></p>" if part.title else ""
    table = html(part.table) if part.table else ""
    return title + table + "".join(f"<p>{escape(sentence)}</p>" for sentence in part.below)


def to_csv(run: Run) -> str:
    """One row per result.

    Names of columns have the unit and do not change; an unknown value is empty. A run with several
    kinds of results has the columns of all of them.
    """
    found: list[Records] = []
    if run.results or not run.others:
        found.append(records(plain_table(run)))
    for report in reports(run):
        names, rows = report.csv(run)
        found.append((list(names), rows))
    return write_csv(found)
