"""Which GPUs of a fleet are slow or at fault, and why.

Each GPU is compared with the median of the others of its model, so that it does not hide itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from microbench import fmt
from microbench.fleet_rows import Fleet, GpuRow, Reading
from microbench.results.values import Ratio

FAILED, SLOW, FAULT = KINDS = ("failed", "slow", "fault")
# A modified z-score from which a value is an outlier, and what makes the median of absolute
# deviations a standard deviation (B. Iglewicz, D. Hoaglin, "How to Detect and Handle Outliers",
# 1993).
OUTLIER, OF_NORMAL = 3.5, 1.4826
LEAST_FOR_SPREAD = 4  # other GPUs, for their spread to count
CLOCK_SHARE = 0.98  # of the others' clock: under it the clock is a cause
WATTS_SHARE = 0.99  # of the others' power limit
WARMER_C = 10.0
HOT = ("thermal", "hw slowdown", "power brake")  # reasons to throttle that are faults by themselves


@dataclass(frozen=True)
class Finding:
    """What is wrong with a GPU: its kind (one of KINDS), and in words, the cause included."""

    where: str
    kind: str
    what: str


def findings(fleet: Fleet) -> list[Finding]:
    """What is wrong, GPU by GPU."""
    found = [Finding(f"rank {rank}", FAILED, "sent no result") for rank in fleet.missing]
    for row in fleet.rows:
        found += _of_row(row, fleet)
    if fleet.expected is not None and len(fleet.rows) < fleet.expected:
        what = f"{fmt.count(len(fleet.rows), 'GPU')} found, {fleet.expected} expected"
        found.append(Finding("fleet", FAILED, what))
    return found


def _of_row(row: GpuRow, fleet: Fleet) -> Iterator[Finding]:
    if row.reason:
        yield Finding(row.where, FAILED, row.reason)
    for one in row.readings:
        if one.status == FAILED:
            yield Finding(row.where, FAILED, f"{one.case}: {one.reason}")
    others = peers(row, fleet)
    for case in fleet.cases:
        ratio = slowdown(row, others, case, fleet.threshold_pct)
        if ratio:
            why = ", ".join(_causes(row, others, case)) or "NVML's readings show no cause"
            what = f"{case} takes {fmt.interval(ratio)} times as long as on the others: {why}"
            yield Finding(row.where, SLOW, what)
    for what in _faults(row, others):
        yield Finding(row.where, FAULT, what)


def peers(row: GpuRow, fleet: Fleet) -> list[GpuRow]:
    """The other GPUs of its model."""
    return [other for other in fleet.rows if other is not row and other.name == row.name]


def relative(row: GpuRow, others: Sequence[GpuRow], case: str) -> Ratio | None:
    """Its time over the median time of the others, with the interval of their noise.

    None where either was not measured.
    """
    own = row.reading(case)
    read = [found for other in others if (found := other.reading(case))]
    if own is None or not read:
        return None
    centre = _log(own) - median(map(_log, read))
    halves = [half for one in read if (half := _half(one)) is not None]
    half = _half(own)
    if half is None or not halves:
        return Ratio(math.exp(centre), None)
    half = math.hypot(half, median(halves))
    return Ratio(math.exp(centre), (math.exp(centre - half), math.exp(centre + half)))


def slowdown(row: GpuRow, others: Sequence[GpuRow], case: str, pct: float) -> Ratio | None:
    """The ratio where the GPU is an outlier: its whole interval is more than `pct` per cent above
    1, and beyond OUTLIER deviations of the others, where there are enough of them. Else None.
    """
    ratio = relative(row, others, case)
    if ratio is None or (ratio.ci95 or (ratio.ratio, 0))[0] <= 1 + pct / 100:
        return None
    logs = [_log(found) for other in others if (found := other.reading(case))]
    if len(logs) < LEAST_FOR_SPREAD:
        return ratio
    spread = OF_NORMAL * median(abs(one - median(logs)) for one in logs)
    return ratio if math.log(ratio.ratio) > OUTLIER * spread else None


def _log(reading: Reading) -> float:
    assert reading.median_s
    return math.log(reading.median_s)


def _half(reading: Reading) -> float | None:
    """Half of the interval, of the logarithm."""
    return math.log(reading.ci95_s[1] / reading.ci95_s[0]) / 2 if reading.ci95_s else None


# ---------------------------------------------------------------- causes


def _causes(row: GpuRow, others: Sequence[GpuRow], case: str) -> Iterator[str]:
    clock, usual = _own_and_usual(row, others, lambda r: _in_case(r, case, "sm_clock_mhz"))
    if clock and usual and clock < CLOCK_SHARE * usual:
        yield f"SM clock {clock:.0f} MHz (others {usual:.0f})"
    theirs = {word for other in others for word in throttled(other)}
    if words := [word for word in throttled(row) if word not in theirs]:
        yield " and ".join(words)
    if limit := _lower_limit(row, others):
        yield limit
    warm, usual = _own_and_usual(row, others, lambda r: _in_case(r, case, "temperature_c"))
    if warm is not None and usual is not None and warm >= usual + WARMER_C:
        yield f"{warm:.0f} °C (others {usual:.0f})"
    if row.others:
        yield f"{fmt.count(row.others, 'other process', 'other processes')} on it"
    if row.state and row.state.ecc_corrected:
        yield f"{row.state.ecc_corrected} corrected ECC errors"


def _faults(row: GpuRow, others: Sequence[GpuRow]) -> Iterator[str]:
    """What is wrong however fast it is: by itself, or unlike the others."""
    state = row.state
    if words := [word for word in throttled(row) if word in HOT]:
        yield f"throttled: {', '.join(words)}"
    if state is None:
        return
    if state.ecc_uncorrected:
        yield f"{state.ecc_uncorrected} uncorrected ECC errors since the driver was loaded"
    if state.rows_failed:
        yield "a bad row of its memory could not be replaced: replace the GPU"
    if state.rows_pending:
        yield "a bad row of its memory is replaced at the next reset: reset the GPU"
    if state.pcie_width and state.pcie_width_max and state.pcie_width < state.pcie_width_max:
        yield f"PCIe x{state.pcie_width} of x{state.pcie_width_max}"
    links = max((r.state.nvlinks or 0 for r in others if r.state), default=0)
    if (state.nvlinks or 0) < links:
        yield f"{fmt.count(state.nvlinks or 0, 'NVLink')} active (others {links})"
    modes = [r.state.ecc for r in others if r.state and r.state.ecc is not None]
    if state.ecc is False and any(modes):
        yield "ECC is off (on elsewhere)"
    if limit := _lower_limit(row, others):
        yield limit


def _lower_limit(row: GpuRow, others: Sequence[GpuRow]) -> str:
    limit, usual = _own_and_usual(row, others, lambda r: r.state and r.state.power_limit_w)
    lower = limit is not None and usual is not None and limit < WATTS_SHARE * usual
    return f"power limit {limit:.0f} W (others {usual:.0f})" if lower else ""


def _own_and_usual(
    row: GpuRow, others: Sequence[GpuRow], read: Callable[[GpuRow], float | None]
) -> tuple[float | None, float | None]:
    """Its value, and the median of the others'."""
    known = [value for other in others if (value := read(other)) is not None]
    return read(row), median(known) if known else None


def _in_case(row: GpuRow, case: str, name: str) -> float | None:
    """The sensor during the case; where it was not read then (COPY), its mean over all cases."""
    own = row.reading(case)
    value: float | None = getattr(own, name) if own else None
    return mean_of(row, name) if value is None else value


def mean_of(row: GpuRow, name: str) -> float | None:
    """The mean of a sensor over the cases; None where it was never read."""
    known = [value for one in row.readings if (value := getattr(one, name)) is not None]
    return fmean(known) if known else None


def throttled(row: GpuRow) -> tuple[str, ...]:
    """Every reason for which it was throttled."""
    return tuple(dict.fromkeys(word for one in row.readings for word in one.throttle))
