"""Comparisons as JUnit XML, which continuous-integration servers read.

One <testsuite> a run and one <testcase> a case. A verdict that the user fails on is a <failure>;
another "cannot tell" is <skipped>.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from microbench import fmt
from microbench.report.comparison import case_name, threshold
from microbench.results.comparison import CompareRow, Comparison, failing

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
    parts = [
        f"A / B {row.ratio:.3f}" if row.ratio is not None else "",
        f"threshold {threshold(row)}" if row.threshold_pct is not None else "",
        fmt.clean(row.reason),
        fmt.clean(row.note) if row.note != row.reason else "",
    ]
    return f"{row.verdict}: {', '.join(part for part in parts if part)}"
