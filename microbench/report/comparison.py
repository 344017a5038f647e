"""Runs compared: the counts, then what is not the same. Everything is said of B, against A."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from kernels.case import Case
from microbench import fmt
from microbench.errors import UserError
from microbench.report import charts
from microbench.report.cases import no_verdict
from microbench.report.parts import VERBOSE, Column, Line, Part, Raw, Report, Row, Value
from microbench.results.comparison import IN_CYCLES, NOT_MEASURED, RUINED, CompareRow, Comparison
from microbench.results.kinds import kinds
from microbench.results.types import AnyCase, Json, Ratio

MOST_ROWS = 12
MOST_NAMED = 2
SAME = "same"
COLOURS = {"slower": "red", "faster": "green", "cannot tell": "yellow", NOT_MEASURED: "yellow",
           SAME: "dim"}  # fmt: skip
ORDER = list(COLOURS)


def report(comparisons: Mapping[str, Comparison], baseline: str) -> Report:
    """Runs, by name, each against one baseline."""
    alone = [
        f"only in {side}: {case_name(case)}"
        for comparison in comparisons.values()
        for side, cases in (("A", comparison.only_a), ("B", comparison.only_b))
        for case in cases
    ]
    more = Part("Cases that only one run has", below=alone, level=VERBOSE)
    title = f"{', '.join(comparisons)} compared with {baseline}"
    return Report(title, _answer(comparisons, baseline), [*_tables(comparisons), more],
                  raw=[_raw(comparisons)], chart=partial(_chart, comparisons))  # fmt: skip


def case_name(case: AnyCase) -> str:
    """A case in a few words: "fp16 4096 cublas"."""
    if isinstance(case, Case):
        return fmt.name(case)
    return " ".join(filter(None, kinds()[case.op].cells(case)))


# ---------------------------------------------------------------- the answer


def _answer(comparisons: Mapping[str, Comparison], baseline: str) -> list[Line]:
    several = len(comparisons) > 1
    lines: list[Line] = []
    lost, new = list[str](), list[str]()
    for name, comparison in comparisons.items():
        counts = [f"{comparison.count(verdict)} {verdict}" for verdict in ORDER
                  if comparison.count(verdict) or verdict in ("slower", "faster")]  # fmt: skip
        verdicts = f"{', '.join(counts)} of {fmt.count(len(comparison.rows), 'case')}"
        runs = f"B = {name}, A = {baseline}"
        lines.append(Line("", f"{name}: {verdicts}" if several else f"{verdicts} ({runs})"))
        b = name if several else "B"
        lost += [f"not in {b}: {_named(comparison.only_a)}"] if comparison.only_a else []
        new += [f"only in {b}: {_named(comparison.only_b)}"] if comparison.only_b else []
    lines += [Line("", text) for text in [f"each against A = {baseline}"] * several + lost]
    every = comparisons.values()
    rows = [row for comparison in every for row in comparison.rows]
    why = list(dict.fromkeys(text for comparison in every for text in _why(comparison)))
    lines += [Line("Why", "; ".join(why))] if why else []
    for count, meaning in (
        (sum(row.guessed for row in rows), "processes differ, and the threshold is a guess"),
        (sum(row.widened for row in rows), "the interval has in it what processes usually differ "
         "by"),
    ):  # fmt: skip
        if count:
            lines.append(Line("Do", "measure the runs that you compare with --processes 3"))
            text = f"{fmt.count(count, 'case')} measured in one process: {meaning}"
            lines.append(Line("Doubt", text))
    lines += [Line("Doubt", "; ".join(new))] if new else []
    ruined = {case_name(row.case): Ratio(row.ratio, row.ci95).ruined_pct
              for row in rows if row.ratio and row.reason == RUINED}  # fmt: skip
    return [*dict.fromkeys(lines), *no_verdict(ruined, alone=False)]


def _why(comparison: Comparison) -> Iterator[str]:
    """Why some cases have no verdict; how the runs differ."""
    reasons = Counter(
        row.reason for row in comparison.rows if row.verdict in ("cannot tell", NOT_MEASURED)
    )
    if reasons:
        texts = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
        yield f"cannot tell: {texts}"
    if comparison.card:
        yield comparison.card
    if comparison.differences:
        yield f"A | B differ in {fmt.listed(comparison.differences, MOST_NAMED)}"
    if comparison.threshold_pct is not None:
        yield f"threshold {comparison.threshold_pct:g} %"


def _named(cases: Sequence[AnyCase]) -> str:
    names = fmt.listed([case_name(case) for case in cases], MOST_NAMED)
    return f"{len(cases)} cases ({names})" if len(cases) > MOST_NAMED else names


# ---------------------------------------------------------------- tables


def _tables(comparisons: Mapping[str, Comparison]) -> list[Part]:
    """What is not the same, or cannot tell: slower ones first, then the largest differences; and
    every case."""
    every = [(name, row) for name, one in comparisons.items() for row in one.rows]
    every.sort(key=lambda one: (ORDER.index(one[1].verdict), -abs(math.log(one[1].ratio or 1.0))))
    differing = [one for one in every if one[1].verdict != SAME][:MOST_ROWS]
    verdicts = {row.verdict for _, row in differing}
    title = "Not the same, or cannot tell" if verdicts & {"slower", "faster"} else "Cannot tell"
    title = "Not the same" if verdicts <= {"slower", "faster"} else title
    below: list[str] = []
    for verdict in ORDER:
        hidden = [one[1] for one in every if one[1].verdict == verdict and one not in differing]
        if hidden:
            ratios = [row.ratio for row in hidden if row.ratio]
            ends = f": A / B {min(ratios):.3f} to {max(ratios):.3f}" if ratios else ""
            steady = sum(row.reason == IN_CYCLES for row in hidden)
            clocks = f" ({steady} by cycles, as the clock varies: power limit)" if steady else ""
            more = "more " * (verdict in verdicts)
            below.append(f"{len(hidden)} {more}{verdict}{ends}{clocks}")
    first = [
        Column("B is", "verdict", once=True),
        *([Column("B", "run")] if len(comparisons) > 1 else []),
        Column("case", "case"),
        Column("A / B", "ratio"),
        Column("reason", "reason", drop=1),
    ]
    more = [Column("time A", "a_s", fmt.duration, 4), Column("time B", "b_s", fmt.duration, 3),
            Column("note", "note", drop=2)]  # fmt: skip
    differ = [f"A | B: {text}" for one in comparisons.values() for text in one.differences]
    return [
        Part(title * bool(differing), first, [_row(*one) for one in differing], below),
        Part("Every case", [*first, *more], [_row(*one) for one in every], differ, VERBOSE),
    ]


def _row(run: str, row: CompareRow) -> Row:
    ratio = Ratio(row.ratio, row.ci95) if row.ratio else None
    if ratio and not isinstance(row.case, Case):
        text = kinds()[row.case.op].ratio(row.case.op, ratio)
    else:
        text = fmt.interval(ratio) if ratio else None
    pct = row.threshold_pct
    needs = None if pct is None else f"±{pct:.{1 if pct < 9.95 else 0}f} %"
    reason = row.reason.removeprefix("interval ").replace("beyond it", f"beyond {needs}")
    reason = reason.replace("may differ by as much", "differ as much")
    item = {
        "verdict": row.verdict, "run": run, "case": case_name(row.case), "a_s": row.a_s,
        "b_s": row.b_s, "ratio": text, "reason": reason, "note": row.note,
    }  # fmt: skip
    return Row(item, style=COLOURS[row.verdict])


def _raw(comparisons: Mapping[str, Comparison]) -> Raw:
    """Every case of each run."""
    names = ["verdict", "key", "a_s", "b_s", "ratio", "note", "threshold_pct", "reason"]
    rows: list[dict[str, Value]] = []
    for run, comparison in comparisons.items():
        for row in comparison.rows:
            low, high = row.ci95 or (None, None)
            values = {name: getattr(row, name) for name in names}
            rows.append({"run": run, **values, "ci95_low": low, "ci95_high": high})
    return ["run", *names, "ci95_low", "ci95_high"], rows


def _chart(comparisons: Mapping[str, Comparison]) -> Any:
    """Every ratio with its interval, a panel a run. UserError where there is none."""
    rows: list[Json] = [
        {"label": case_name(row.case), "series": row.verdict, "ratio": row.ratio,
         "low": row.ci95 and row.ci95[0], "high": row.ci95 and row.ci95[1],
         "panel": name * (len(comparisons) > 1)}
        for name, comparison in comparisons.items() for row in comparison.rows if row.ratio
    ]  # fmt: skip
    if not rows:
        raise UserError("nothing to draw: no case has a time in both runs")
    colours = {"slower": "#d55e00", "faster": "#0072b2", "cannot tell": "#b8860b", SAME: "#8a8a8a"}
    drawn = charts.ratios(rows, x="", y="time A / time B", colours=colours)
    return charts.titled(drawn, "B against A", ["above 1: B is faster; bars: 95 % interval"])
