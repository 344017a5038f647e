"""A run as Markdown, for READMEs and issues, as HTML tables for notebooks, and as CSV.

Comparisons are also written as JUnit XML, which continuous-integration servers read: a <testsuite>
a run, a <testcase> a case. A verdict that the user fails on is a <failure>, another "cannot tell"
is <skipped>.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from xml.etree import ElementTree

from microbench import fmt
from microbench.report.comparison import case_name, threshold
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
from microbench.results.comparison import CompareRow, Comparison, failing
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


# ---------------------------------------------------------------- JUnit XML

CANNOT_TELL = "cannot tell"
DECLARATION = '<?xml version="1.0" encoding="utf-8"?>\n'


def junit(found: Mapping[str, Comparison], baseline: str, fail_on: Sequence[str]) -> str:
    """JUnit XML of comparisons by the name of their run; `fail_on` are the verdicts that fail."""
    root = ElementTree.Element("testsuites", name=f"compare with {fmt.clean(baseline)}")
    for name, comparison in found.items():
        _add_suite(root, fmt.clean(name), comparison, fail_on)
    ElementTree.indent(root)
    return DECLARATION + ElementTree.tostring(root, encoding="unicode")


def _add_suite(
    root: ElementTree.Element, name: str, comparison: Comparison, fail_on: Sequence[str]
) -> None:
    failures = len(failing(comparison, fail_on))
    skipped = 0 if CANNOT_TELL in fail_on else comparison.count(CANNOT_TELL)
    named = Counter(case_name(row.case) for row in comparison.rows)
    suite = ElementTree.SubElement(
        root, "testsuite", name=name, tests=str(len(comparison.rows)), failures=str(failures),
        errors="0", skipped=str(skipped),
    )  # fmt: skip
    for row in comparison.rows:
        short = case_name(row.case)
        title = short if named[short] == 1 else fmt.clean(row.key)
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"{name}.{row.case.op}", name=title
        )
        if row.verdict in fail_on:
            ElementTree.SubElement(case, "failure", type=row.verdict, message=_message(row))
        elif row.verdict == CANNOT_TELL:
            ElementTree.SubElement(case, "skipped", message=_message(row))


def _message(row: CompareRow) -> str:
    """ "slower: A / B 0.800, threshold 3.0 %, interval is beyond it"."""
    limit = threshold(row.threshold_pct, row.threshold_s)
    parts = [
        f"A / B {row.ratio:.3f}" if row.ratio is not None else "",
        f"threshold {limit}" if limit else "",
        fmt.clean(row.reason),
        fmt.clean(row.note) if row.note != row.reason else "",
    ]
    return f"{row.verdict}: {', '.join(part for part in parts if part)}"
