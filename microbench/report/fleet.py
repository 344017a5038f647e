"""A fleet check as one table: a row a GPU, a rate a case, the findings below."""

from __future__ import annotations

from rich.text import Text

from microbench import fmt
from microbench.fleet_verdict import (
    COPY,
    Finding,
    Fleet,
    GpuRow,
    findings,
    fleet_from_json,
    mean_of,
    peers,
    relative,
    throttled,
)
from microbench.report.documents import Sheet
from microbench.report.table import Column, Row, Table
from microbench.results.values import Json
from microbench.verdict import uncertain

FEW = {
    1: "One GPU is compared with nothing.",
    2: "Two GPUs show which one is slower, not which one is as it should be.",
}


def sheet(data: Json) -> Sheet:
    """The file of a check as a table. ValueError: invalid field."""
    return fleet_sheet(fleet_from_json(data))


def fleet_sheet(fleet: Fleet) -> Sheet:
    """The table of a check, and its findings."""
    found = findings(fleet)
    table = Table(_columns(fleet, found), [_row(row, found) for row in fleet.rows])
    notes = [Text(f"{one.where}: {one.kind}: {fmt.clean(one.what)}", "red") for one in found]
    notes += [Text(line) for line in uncertain(_doubts(fleet))]
    bad = len(dict.fromkeys(one.where for one in found))
    total = fmt.count(len(fleet.rows), "GPU")
    said = f"{total}: findings on {bad}." if bad else f"{total}: no findings."
    return Sheet(table, table, f"{said} {FEW.get(len(fleet.rows), '')}".strip(), notes)


def _doubts(fleet: Fleet) -> dict[str, float]:
    """The cases too uncertain for a verdict: half of the interval in per cent, by GPU and case."""
    found = {
        f"{row.where} {case}": ratio.ruined_pct
        for row in fleet.rows
        for case in fleet.cases
        if (ratio := relative(row, peers(row, fleet), case))
    }
    return {name: pct for name, pct in found.items() if pct}


def _columns(fleet: Fleet, found: list[Finding]) -> list[Column[GpuRow]]:
    return [
        Column("GPU", lambda r: str(r.gpu), True, key=True, csv={"gpu": lambda r: r.gpu}),
        Column("name", lambda r: fmt.clean(r.name), drop=6, key=True,
               csv={"name": lambda r: r.name}),
        *(column for case in fleet.cases for column in _case_columns(case, fleet)),
        _sensor("SM MHz", "sm_clock_mhz", 1),
        _sensor("power W", "power_w", 3),
        _sensor("°C", "temperature_c", 2),
        Column("throttle", lambda r: ", ".join(throttled(r)), drop=4,
               csv={"throttle": lambda r: ", ".join(throttled(r))}),
        Column("finding", lambda r: _kinds(r, found), bold=True,
               csv={"finding": lambda r: _kinds(r, found), "reason": lambda r: r.reason}),
    ]  # fmt: skip


def _row(row: GpuRow, found: list[Finding]) -> Row[GpuRow]:
    sentence = fmt.clean(row.reason) if row.reason and not row.readings else ""
    return Row(row, sentence, "red" if _kinds(row, found) else "")


def _case_columns(case: str, fleet: Fleet) -> list[Column[GpuRow]]:
    """The rate of a case, and its distance from the others'."""

    def rate(row: GpuRow) -> float | None:
        one = row.reading(case)
        return one and one.per_s

    def rate_text(row: GpuRow) -> str:
        per_s = rate(row)
        if not per_s:
            return ""
        return fmt.bandwidth(per_s) if case == COPY else f"{fmt.number(per_s / 1e12)} TFLOP/s"

    def distance_pct(row: GpuRow) -> float | None:
        found = relative(row, peers(row, fleet), case)
        return 100 * (1 / found.ratio - 1) if found else None

    def distance_text(row: GpuRow) -> str:
        pct = distance_pct(row)
        return "" if pct is None else fmt.signed_pct(pct)

    name = case.replace(" ", "_")
    unit = "byte_per_s" if case == COPY else "flop_per_s"
    return [
        Column(fmt.clean(case).replace(" ", "\n", 1), rate_text, True,
               csv={f"{name}_{unit}": rate}),
        Column("vs\nothers", distance_text, True, csv={f"{name}_vs_others_pct": distance_pct}),
    ]  # fmt: skip


def _sensor(title: str, name: str, drop: int) -> Column[GpuRow]:
    """The mean of a sensor over the cases."""
    return Column(
        title, lambda r: _text(mean_of(r, name)), True, drop, csv={name: lambda r: mean_of(r, name)}
    )


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _kinds(row: GpuRow, found: list[Finding]) -> str:
    return ", ".join(dict.fromkeys(one.kind for one in found if one.where == row.where))
