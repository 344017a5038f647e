"""Kernels in a step against the same operations alone, over the trainings of a run.

Predictions are made of operations that are timed alone; recorded steps have their time in place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.text import Text

from e2e.report.ledger import term_words
from e2e.report.table import table_lines
from e2e.results.terms import IDLE, OP_TERMS
from e2e.results.types import Training
from microbench import fmt
from microbench.report.table import Column, Row, Table

IN_PLACE_TITLE = "GPU time in the step against operations alone, by term"
ALL = "all operations"
LEAST_SHARE = 0.01  # of the operations' time: a term with less in a step is not counted there


@dataclass(frozen=True)
class TermRatio:
    """A term's time in place over its time alone, of `count` steps: median and ends.

    `share` is the median share of the operations' time alone that the term has in those steps.
    """

    term: str
    count: int
    share: float
    middle: float
    least: float
    most: float


def term_ratios(trainings: Sequence[Training]) -> list[TermRatio]:
    """A row for each term, in the ledger's order, and last for all operations together.

    Of steps on a GPU that were recorded and predicted; captured ones are left out.
    """
    seen: dict[str, list[tuple[float, float]]] = defaultdict(list)  # (share, ratio)
    for training in trainings:
        traced, predicted = training.traced, training.predicted
        if traced is None or predicted is None or not traced.launches or training.case.graph:
            continue
        alone = predicted.terms_ms
        total_ms = sum(alone.values())
        if predicted.uncovered or total_ms <= 0:
            continue
        in_place = {term: ns / traced.steps / 1e6 for term, ns in traced.terms.items()}
        for term, ms in alone.items():
            if ms > LEAST_SHARE * total_ms:
                seen[term].append((ms / total_ms, in_place.get(term, 0.0) / ms))
        busy_ms = sum(ms for term, ms in in_place.items() if term not in IDLE)
        seen[ALL].append((1.0, busy_ms / total_ms))
    order = [*OP_TERMS, *(term for term in seen if term not in (*OP_TERMS, ALL)), ALL]
    return [_ratio(term, seen[term]) for term in order if term in seen]


def _ratio(term: str, pairs: Sequence[tuple[float, float]]) -> TermRatio:
    ratios = [ratio for _, ratio in pairs]
    share = median(share for share, _ in pairs)
    return TermRatio(term, len(pairs), share, median(ratios), min(ratios), max(ratios))


def in_place_table(trainings: Sequence[Training]) -> Table[TermRatio]:
    """A row per term: its share of the work, and its time in place over its time alone."""
    columns: list[Column[TermRatio]] = [
        Column("term", lambda row: row.term if row.term == ALL else term_words(row.term)),
        Column("steps", lambda row: str(row.count), right=True),
        Column("share of\nthe work, %", lambda row: f"{100 * row.share:.0f}", right=True, drop=1),
        Column("in place / alone,\nmedian", lambda row: f"{row.middle:.3f}", right=True),
        Column("least", lambda row: f"{row.least:.3f}", right=True),
        Column("most", lambda row: f"{row.most:.3f}", right=True),
    ]
    return Table(columns, [Row(row) for row in term_ratios(trainings)])


def in_place_lines(trainings: Sequence[Training], width: int) -> list[Text]:
    """The table and what it leaves out, at most `width` columns wide; empty without rows."""
    note = f"steps in which a term has at most {fmt.per_cent(100 * LEAST_SHARE)} are not counted"
    return table_lines(in_place_table(trainings), width, [note])
