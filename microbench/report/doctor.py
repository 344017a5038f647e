"""The doctor's findings as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from microbench import fmt
from microbench.device.doctor.facts import Finding
from microbench.report.documents import Sheet
from microbench.report.screen import prose_width
from microbench.report.table import Column, Row
from microbench.report.table import Table as Cells

# Each level has a word and a sign, so that colour is only an addition.
_LOOKS = {
    "ok": ("  ok", "green"),
    "note": ("· note", "cyan"),
    "warning": ("! warning", "bold yellow"),
    "problem": ("✗ problem", "bold red"),
}


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print a line per finding, its remedy under it, and a sentence that sums up."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        look, style = _LOOKS.get(finding.level, (fmt.clean(finding.level), ""))
        what = Text(fmt.clean(finding.what))
        if finding.remedy and finding.level != "ok":
            what.append(f"\n→ {fmt.clean(finding.remedy)}", "italic")
        table.add_row(Text(look, style), Text(fmt.clean(finding.name), "bold"), what)
    width = prose_width(console)
    if findings:
        console.print(table, width=width)
        console.print()
    console.print(Text(summary(findings), "bold"), width=width, overflow="fold")


def findings_sheet(findings: Sequence[Finding]) -> Sheet:
    """The findings as a table, for a page."""
    columns: list[Column[Finding]] = [
        Column("level", lambda finding: finding.level, csv={"level": lambda f: f.level}),
        Column("check", lambda finding: fmt.clean(finding.name), csv={"check": lambda f: f.name}),
        Column("finding", lambda finding: fmt.clean(finding.what),
               csv={"finding": lambda f: f.what}),
        Column("what to do", _remedy, csv={"remedy": _remedy}),
    ]  # fmt: skip
    table = Cells(columns, [Row(finding) for finding in findings])
    return Sheet(table, table, summary(findings))


def _remedy(finding: Finding) -> str:
    return fmt.clean(finding.remedy) if finding.remedy and finding.level != "ok" else ""


def summary(findings: Sequence[Finding]) -> str:
    """What to do first."""
    problems = [fmt.clean(f.name) for f in findings if f.level == "problem"]
    cautions = [fmt.clean(f.name) for f in findings if f.level == "warning"]
    sentences: list[str] = []
    if problems:
        sentences.append(
            f"{fmt.count(len(problems), 'problem')} to fix before measuring "
            f"({', '.join(problems)}): results would be wrong or missing."
        )
    if cautions:
        sentences.append(
            f"{fmt.count(len(cautions), 'warning')} ({', '.join(cautions)}): measuring works, "
            "but results may be slower or noisier."
        )
    return " ".join(sentences) or "Ready to measure: no problems found."
