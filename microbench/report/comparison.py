"""Runs compared, as a person reads it. Everything is said of B, measured against A."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.text import Text

from kernels.case import Case
from microbench import fmt
from microbench.report.screen import print_lines
from microbench.report.table import (
    DIM,
    Column,
    Part,
    Records,
    Row,
    Table,
    Value,
    markdown,
    plain_markdown,
    screen,
)
from microbench.results.comparison import (
    NOT_MEASURED,
    RUINED,
    SAME_CARD,
    VERDICTS,
    CompareRow,
    Comparison,
)
from microbench.results.kinds import Report, kinds
from microbench.results.types import AnyCase, Ratio
from microbench.verdict import uncertain

MOST_SAME_ROWS = 6
MOST_NAMED = 2
REASON = "reason"
_Counted = tuple[str, Comparison]  # a run's name, and it against the baseline
ORDER = ("slower", "faster", "cannot tell", NOT_MEASURED, "same")
_LOOKS = {
    "slower": ("- slower", "red"),
    "faster": ("+ faster", "green"),
    "cannot tell": ("? cannot tell", "yellow"),
    NOT_MEASURED: ("x not measured", "yellow"),
    "same": ("= same", DIM),
}


def print_comparisons(
    found: Mapping[str, Comparison], baseline: str, console: Console, *, details: bool = False
) -> None:
    """Runs, by name, each against one baseline; of several, the counts of all at the end."""
    several = len(found) > 1
    for name, comparison in found.items():
        console.print(Text(_heading(name, baseline), "bold"))
        print_comparison(comparison, console, details=details)
        if several:
            console.print()
    if several:
        print_lines(console, screen(_counts(found), console.width).lines)


def print_comparison(comparison: Comparison, console: Console, *, details: bool = False) -> None:
    """What differs between the runs, the rows that matter, and the counts.

    `details` shows every row, and every case that only one run has.
    """
    shown, hidden = _chosen(comparison.rows, details)
    print_lines(console, [*_differences(comparison), *_body(shown, hidden, console.width)])
    console.print()
    alone = every_alone(comparison) if details else _alone(comparison)
    said = [Text(line, "bold") for line in (summary(comparison), *doubts(comparison))]
    print_lines(console, [*map(Text, alone), *said])


def doubts(comparison: Comparison) -> list[str]:
    """The cases without a verdict because their interval is too wide; nothing where none is."""
    return uncertain(
        {
            case_name(row.case): Ratio(row.ratio, row.ci95).ruined_pct
            for row in comparison.rows
            if row.ratio and row.reason == RUINED
        }
    )


def _body(shown: Sequence[CompareRow], hidden: Sequence[CompareRow], width: int) -> Iterator[Text]:
    """The table, the reasons where their column does not fit, the notes, and the rest in a line."""
    if shown:
        table = screen(_table(shown), width)
        yield from table.lines
        if REASON in table.left_out:
            yield from _said(shown, lambda row: row.reason)
    yield from _said(shown, _note)
    for verdict in ORDER:
        if rows := [row for row in hidden if row.verdict == verdict]:
            yield Text(_in_a_line(rows), DIM)


def _said(rows: Sequence[CompareRow], read: Callable[[CompareRow], str]) -> Iterator[Text]:
    """A line for each text that `read` gives, with the cases that it is said of; "" is nothing."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if text := fmt.clean(read(row)):
            found.setdefault(text, []).append(case_name(row.case))
    for text, cases in found.items():
        yield Text(f"  {fmt.listed(cases)}: {text}")


def _differences(comparison: Comparison) -> Iterator[Text]:
    """What differs between the runs, a line each, and a blank line."""
    found = [fmt.clean(difference) for difference in comparison.differences]
    if comparison.card and comparison.card != SAME_CARD:
        found.append(comparison.card)
    if found:
        yield Text("The runs differ (A | B):", "bold")
        yield from (Text(f"  {line}") for line in found)
    if comparison.card == SAME_CARD:
        yield Text("Both runs used the same card.")
    if comparison.threshold_pct is not None:
        yield Text(f"Threshold: {comparison.threshold_pct:g} %.")
    if widened := sum(row.widened for row in comparison.rows):
        yield Text(
            f"{fmt.count(widened, 'case')} measured in one process: the interval has in it what "
            "processes usually differ by. Runs with --processes 3 tell smaller differences."
        )
    if guessed := sum(row.guessed for row in comparison.rows):
        yield Text(
            f"{fmt.count(guessed, 'case')} measured in one process: differences between processes "
            "are not in the interval, and the threshold is a guess. Measure runs that you compare "
            "with --processes 3."
        )
    if found or comparison.card or comparison.threshold_pct is not None or guessed or widened:
        yield Text("")


def in_markdown(found: Mapping[str, Comparison], baseline: str) -> str:
    """Every row of every comparison, in Markdown; several begin with a table of counts."""
    parts = [markdown(_counts(found))] if len(found) > 1 else []
    for name, comparison in found.items():
        ordered = _ordered(comparison.rows)
        said = [line.plain.strip() for line in _differences(comparison) if line.plain]
        facts = [f"{line}\n\n" if line.endswith(":") else f"- {line}\n" for line in said]
        facts += [f"- {line}\n" for line in _alone(comparison)]
        parts += [
            f"**{_heading(name, baseline)}**\n",
            markdown(_table(ordered)),
            "".join(facts),
            "".join(f"{line}\n" for line in (summary(comparison), *doubts(comparison))),
        ]
    return plain_markdown("\n".join(part for part in parts if part))


def page_parts(found: Mapping[str, Comparison], baseline: str) -> list[Part]:
    """The parts of a page: for each run all rows, slower ones first, and what differs."""
    parts = [Part("", _counts(found), [])] if len(found) > 1 else []
    for name, comparison in found.items():
        ordered = _ordered(comparison.rows)
        below = [line.plain.strip() for line in _differences(comparison) if line.plain]
        below += [*_alone(comparison), *doubts(comparison)]
        parts.append(Part(_heading(name, baseline), _table(ordered), below))
    return parts


def csv_records(found: Mapping[str, Comparison]) -> Records:
    """The raw values of every case of each run: (names, rows)."""
    names = ["verdict", "key", "a_s", "b_s", "ratio", "note", "threshold_pct", "reason"]
    rows: list[dict[str, Value]] = []
    for run, comparison in found.items():
        for row in comparison.rows:
            low, high = row.ci95 or (None, None)
            values = {name: getattr(row, name) for name in names}
            rows.append({"run": run, **values, "ci95_low": low, "ci95_high": high})
    return ["run", *names, "ci95_low", "ci95_high"], rows


def _heading(name: str, baseline: str) -> str:
    return f"B = {fmt.clean(name)}, A = {fmt.clean(baseline)}"


def _counts(found: Mapping[str, Comparison]) -> Table[_Counted]:
    """How many cases of each run have each verdict."""

    def counted(verdict: str) -> Column[_Counted]:
        return Column(verdict, lambda line: str(line[1].count(verdict)), right=True)

    missed = any(comparison.count(NOT_MEASURED) for comparison in found.values())
    columns: list[Column[_Counted]] = [
        Column("run", lambda line: fmt.clean(line[0])),
        Column("cases", lambda line: str(len(line[1].rows)), right=True),
        *map(counted, ORDER if missed else [v for v in ORDER if v != NOT_MEASURED]),
    ]
    return Table(columns, [Row(line) for line in found.items()])


def summary(comparison: Comparison) -> str:
    """The counts: "B against A, 24 cases: 1 slower, 23 same." """
    counts = [(comparison.count(verdict), verdict) for verdict in ORDER]
    parts = [f"{count} {verdict}" for count, verdict in counts if count]
    cases = fmt.count(len(comparison.rows), "case")
    return f"B against A, {cases}: {', '.join(parts) or 'nothing to compare'}."


def _one_sided(comparison: Comparison) -> dict[str, list[str]]:
    """The names of the cases that one run alone has, by its letter."""
    sides = {"A": comparison.only_a, "B": comparison.only_b}
    return {side: [case_name(case) for case in cases] for side, cases in sides.items()}


def _alone(comparison: Comparison) -> list[str]:
    """Those cases, at most a line for each run: "only in A: 190 cases (…)"."""
    return [
        f"only in {side}: {fmt.listed(names)}"
        if len(names) <= MOST_NAMED
        else f"only in {side}: {len(names)} cases ({fmt.listed(names, most=MOST_NAMED)})"
        for side, names in _one_sided(comparison).items()
        if names
    ]


def every_alone(comparison: Comparison) -> list[str]:
    """Those cases, a line each."""
    sides = _one_sided(comparison).items()
    return [f"only in {side}: {name}" for side, names in sides for name in names]


def _ordered(rows: Sequence[CompareRow]) -> list[CompareRow]:
    """Slower ones first."""
    assert set(ORDER) == set(VERDICTS)
    return sorted(rows, key=lambda row: ORDER.index(row.verdict))


def _chosen(rows: Sequence[CompareRow], details: bool) -> tuple[list[CompareRow], list[CompareRow]]:
    """Rows to show, slower ones first, and those without news that are too many to show."""
    ordered = _ordered(rows)
    dull = [row for row in ordered if row.verdict == "same" or row.reason == "skipped in both"]
    if details or len(dull) <= MOST_SAME_ROWS:
        return ordered, []
    return [row for row in ordered if row not in dull], dull


def _table(rows: Sequence[CompareRow]) -> Table[CompareRow]:
    ops = {row.case.op for row in rows}
    kernels, others = ops - kinds().keys(), ops & kinds().keys()
    first = [kinds()[op].report.FIRST[op] for op in others]
    columns: list[Column[CompareRow]] = [
        Column("B is", lambda row: _LOOKS[row.verdict][0]),
        Column("precision" if kernels or len(first) > 1 else first[0],
               lambda row: _what(row.case)[0]),
        Column("what" if others else "size", lambda row: _what(row.case)[1], right=True),
        Column("backend" if kernels else "options", lambda row: _what(row.case)[2], drop=1),
        Column("time A", lambda row: _time(row.a_s), right=True, drop=4),
        Column("time B", lambda row: _time(row.b_s), right=True, drop=3),
        Column("A / B", _ratio, right=True),
        Column("threshold", lambda row: _threshold(row.threshold_pct), right=True),
        Column(REASON, lambda row: fmt.clean(row.reason), drop=2),
    ]  # fmt: skip
    return Table(columns, [Row(row, style=_LOOKS[row.verdict][1]) for row in rows])


def _threshold(pct: float | None) -> str:
    """ "3.0 %"; "" for a case without times."""
    return "" if pct is None else f"{pct:.{1 if pct < 9.95 else 0}f} %"


def _time(seconds: float | None) -> str:
    return fmt.duration(seconds) if seconds is not None else "-"


def _what(case: AnyCase) -> tuple[str, str, str]:
    """Precision, problem and back end; for other kinds, as their report has it."""
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
    return kinds()[case.op].report


def case_name(case: AnyCase) -> str:
    """A case in a few words: "fp16 4096 cublas"."""
    return fmt.name(case) if isinstance(case, Case) else " ".join(_what(case))


def _note(row: CompareRow) -> str:
    return row.note if row.note != row.reason else ""


def _in_a_line(rows: Sequence[CompareRow]) -> str:
    ratios = [row.ratio for row in rows if row.ratio is not None]
    text = f"{_LOOKS[rows[0].verdict][0]}: {fmt.count(len(rows), 'case')}"
    text += f", A / B from {min(ratios):.3f} to {max(ratios):.3f}" if ratios else ""
    reasons = dict.fromkeys(row.reason for row in rows if row.reason)
    return text + (f": {'; '.join(map(fmt.clean, reasons))}" if reasons else "")
