"""Two runs compared, as a person reads it. Everything is said of B, measured against A."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from kernels.case import Case
from microbench import fmt
from microbench.report.screen import WIDTH
from microbench.report.table import DIM, Column, Row, Table, screen
from microbench.results.comparison import VERDICTS, CompareRow, Comparison
from microbench.results.kinds import KINDS, Report
from microbench.results.types import Ratio
from microbench.results.values import AnyCase

MOST_SAME_ROWS = 6
MOST_NAMED = 5
ORDER = ("slower", "faster", "cannot tell", "same")
_LOOKS = {
    "slower": ("- slower", "red"),
    "faster": ("+ faster", "green"),
    "cannot tell": ("? cannot tell", "yellow"),
    "same": ("= same", DIM),
}


def print_comparison(comparison: Comparison, console: Console) -> None:
    """What differs between the runs, the rows that matter, and the counts."""
    width = min(console.width, WIDTH)

    def say(line: Text) -> None:
        """Print a line, folded to the width."""
        console.print(line, width=width, overflow="fold")

    if comparison.differences:
        say(Text("The runs differ (A | B):", "bold"))
        for difference in comparison.differences:
            say(Text(f"  {fmt.clean(difference)}"))
        console.print()
    shown, hidden = _chosen(comparison.rows)
    if shown:
        for line in screen(_table(shown), width).lines:
            say(line)
    for note, cases in _notes(shown).items():
        say(Text(f"  {fmt.listed(cases)}: {note}"))
    if hidden:
        say(Text(_same(hidden), DIM))
    console.print()
    for name, cases in (("A", comparison.only_a), ("B", comparison.only_b)):
        for line in _one_side(name, cases):
            say(Text(line))
    say(Text(summary(comparison), "bold"))


def summary(comparison: Comparison) -> str:
    """The counts: "B against A, 24 cases: 1 slower, 23 same." """
    counts = [(comparison.count(verdict), verdict) for verdict in ORDER]
    parts = [f"{count} {verdict}" for count, verdict in counts if count]
    cases = fmt.count(len(comparison.rows), "case")
    return f"B against A, {cases}: {', '.join(parts) or 'nothing to compare'}."


def _one_side(name: str, cases: Sequence[AnyCase]) -> Iterator[str]:
    """The cases that one run alone has: a line each up to MOST_NAMED, and how many more."""
    for case in cases[:MOST_NAMED]:
        yield f"only in {name}: {_name(case)}"
    if len(cases) > MOST_NAMED:
        yield f"only in {name}: {len(cases) - MOST_NAMED} more"


def _chosen(rows: Sequence[CompareRow]) -> tuple[list[CompareRow], list[CompareRow]]:
    """Rows to show, slower ones first, and the same ones that are too many to show."""
    assert set(ORDER) == set(VERDICTS)
    ordered = sorted(rows, key=lambda row: ORDER.index(row.verdict))
    same = [row for row in ordered if row.verdict == "same"]
    if len(same) <= MOST_SAME_ROWS:
        return ordered, []
    return [row for row in ordered if row.verdict != "same"], same


def _table(rows: Sequence[CompareRow]) -> Table[CompareRow]:
    ops = {row.case.op for row in rows}
    kernels, kinds = ops - KINDS.keys(), ops & KINDS.keys()
    first = [KINDS[op].report.FIRST[op] for op in kinds]
    columns: list[Column[CompareRow]] = [
        Column("B is", lambda row: _LOOKS[row.verdict][0]),
        Column("precision" if kernels or len(first) > 1 else first[0],
               lambda row: _what(row.case)[0]),
        Column("what" if kinds else "size", lambda row: _what(row.case)[1], right=True),
        Column("backend" if kernels else "options", lambda row: _what(row.case)[2], drop=1),
        Column("time A", lambda row: _time(row.a_s), right=True, drop=2),
        Column("time B", lambda row: _time(row.b_s), right=True, drop=2),
        Column("A / B", _ratio, right=True),
    ]  # fmt: skip
    return Table(columns, [Row(row, style=_LOOKS[row.verdict][1]) for row in rows])


def _time(seconds: float | None) -> str:
    return fmt.duration(seconds) if seconds is not None else "-"


def _what(case: AnyCase) -> tuple[str, str, str]:
    """Precision, problem and who computes it; of other kinds what their report says."""
    if isinstance(case, Case):
        return fmt.clean(case.precision_name), fmt.size(case), fmt.clean(case.backend)
    return _report(case).cells(case)


def _ratio(row: CompareRow) -> str:
    if row.ratio is None:
        return "-"
    ratio = Ratio(row.ratio, row.ci95)
    return (
        fmt.interval(ratio)
        if isinstance(row.case, Case)
        else _report(row.case).ratio(row.case.op, ratio)
    )


def _report(case: AnyCase) -> Report:
    return KINDS[case.op].report


def _name(case: AnyCase) -> str:
    return fmt.name(case) if isinstance(case, Case) else " ".join(_what(case))


def _notes(rows: Sequence[CompareRow]) -> dict[str, list[str]]:
    """Note -> the cases it is about."""
    notes: dict[str, list[str]] = {}
    for row in rows:
        if row.note:
            notes.setdefault(fmt.clean(row.note), []).append(_name(row.case))
    return notes


def _same(rows: Sequence[CompareRow]) -> str:
    ratios = [row.ratio for row in rows if row.ratio is not None]
    text = f"= same: {fmt.count(len(rows), 'case')}"
    return text + (f", A / B from {min(ratios):.3f} to {max(ratios):.3f}" if ratios else "")
