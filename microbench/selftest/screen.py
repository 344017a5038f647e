"""The selftest's verdicts as a person reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.text import Text

from microbench import fmt
from microbench.report.screen import WIDTH
from microbench.report.table import Column, Row, Table, screen
from microbench.selftest.judge import NOT_APPLICABLE, TARGET_PCT, WRONG, Judged, passed, score
from microbench.selftest.plant import CONDITIONS, Absent


def print_selftest(judged: Sequence[Judged], absent: Sequence[Absent], console: Console) -> None:
    """A line a condition, then what was named wrong, what could not be tried, and the sum."""
    width = min(console.width, WIDTH)
    for line in screen(_table(judged, absent), width).lines:
        console.print(line, width=width)
    for item in judged:
        if item.verdict == WRONG:
            console.print(_wrong(item), width=width, overflow="fold")
    left = [(item.plant.name, item.why) for item in judged if item.verdict == NOT_APPLICABLE]
    for name, why in [*left, *((a.condition, a.reason) for a in absent)]:
        line = f"not applicable: {fmt.clean(name)}: {fmt.clean(why)}"
        console.print(Text(line, "dim"), width=width, overflow="fold")
    console.print()
    console.print(Text(summary(judged), "bold"), width=width, overflow="fold")


def _table(judged: Sequence[Judged], absent: Sequence[Absent]) -> Table[str]:
    """A row a condition."""

    def named(*, control: bool) -> Callable[[str], str]:
        return lambda condition: _of(
            item
            for item in judged
            if item.plant.condition == condition and item.plant.control == control
        )

    def not_applicable(condition: str) -> str:
        left = sum(
            item.plant.condition == condition and item.verdict == NOT_APPLICABLE for item in judged
        )
        return str(left + sum(a.condition == condition for a in absent) or "")

    columns: list[Column[str]] = [
        Column("condition", str),
        Column("named", named(control=False), right=True),
        Column("controls right", named(control=True), right=True),
        Column("not applicable", not_applicable, right=True),
    ]
    return Table(columns, [Row(condition) for condition in CONDITIONS])


def _of(judged: Iterable[Judged]) -> str:
    right, counted = score(judged)
    return f"{right} of {counted}" if counted else ""


def _wrong(item: Judged) -> Text:
    text = Text("✗ wrong ", "bold red")
    text.append(fmt.clean(item.plant.name), "bold not red")
    named = item.named or "nothing"
    text.append(
        f": expected {item.plant.right}, named {fmt.clean(named)} ({fmt.clean(item.why)}). "
        f"Planted: {fmt.clean(item.plant.because)}",
        "not bold not red",
    )
    return text


def summary(judged: Sequence[Judged]) -> str:
    """ "41 of 42 named right (97.6 %, target 95 %)"."""
    right, counted = score(judged)
    if not counted:
        return "Nothing could be planted on this device: the diagnosis is not tested."
    share = f"{right} of {counted} named right ({100 * right / counted:.1f} %"
    verdict = "" if passed(judged) else ": the diagnosis fails its test here"
    return f"{share}, target {TARGET_PCT:g} %){verdict}."
