"""The selftest's verdicts as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.text import Text

from microbench import fmt
from microbench.report.documents import Sheet
from microbench.report.table import Column, Row, Table
from microbench.results.fields import decode
from microbench.results.values import Json
from microbench.selftest.judge import NOT_APPLICABLE, TARGET_PCT, WRONG, passed, score
from microbench.selftest.plant import CONDITIONS, Absent


@dataclass(frozen=True)
class PlantRow:
    """A plant and its verdict: a row of the file, without its numbers."""

    name: str
    condition: str
    control: bool
    because: str
    expected: str
    named: str | None
    why: str
    verdict: str


@dataclass(frozen=True)
class _File:
    rows: tuple[PlantRow, ...]
    absent: tuple[Absent, ...] = ()


def sheet(data: Json) -> Sheet:
    """The evidence as a table; the short one has a line per condition. ValueError: invalid field.

    Notes say what was diagnosed wrong and what is not applicable.
    """
    found: _File = decode(_File, data, "")
    columns: list[Column[PlantRow]] = [
        Column("plant", lambda row: fmt.clean(row.name), csv={"name": lambda row: row.name}),
        Column(csv={"condition": lambda row: row.condition, "control": lambda row: row.control}),
        Column("expected", lambda row: fmt.clean(row.expected), drop=2,
               csv={"expected": lambda row: row.expected}),
        Column("named", lambda row: fmt.clean(row.named or ""),
               csv={"named": lambda row: row.named}),
        Column("", lambda row: fmt.clean(row.verdict), csv={"verdict": lambda row: row.verdict}),
        Column("why", lambda row: fmt.clean(row.why), drop=1, csv={"why": lambda row: row.why}),
    ]  # fmt: skip
    left = [(row.name, row.why) for row in found.rows if row.verdict == NOT_APPLICABLE]
    left += [(absent.condition, absent.reason) for absent in found.absent]
    return Sheet(
        Table(columns, [Row(row) for row in found.rows]),
        _conditions(found),
        _summary(found.rows),
        [
            *(_wrong(row) for row in found.rows if row.verdict == WRONG),
            *(Text(f"not applicable: {fmt.clean(name)}: {fmt.clean(why)}", "dim")
              for name, why in left),
        ],
    )  # fmt: skip


def _conditions(found: _File) -> Table[str]:
    def named(condition: str, control: bool) -> str:
        right, counted = score(
            r for r in found.rows if r.condition == condition and r.control is control
        )
        return f"{right} of {counted}" if counted else ""

    def left(condition: str) -> str:
        skipped = [r for r in found.rows if r.verdict == NOT_APPLICABLE]
        count = sum(item.condition == condition for item in (*skipped, *found.absent))
        return str(count or "")

    columns: list[Column[str]] = [
        Column("condition", lambda condition: condition),
        Column("correct", lambda condition: named(condition, False), right=True),
        Column("controls correct", lambda condition: named(condition, True), right=True),
        Column("not applicable", left, right=True),
    ]
    return Table(columns, [Row(condition) for condition in CONDITIONS])


def _wrong(row: PlantRow) -> Text:
    text = Text("✗ wrong ", "bold red")
    text.append(fmt.clean(row.name), "bold not red")
    text.append(
        f": expected {fmt.clean(row.expected)}, diagnosed {fmt.clean(row.named or 'nothing')} "
        f"({fmt.clean(row.why)}). Planted: {fmt.clean(row.because)}",
        "not bold not red",
    )
    return text


def _summary(rows: Iterable[PlantRow]) -> str:
    """ "41 of 42 diagnosed correctly (97.6 %, target 95 %)"."""
    rows = list(rows)
    right, counted = score(rows)
    if not counted:
        return "No case could be planted on this device: the diagnosis was not tested."
    share = f"{right} of {counted} diagnosed correctly ({100 * right / counted:.1f} %"
    verdict = "" if passed(rows) else ": the diagnosis fails its test on this device"
    return f"{share}, target {TARGET_PCT:g} %){verdict}."
