"""A run as Markdown, for READMEs and issues, and as CSV."""

from __future__ import annotations

from microbench.report.layers_table import layers_table
from microbench.report.run_table import plain_table
from microbench.report.table import Records, markdown, records, write_csv
from microbench.results.kinds import reports
from microbench.results.types import Run


def to_markdown(run: Run) -> str:
    """One row a result, in the order measured; what was skipped says why. A network's layers,
    trainings and loaders are tables of their own.
    """
    tables = [markdown(plain_table(run))] if run.results or not run.others else []
    if run.results and run.network:
        tables.append(markdown(layers_table(run, run.network)))
    tables += [table for report in reports(run) for table in report.markdown(run)]
    return "\n".join(tables)


def to_csv(run: Run) -> str:
    """One row a result, every unit in its column's name, names that do not change; what is not
    known is empty. A run that holds several kinds of results has the columns of all.
    """
    parts: list[Records] = []
    if run.results or not run.others:
        parts.append(records(plain_table(run)))
    for report in reports(run):
        names, rows = report.csv(run)
        parts.append((list(names), rows))
    return write_csv(parts)
