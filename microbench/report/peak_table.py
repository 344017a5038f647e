"""The screen of `peak`: a row for each precision, and sentences about what holds it."""

from __future__ import annotations

from collections.abc import Sequence

from microbench import fmt
from microbench.peak import DIMENSIONS, peak_of
from microbench.report.arms import rate_unit
from microbench.report.table import Column, Row, Table
from microbench.results.types import Result, Run
from microbench.roofline.limits import limits_for


def is_peak(run: Run) -> bool:
    """Whether the run searched for the highest rates."""
    return "peak" in run.command


def peaks_of(run: Run) -> list[Result]:
    """The best result of each precision, in the order asked; those that were measured."""
    names = dict.fromkeys(result.case.precision_name for result in run.results)
    found = [peak_of([r for r in run.results if r.case.precision_name == name]) for name in names]
    return [result for result in found if result]


def peak_table(run: Run) -> Table[Result]:
    """The highest rate of each precision: where it was reached, and at which clock and power."""
    peaks = peaks_of(run)
    unit = rate_unit(peaks)

    def measured(name: str, what: str) -> Column[Result]:
        def cell(result: Result) -> str:
            value: float | None = getattr(result.measurement, name, None)
            return "" if value is None else f"{value:,.0f}"

        return Column(what, cell, right=True, drop=2)

    def instruction(result: Result) -> str:
        roof = limits_for(result, run).roof_flop_per_s
        return fmt.per_cent(100 * (result.flop_per_s or 0.0) / roof) if roof else ""

    def tries(result: Result) -> str:
        name = result.case.precision_name
        return str(sum(r.case.precision_name == name and r.measurement is not None
                       for r in run.results))  # fmt: skip

    columns = [
        Column[Result]("precision", lambda r: fmt.clean(r.case.precision_name), bold=True),
        Column[Result](unit.name, lambda r: unit.text(r.flop_per_s or 0.0), right=True, bold=True),
        Column[Result]("±", lambda r: fmt.half_of(r.measurement), right=True, drop=4),
        Column[Result]("M x N x K", _shape, right=True),
        Column[Result]("layout", lambda r: fmt.clean(r.case.layout)),
        Column[Result]("back end", lambda r: fmt.clean(r.case.backend)),
        measured("sm_clock_mhz", "SM clock\nMHz"),
        measured("power_w", "W"),
        Column[Result]("% of the\ninstruction", instruction, right=True, drop=1),
        Column[Result]("% of the\ndatasheet", lambda r: fmt.per_cent(r.ceiling_pct), right=True,
                       drop=3),
        Column[Result]("tries", tries, right=True, drop=5),
    ]  # fmt: skip
    return Table(columns, [Row(result) for result in peaks])


def _shape(result: Result) -> str:
    return "x".join(str(result.case.dim(one)) for one in DIMENSIONS)


def peak_verdict(run: Run) -> list[str]:
    """ "fp16 reaches 812 TFLOP/s on NVIDIA H200, at 8192x16384x4096." and what was not measured."""
    peaks = peaks_of(run)
    regimes = {result.measurement.regime for result in peaks if result.measurement}
    how = f" ({', '.join(sorted(regimes))} clock)" if regimes else ""
    said = [
        f"{result.case.precision_name} reaches {_rate(result)} "
        f"at {_shape(result)} by {fmt.clean(result.case.backend)}{how}."
        for result in peaks
    ]
    return [*said, *_missing(run, peaks)]


def _rate(result: Result) -> str:
    unit = rate_unit([result])
    return f"{unit.text(result.flop_per_s or 0.0)} {unit.name}"


def _missing(run: Run, peaks: Sequence[Result]) -> list[str]:
    measured = {result.case.precision_name for result in peaks}
    reasons: dict[str, str] = {}
    for result in run.results:
        name = result.case.precision_name
        if name not in measured and result.reason:
            reasons.setdefault(name, f"{name} was not measured: {fmt.clean(result.reason)}.")
    return list(reasons.values())
