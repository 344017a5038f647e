"""The doctor's findings as a person reads them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from microbench import fmt
from microbench.device.doctor import Finding
from microbench.report.screen import prose_width

# Each level has a word and a sign, so that colour is only an addition.
_LOOKS = {
    "ok": ("  ok", "green"),
    "note": ("· note", "cyan"),
    "warning": ("! warning", "bold yellow"),
    "problem": ("✗ problem", "bold red"),
}


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Print a sentence that sums up, then a line per finding, its remedy under it."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        what = Text(fmt.clean(finding.what))
        if finding.remedy:
            what.append(f"\n→ {fmt.clean(finding.remedy)}", "italic")
        look, style = _LOOKS[finding.level]
        table.add_row(Text(look, style), Text(finding.name, "bold"), what)
    width = prose_width(console)
    console.print(Text(summary(findings), "bold"), width=width, overflow="fold")
    console.print()
    console.print(table, width=width)


def summary(findings: Sequence[Finding]) -> str:
    """What to do first."""
    problems = [finding.name for finding in findings if finding.level == "problem"]
    cautions = [finding.name for finding in findings if finding.level == "warning"]
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
