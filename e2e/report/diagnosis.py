"""A diagnosis as a table: where a step's time goes, or what differs between two steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from e2e.profile.diagnosis import Diagnosis, TermTime, Traced
from e2e.profile.findings import Finding
from e2e.report.ledger import TERM_WORDS
from microbench import fmt
from microbench.report.documents import Sheet
from microbench.report.table import Column, Row, Table
from microbench.results.fields import decode
from microbench.results.values import Json

SMALL_SHARE = 0.005  # of a step: shorter terms are shown by --verbose only
RESIDUAL = "profiler, and other speed of the CPU"
MOST_FINDINGS = 5
SLOWED = 0.1  # of a step: from here on the profiler's own time is worth a sentence


@dataclass(frozen=True)
class _Change:
    """A row of two recordings held against each other, in ms a step."""

    term: str
    base_ms: float
    other_ms: float


def sheet(data: Json) -> Sheet:
    """One recording, or two held against each other. ValueError for an invalid field."""
    found: Diagnosis = decode(Diagnosis, {"runs": data.get("runs")}, "")
    if len(found.runs) not in (1, 2) or any(run.steps < 1 for run in found.runs):
        raise ValueError("runs are not one or two of at least one step")
    if any(run.window_ns < 1 for run in found.runs):
        raise ValueError("window_ns is no time above zero")
    if any(run.bare_step_s is not None and run.bare_step_s <= 0 for run in found.runs):
        raise ValueError("bare_step_s is no time above zero")
    if any(sum(term.ns for term in run.terms) != run.window_ns for run in found.runs):
        raise ValueError("terms do not add up to window_ns")
    *_, last = found.runs
    tables = _one(last) if len(found.runs) == 1 else _two(*found.runs)
    notes = [Text(""), *map(Text, _said(last))]
    return Sheet(*tables, summary=_summary(found.runs), notes=notes)


# ---------------------------------------------------------------- tables


def _one(run: Traced) -> tuple[Table[TermTime], Table[TermTime]]:
    columns: list[Column[TermTime]] = [
        Column("term", lambda t: _words(t.term), csv={"term": lambda t: t.term}),
        Column(
            "ms a step", lambda t: f"{t.ns / run.steps / 1e6:.3f}", True,
            csv={"ms": lambda t: t.ns / run.steps / 1e6},
        ),
        Column(
            "share", lambda t: f"{100 * t.ns / run.window_ns:.1f} %", True,
            csv={"share": lambda t: t.ns / run.window_ns},
        ),
        Column("", lambda t: "idle" if t.idle else "", csv={"idle": lambda t: t.idle}),
        Column("most of it in", lambda t: fmt.clean(t.where), drop=1),
    ]  # fmt: skip
    rows = [Row(term) for term in run.terms]
    brief = [row for row in rows if row.item.ns >= SMALL_SHARE * run.window_ns]
    return Table(columns, [*rows]), Table(columns, [*brief])


def _two(base: Traced, other: Traced) -> tuple[Table[_Change], Table[_Change]]:
    changes = _changes(base, other)
    columns: list[Column[_Change]] = [
        Column("ms a step", lambda c: _words(c.term), csv={"term": lambda c: c.term}),
        Column(fmt.clean(base.name), lambda c: f"{c.base_ms:.3f}", True,
               csv={"base_ms": lambda c: c.base_ms}),
        Column(fmt.clean(other.name), lambda c: f"{c.other_ms:.3f}", True,
               csv={"other_ms": lambda c: c.other_ms}),
        Column("change", lambda c: f"{c.other_ms - c.base_ms:+.3f}", True,
               csv={"change_ms": lambda c: c.other_ms - c.base_ms}),
    ]  # fmt: skip
    least = SMALL_SHARE * max(base.step_ms, other.step_ms)
    rows = [Row(change) for change in changes]
    brief = [row for row in rows if max(abs(row.item.base_ms), abs(row.item.other_ms)) >= least]
    return Table(columns, [*rows]), Table(columns, [*brief])


def _changes(base: Traced, other: Traced) -> list[_Change]:
    """Every term of both, the largest change first; then what the profiler adds, and the step."""
    names = dict.fromkeys(term.term for run in (base, other) for term in run.terms)
    terms = [_Change(name, base.ms(name), other.ms(name)) for name in names]
    terms.sort(key=lambda change: -abs(change.other_ms - change.base_ms))
    rest = _Change(RESIDUAL, _step_ms(base) - base.step_ms, _step_ms(other) - other.step_ms)
    return [*terms, rest, _Change("step", _step_ms(base), _step_ms(other))]


def _step_ms(run: Traced) -> float:
    """Milliseconds of a step: without the profiler where that is known."""
    return run.step_ms if run.bare_step_s is None else 1e3 * run.bare_step_s


# ---------------------------------------------------------------- sentences


def _said(run: Traced) -> Iterator[str]:
    """The causes of the last recording, what is not the cause, and how far to trust it."""
    if run.findings:
        yield f"What costs time in {fmt.clean(run.name)}, at most (likely; a trace proves no gain)"
    for number, found in enumerate(run.findings[:MOST_FINDINGS], 1):
        yield f"{number:2d} {_finding(found)}"
    if not run.findings:
        yield "No cause was found that costs 3 % of a step or more."
    if run.not_the_cause:
        yield f"Not the cause: {fmt.clean(', '.join(run.not_the_cause))}."
    yield from _trust(run)


def _finding(found: Finding) -> str:
    where = f" ({fmt.clean(found.where)})" if found.where else ""
    return (
        f"{fmt.clean(found.title)}: {found.ms:.3g} ms, {100 * found.share:.0f} %{where}. "
        f"Try: {fmt.clean(found.remedy)}."
    )


def _trust(run: Traced) -> Iterator[str]:
    if run.bare_step_s is None:
        yield (
            "The step without the profiler is not known: the profiler slows the CPU, so CPU launch "
            "is an upper bound. halfway_watch measures it."
        )
    elif run.step_ms > (1 + SLOWED) * 1e3 * run.bare_step_s:
        more = 100 * (run.step_ms / (1e3 * run.bare_step_s) - 1)
        yield (
            f"Under the profiler a step takes {more:.0f} % longer ({run.step_ms:.3g} ms), nearly "
            "all of it on the CPU: CPU launch is an upper bound."
        )


def _summary(runs: Sequence[Traced]) -> str:
    *_, last = runs
    said = (
        f"{fmt.clean(last.name)} on {fmt.clean(last.device)}: {_step_ms(last):.3g} ms a step; "
        f"bottleneck: {fmt.clean(last.bottleneck)}"
        f"{'' if last.on_cpu else f' (GPU busy {100 * last.busy:.0f} %)'}."
    )
    if len(runs) == 1:
        return said
    base_ms, other_ms = (_step_ms(run) for run in runs)
    return (
        f"{said} It is {base_ms / other_ms:.2f} times as fast as {fmt.clean(runs[0].name)} "
        f"({base_ms:.3g} ms). The terms add up to the difference."
    )


def _words(term: str) -> str:
    return TERM_WORDS.get(term, fmt.clean(term))
