"""Measured ceilings: what `microbench.results.kinds.Report` asks of a kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from kernels.ceilings.plan import DRAM, INSTRUCTIONS, L2, LAUNCHES, MIB, Probe
from microbench import fmt
from microbench.errors import UserError
from microbench.report.drawing_style import library, main_title, styled
from microbench.report.table import (
    DIM,
    MISSING,
    Column,
    Part,
    Row,
    Table,
    Value,
    ends_of,
    measured,
    records,
    screen,
)
from microbench.results.ceilings import OP, CeilingResult, Tried
from microbench.results.types import Ratio, Run

FIRST: Mapping[str, str] = {OP: "ceiling"}
NOTES = (
    "per clock: FLOP or bytes per clock and SM; of nominal: per cent of the documented rate, for "
    "DRAM of the datasheet's bandwidth",
    "int8: operations instead of FLOP",
)
CHART_SIZE = (560, 320)
BAND_COLOUR, ROOF_COLOUR = "#0072b2", "#d55e00"


def conditions(run: Run) -> list[str]:
    """What all results share, for the header."""
    return ["ceilings"]


def cells(case: Probe) -> tuple[str, str, str]:
    """A probe in a comparison's row."""
    return fmt.clean(case.name), of_what(case), ""


def ratio(op: str, value: Ratio) -> str:
    """A ratio with its interval."""
    return fmt.interval(value)


def of_what(probe: Probe) -> str:
    """The precision, or the size of what is read."""
    return fmt.clean(probe.precision_name or "") or _megabytes(probe)


def _megabytes(probe: Probe) -> str:
    return f"{probe.working_set // MIB} MiB" if probe.working_set else ""


def in_one_line(result: CeilingResult) -> str:
    """ "wgmma fp16: 1,040 TFLOP/s, 4,012 per clock (98%)"."""
    name = " ".join(filter(None, (fmt.clean(result.case.name), of_what(result.case))))
    if result.measurement is None:
        return f"{name}: {result.status}, {fmt.clean(result.reason or '')}"
    clock, pct = _per_clock(result), result.nominal_pct
    more = f", {clock} per clock" if clock else ""
    return f"{name}: {_rate(result)}{more}" + (f" ({_pct(pct)})" if pct else "")


# ---------------------------------------------------------------- tables


def ceilings_table(run: Run) -> Table[CeilingResult]:
    """One row a probe; what did not run says why."""
    columns: list[Column[CeilingResult]] = [
        Column(csv={"op": lambda _: OP}),
        Column("ceiling", lambda r: fmt.clean(r.case.name), key=True,
               csv={"name": lambda r: r.case.name}),
        Column("of", lambda r: of_what(r.case), key=True,
               csv={"precision": lambda r: r.case.precision_name,
                    "working_set_bytes": lambda r: r.case.working_set}),
        Column(csv={"status": lambda r: r.status, "reason": lambda r: r.reason}),
        Column("rate", _rate, True, bold=True,
               csv={"flop_per_s": lambda r: r.flop_per_s, "byte_per_s": lambda r: r.byte_per_s}),
        Column("per clock", _per_clock, True, csv={"per_clock": lambda r: r.per_clock}),
        Column("of nominal", lambda r: _pct(_nominal_pct(run, r)), True,
               csv={"nominal_pct": lambda r: _nominal_pct(run, r)}),
        Column("SM MHz", lambda r: fmt.whole(r.measurement and r.measurement.sm_clock_mhz), True, 2,
               csv=measured("sm_clock_mhz")),
        Column("power W", lambda r: fmt.whole(r.measurement and r.measurement.power_w), True, 3,
               csv=measured("power_w")),
        Column("time", lambda r: fmt.duration(r.measurement.median_s) if r.measurement else "",
               True, 4, csv={**measured("median_s"), "cycles": lambda r: r.cycles}),
        Column("±", lambda r: fmt.half_of(r.measurement), True, 5,
               csv=ends_of("ci95{}_s", lambda r: r.measurement and r.measurement.ci95_s)),
        Column("best variant", lambda r: fmt.clean(r.variant or "") * (len(r.tried) > 1), drop=1,
               csv={"variant": lambda r: r.variant, "rel_error": lambda r: r.rel_error}),
    ]  # fmt: skip
    table: Table[CeilingResult] = Table(columns)
    for name in dict.fromkeys(r.case.name for r in run.of(CeilingResult)):
        of_name = [r for r in run.of(CeilingResult) if r.case.name == name]
        rows = [_row(r) for r in of_name]
        if len(rows) > 1:
            table.block("", rows)
        else:
            table.rows += rows
    return table


def _row(result: CeilingResult) -> Row[CeilingResult]:
    if result.measurement:
        return Row(result)
    reason = fmt.clean(result.reason or "")
    said = f"{MISSING.get(result.status, 'not measured')}: {reason}"
    style = "red" if result.status == "failed" else DIM
    return Row(result, said, style, f"{result.status}: {reason}")


def tried_table(run: Run) -> Table[tuple[CeilingResult, Tried]]:
    """Every variant that was tried."""
    columns: list[Column[tuple[CeilingResult, Tried]]] = [
        Column("ceiling", lambda row: fmt.clean(row[0].case.name), key=True),
        Column("of", lambda row: of_what(row[0].case), key=True),
        Column("variant", lambda row: fmt.clean(row[1].label), key=True),
        Column("rate", lambda row: _tried_rate(*row), True),
        Column("per clock", lambda row: _tried_per_clock(*row), True),
        Column("error", lambda row: fmt.error(row[1].rel_error), True),
    ]  # fmt: skip
    table: Table[tuple[CeilingResult, Tried]] = Table(columns)
    for result in run.of(CeilingResult):
        table.rows += [
            Row((result, one), fmt.clean(one.reason or ""), "red" if one.reason else "")
            for one in result.tried
        ]
    return table


def _rate(result: CeilingResult) -> str:
    if result.measurement is None:
        return ""
    if result.case.name in LAUNCHES:
        return fmt.duration(result.measurement.median_s)
    return _of_kind(result.case, result.flop_per_s, result.byte_per_s)


def _of_kind(probe: Probe, flop_per_s: float | None, byte_per_s: float | None) -> str:
    if flop_per_s:
        unit = fmt.rate_unit([flop_per_s], integers=probe.precision_name == "int8")
        return f"{unit.text(flop_per_s)} {unit.name}"
    return fmt.bandwidth(byte_per_s) if byte_per_s else ""


def _tried_rate(result: CeilingResult, one: Tried) -> str:
    if one.seconds is None:
        return ""
    if not one.work:
        return fmt.duration(one.seconds)
    rate = one.work / one.seconds
    multiplies = result.case.name in INSTRUCTIONS
    return _of_kind(result.case, rate if multiplies else None, None if multiplies else rate)


def _tried_per_clock(result: CeilingResult, one: Tried) -> str:
    if not (one.seconds and one.sm_clock_mhz and one.work and result.sms):
        return ""
    return f"{one.work / one.seconds / (one.sm_clock_mhz * 1e6) / result.sms:,.1f}"


def _per_clock(result: CeilingResult) -> str:
    return f"{result.per_clock:,.1f}" if result.per_clock else ""


def _pct(value: float | None) -> str:
    return f"{value:.1f}%" if value else ""


def _nominal_pct(run: Run, result: CeilingResult) -> float | None:
    """Of the architecture's rate; of the datasheet's bandwidth where DRAM is read or written."""
    sheet = run.ceiling("memory", "datasheet")
    if result.case.name in DRAM and sheet and sheet.byte_per_s and result.byte_per_s:
        return 100 * result.byte_per_s / sheet.byte_per_s
    return result.nominal_pct


# ---------------------------------------------------------------- the report's parts


def sections(run: Run, width: int, *, details: bool) -> list[tuple[str, Sequence[Text]]]:
    """The table; with `details`, every variant too."""
    found = screen(ceilings_table(run), width)
    notes = [*NOTES, *filter(None, [found.left_out_note(width)])]
    parts: list[tuple[str, Sequence[Text]]] = [
        ("", [*found.lines, *(Text(note, DIM) for note in notes)]),
    ]
    if details:
        parts.append(("Variants", screen(tried_table(run), width).lines))
    return [*parts, ("In short", [Text(line) for line in summary(run)])]


def parts(run: Run) -> list[Part]:
    """The table, and every variant."""
    return [
        Part("Ceilings:", ceilings_table(run), list(NOTES)),
        Part("Variants:", tried_table(run)),
    ]


def summary(run: Run) -> list[str]:
    """The best of the instructions, of DRAM and of the L2."""
    found: list[str] = []
    for name in INSTRUCTIONS:
        measured = [r for r in run.of(CeilingResult) if r.case.name == name and r.nominal_pct]
        if measured:
            said = [f"{of_what(r.case)} {_pct(r.nominal_pct)}" for r in measured]
            found.append(f"{fmt.clean(name)} reaches, of the nominal rate: {', '.join(said)}.")
    dram = [r for r in run.of(CeilingResult) if r.case.name in DRAM and r.byte_per_s]
    if dram:
        found.append(", ".join(f"{r.case.name}: {_rate(r)}" for r in dram) + ".")
    levels = [r for r in run.of(CeilingResult) if r.case.name == L2 and r.byte_per_s]
    if levels:
        said = ", ".join(f"{_megabytes(r.case)}: {_rate(r)}" for r in levels)
        found.append(f"Reads of a working set again and again: {said}.")
    return found


def warnings(run: Run) -> list[Text]:
    """None: a low clock shows in its column, and changes no rate per clock."""
    return []


def csv(run: Run) -> tuple[Sequence[str], list[dict[str, Value]]]:
    """(columns, rows): one a probe."""
    return records(ceilings_table(run))


def chart(run: Run) -> Any:
    """Read bandwidth against the size of the working set, with DRAM's as a line.

    UserError where neither was measured.
    """
    rows = [
        {"size": r.case.working_set / MIB, "rate": r.byte_per_s / 1e12}
        for r in run.of(CeilingResult)
        if r.case.working_set and r.byte_per_s
    ]
    if not rows:
        raise UserError("nothing to draw: no bandwidth was measured by working set")
    alt = library()
    line = alt.Chart(alt.Data(values=rows)).mark_line(point=True, color=BAND_COLOUR).encode(
        x=alt.X("size:Q", title="working set, MiB", scale=alt.Scale(type="log", base=2)),
        y=alt.Y("rate:Q", title="read, TB/s", scale=alt.Scale(zero=True)),
    )  # fmt: skip
    layers = [line]
    dram = run.ceiling("DRAM read", "measured")
    if dram and dram.byte_per_s:
        roof = [{"rate": dram.byte_per_s / 1e12}]
        layers.append(
            alt.Chart(alt.Data(values=roof))
            .mark_rule(color=ROOF_COLOUR, strokeDash=[5, 4])
            .encode(y="rate:Q")
        )
    device = fmt.clean(run.device.get("name") or "unknown device")
    below = [f"blue: a working set read again and again; dashed: DRAM; {run.started_at[:10]}"]
    width, height = CHART_SIZE
    found = alt.layer(*layers).properties(
        title=main_title(f"Read bandwidth of {device}", below), width=width, height=height
    )
    return styled(found)
