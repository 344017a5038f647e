"""The selftest's verdicts as a person reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from microbench import fmt
from microbench.report.screen import WIDTH
from microbench.selftest.judge import NOT_APPLICABLE, TARGET_PCT, WRONG, Judged, passed, score
from microbench.selftest.plant import CONDITIONS, Absent


def print_selftest(judged: Sequence[Judged], absent: Sequence[Absent], console: Console) -> None:
    """A line a condition, then what was named wrong, what could not be tried, and the sum."""
    width = min(console.width, WIDTH)
    console.print(_table(judged, absent), width=width)
    for item in judged:
        if item.verdict == WRONG:
            console.print(_wrong(item), width=width, overflow="fold")
    left = [(item.plant.name, item.why) for item in judged if item.verdict == NOT_APPLICABLE]
    for name, why in [*left, *((a.condition, a.reason) for a in absent)]:
        line = f"not applicable: {fmt.clean(name)}: {fmt.clean(why)}"
        console.print(Text(line, "dim"), width=width, overflow="fold")
    console.print()
    console.print(Text(summary(judged), "bold"), width=width, overflow="fold")


def _table(judged: Sequence[Judged], absent: Sequence[Absent]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("condition", "named", "controls right", "not applicable"):
        table.add_column(name, justify="left" if name == "condition" else "right")
    for condition in CONDITIONS:
        of_it = [item for item in judged if item.plant.condition == condition]
        left = sum(item.verdict == NOT_APPLICABLE for item in of_it)
        left += sum(a.condition == condition for a in absent)
        table.add_row(
            condition,
            _of(item for item in of_it if not item.plant.control),
            _of(item for item in of_it if item.plant.control),
            str(left or ""),
        )
    return table


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
