"""What the doctor found, problems first, each with its remedy."""

from __future__ import annotations

from collections.abc import Sequence

from microbench import fmt
from microbench.device.doctor import Finding
from microbench.report.parts import ANSWER, DO, Column, Line, Part, Report, Row

STYLES = {"problem": "bold red", "warning": "bold yellow", "note": "cyan", "ok": "green"}
MEANS = {
    "problem": "results would be wrong or missing",
    "warning": "results may be slower or noisier",
}


def report(findings: Sequence[Finding]) -> Report:
    """The report of a machine."""
    lines: list[Line] = []
    for level, meaning in MEANS.items():
        found = [finding for finding in findings if finding.level == level]
        if found:
            named = ", ".join(finding.name for finding in found)
            count = fmt.count(len(found), level)
            lines.append(Line(ANSWER, f"{count} ({named}): {meaning}"))
            lines += [Line(DO, f"{one.name}: {one.remedy}") for one in found if one.remedy]
    ordered = sorted(findings, key=lambda finding: [*STYLES].index(finding.level))
    rows = [
        Row({"level": one.level, "name": one.name, "what": "; ".join(filter(None, (
            one.what, one.remedy * (one.level not in MEANS))))}, style=STYLES[one.level])
        for one in ordered
    ]  # fmt: skip
    columns = [Column("level", "level"), Column("check", "name"), Column("found", "what")]
    return Report("doctor", lines or [Line(ANSWER, "Ready to measure: no problems found")],
                  [Part("", columns, rows)])  # fmt: skip
