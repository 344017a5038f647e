"""A run as Markdown, for READMEs and issues, and as CSV; and the tables of the documentation."""

from __future__ import annotations

from kernels import is_library
from microbench import fmt
from microbench.payoff import Payoff, payoffs
from microbench.report.arms import arms_of
from microbench.report.layers_table import PASSES, Layer, layers_of, layers_table
from microbench.report.run_table import plain_table
from microbench.report.table import Column, Records, Row, Table, html, markdown, records, write_csv
from microbench.results.kinds import reports
from microbench.results.types import NetworkUse, Run


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


def to_html(run: Run) -> str:
    """The tables of a run as HTML elements, for notebooks and pages."""
    tables = [html(plain_table(run))] if run.results or not run.others else []
    return "\n".join(tables)


def payoff_table(run: Run, precision: str) -> str:
    """For each setting: from which size the precision pays off, and how much at each end."""
    columns: list[Column[Payoff]] = [
        Column("", lambda payoff: payoff.subject),
        Column("faster than", lambda payoff: payoff.baseline),
        Column("from", _start, right=True),
        Column("there", _at_start, right=True),
        Column("at most", _at_best, right=True),
        Column("below it", _below),
    ]
    return markdown(Table(columns, [Row(payoff) for payoff in payoffs(run, precision)]))


def _start(payoff: Payoff) -> str:
    rows = payoff.rows[payoff.start :]
    return fmt.size(rows[0][0].case) if rows else "nowhere"


def _at_start(payoff: Payoff) -> str:
    rows = payoff.rows[payoff.start :]
    return fmt.interval(rows[0][1]) if rows else ""


def _at_best(payoff: Payoff) -> str:
    result, ratio = max(payoff.rows, key=lambda row: row[1].ratio)
    return f"{fmt.interval(ratio)} at {fmt.size(result.case)}"


def _below(payoff: Payoff) -> str:
    if payoff.start == len(payoff.rows):
        return ""
    below = [f"{fmt.size(r.case)}: {fmt.short_ratio(q)}" for r, q in payoff.rows[: payoff.start]]
    return ", ".join(below[-3:])


def rival_table(run: Run, network: NetworkUse) -> str:
    """Each convolution of the network: our kernels against the library, by pass.

    Time of the library over time of ours, in the precision asked for.
    """
    precision = arms_of(run).asked[0]
    ratios = {
        (r.case.group, rival): ratio
        for r in run.results
        if r.case.precision_name == precision and not is_library(r.case)
        for rival, ratio in r.vs_backend.items()
    }

    def cell(layer: Layer, which: str) -> str:
        use = layer.uses.get(which)
        found = ratios.get((use.group, "cudnn")) if use else None
        return fmt.interval(found) if found else ""

    def pass_column(which: str) -> Column[Layer]:
        return Column(which, lambda layer: cell(layer, which), right=True)

    compared = [layer for layer in layers_of(run, network) if any(cell(layer, p) for p in PASSES)]
    columns = [
        Column[Layer]("layer", lambda layer: layer.label.replace(">", "→")),
        *map(pass_column, PASSES),
    ]
    return markdown(Table(columns, [Row(layer) for layer in compared]))
