"""Trainings over several GPUs: how they scale, and what the exchange of gradients costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from e2e.report.arms import View, in_words
from e2e.report.figures import ratio
from e2e.report.table import arms_table, raw, raw_pair
from e2e.results.baselines import Scaled, scaled
from e2e.results.exchange import Exchange
from e2e.results.types import Training
from microbench import fmt
from microbench.report.table import Column, Part, Row, Table

SCALING_NOTE = (
    "efficiency: throughput over that of one GPU times the number of GPUs; weak: the same batch "
    "a GPU, strong: of all together"
)
PREDICTED_NOTE = (
    "exchange adds: predicted / measured; predicted from the times of an all-reduce by its size "
    "and of the copies, with nothing beside them"
)
EXCHANGE_NOTES = (
    "adds: step less step without exchange (no_sync); copies: of gradients into buckets and back, "
    "alone: all-reduce of the same buckets, both with nothing beside them",
    "hidden: share of the all-reduce behind the backward pass, ? where it is not known; "
    "bus: 2 (N-1)/N x bytes / alone; one GPU exchanges nothing",
)


def scaling_part(view: View) -> Part:
    """A row for each training over several GPUs of which the same over one was timed."""

    def name(row: Scaled) -> str:
        setting = in_words(row.many.case, ("batch",))
        return " ".join([view.label(row.many), *setting])

    columns: list[Column[Scaled]] = [
        Column("recipe", name, key=True),
        Column("GPUs", lambda row: str(row.many.case.gpus), right=True),
        Column("scaling", lambda row: row.kind),
        Column(
            f"{view.unit}/s" if view.unit else "per s",
            lambda row: fmt.throughput(row.many.per_s or 0.0),
            right=True,
        ),
        Column("of one", lambda row: fmt.throughput(row.one.per_s or 0.0), right=True),
        Column("efficiency", lambda row: ratio(row.efficiency), right=True),
    ]
    rows = scaled(view.arms)
    predicted = any(map(_added, rows))
    if predicted:
        columns.append(Column("exchange\nadds ms", _added, right=True))
    notes = [SCALING_NOTE, *[PREDICTED_NOTE] * predicted]
    return Part("Scaling over GPUs", Table(columns, [Row(row) for row in rows]), notes=notes)


def _added(row: Scaled) -> str:
    """ "0.8 / 1.2 ±0.3": predicted and measured; "" without a prediction."""
    predicted_s, exchange = row.predicted_exposed_s, row.many.exchange
    if predicted_s is None or exchange is None:
        return ""
    return f"{1e3 * predicted_s:.2f} / {_exposed(exchange)}"


def exchange_part(view: View) -> Part:
    """The arms whose exchange was measured."""
    seen = view.only(lambda arm: arm.exchange is not None)
    table = arms_table(view, seen, exchange_columns())
    return Part("Exchange of gradients", table, notes=EXCHANGE_NOTES)


def exchange_columns() -> list[Column[Training]]:
    """Bytes, milliseconds and rates; in CSV bytes and seconds."""

    def cell(write: Callable[[Exchange], str]) -> Callable[[Training], str]:
        return lambda arm: write(arm.exchange) if arm.exchange else ""

    return [
        Column("MB", cell(lambda e: f"{e.bytes / 1e6:.1f}"), right=True,
               csv=raw("exchange", exchange_bytes="bytes")),
        Column("adds ms", cell(_exposed), right=True, csv={
            **raw("exchange", exchange_exposed_s="exposed_s"),
            **raw_pair("exchange_exposed_low_s", "exchange_exposed_high_s",
                       lambda arm: arm.exchange and arm.exchange.exposed_ci95_s),
        }),
        Column("copies ms", cell(lambda e: _ms(e.copies_s) if e.copies else ""), right=True,
               csv=raw("exchange", exchange_copies_s="copies_s")),
        Column("alone ms", cell(lambda e: _ms(e.alone_s)), right=True,
               csv=raw("exchange", exchange_alone_s="alone_s")),
        Column("hidden", cell(_hidden), right=True,
               csv=raw("exchange", exchange_overlapped="overlapped")),
        Column("bus\nGB/s", cell(lambda e: "" if e.bus_bytes_per_s is None else (
                   fmt.number(e.bus_bytes_per_s / 1e9))),
               right=True, csv=raw("exchange", bus_bytes_per_s="bus_bytes_per_s")),
        Column("ranks without it, ms", cell(_ranks), right=True, drop=1, csv={
            "rank_local_s": cell(lambda e: "; ".join(f"{s:.6g}" for s in e.rank_local_s)),
        }),
    ]  # fmt: skip


def exchange_sentences(arms: Sequence[Training]) -> list[str]:
    """ "On 2 GPUs amp trains at 96 % of twice the speed of one ..." for each that was compared."""
    found: list[str] = []
    for row in scaled(arms):
        case = row.many.case
        name = " ".join(in_words(case, ("recipe", "compress")))
        where = ", ".join([*in_words(case, ("network", "batch")), f"{row.kind} scaling"])
        text = f"On {case.gpus} GPUs {name} has an efficiency of {ratio(row.efficiency)} ({where})"
        exchange = row.many.exchange
        step_s = row.many.step_s
        if exchange and step_s:
            text += f"; the exchange adds {_exposed(exchange)} of {_ms(step_s)} ms"
        found.append(f"{text}.")
    return found


def _ms(seconds: float) -> str:
    return fmt.as_ms(1e3 * seconds)


def _exposed(exchange: Exchange) -> str:
    """ "1.2 ±0.3", in ms; noise may make it negative."""
    ends = exchange.exposed_ci95_s
    half = f"{1e3 * (ends[1] - ends[0]) / 2:.2f}" if ends else "?"
    return f"{1e3 * exchange.exposed_s:.2f} ±{half}"


def _hidden(exchange: Exchange) -> str:
    """The share that is hidden, "?" where the interval is wider than the exchange itself, or more
    is added than copies and exchange take.
    """
    ends = exchange.exposed_ci95_s
    if exchange.overlapped is None:
        return ""
    known = ends is not None and ends[1] - ends[0] <= exchange.alone_s and exchange.overlapped > 0
    return fmt.per_cent(100 * exchange.overlapped) if known else "?"


def _ranks(exchange: Exchange) -> str:
    """ "12.1 to 12.4": the fastest and the slowest."""
    if not exchange.rank_local_s:
        return ""
    return f"{_ms(min(exchange.rank_local_s))} to {_ms(max(exchange.rank_local_s))}"
