"""What a fleet check reads of each GPU, and which GPUs are slow or at fault, and why.

Each GPU is compared with the median of the others of its model, so that it does not hide itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any

from microbench import fmt
from microbench.device.nvml import GpuState
from microbench.results.fields import decode
from microbench.results.types import Result
from microbench.results.values import Interval, Json, Ratio

CHECK = "fleet"  # the value of "check" in the file
COPY = "memory copy"
COPIED_BYTES = 1e9
USUAL_LAYOUT = "nt"  # goes without saying


@dataclass(frozen=True)
class Reading:
    """One case on one GPU: median seconds and their 95 % interval, and the sensors meanwhile.

    `work` is FLOP of a launch, bytes for COPY. Without seconds, `status` and `reason` say why.
    """

    case: str
    work: float
    median_s: float | None = None
    ci95_s: Interval | None = None
    status: str = "ok"
    reason: str | None = None
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()

    @property
    def per_s(self) -> float | None:
        """FLOP/s, or bytes/s for COPY; None where not measured."""
        return self.work / self.median_s if self.median_s else None


@dataclass(frozen=True)
class GpuRow:
    """One GPU: what was measured on it, and NVML's state right after.

    `gpu` is torch's index on its host, `rank` that of torchrun, None without. `reason` says why the
    GPU could not be measured to the end. `others` are the processes that were on it before.
    Nothing identifies the card or the host.
    """

    gpu: int
    name: str = "unknown"
    rank: int | None = None
    reason: str | None = None
    readings: tuple[Reading, ...] = ()
    state: GpuState | None = None
    others: int = 0

    @property
    def where(self) -> str:
        """ "GPU 3", "rank 9 GPU 1"."""
        return f"GPU {self.gpu}" if self.rank is None else f"rank {self.rank} GPU {self.gpu}"

    def reading(self, case: str) -> Reading | None:
        """What was measured of a case; None if it was not."""
        return next((r for r in self.readings if r.case == case and r.median_s), None)


@dataclass(frozen=True)
class Fleet:
    """A check: its rows, the slow-down in per cent that counts, and how many GPUs there must be.

    `missing` are the ranks that sent nothing.
    """

    rows: tuple[GpuRow, ...]
    threshold_pct: float
    expected: int | None = None
    missing: tuple[int, ...] = ()

    @property
    def cases(self) -> tuple[str, ...]:
        """Every case that was measured, in order."""
        return tuple(dict.fromkeys(one.case for row in self.rows for one in row.readings))


def reading_of(result: Result) -> Reading:
    """A kernel's result as a reading."""
    case, found = result.case, result.measurement
    layout = "" if case.layout == USUAL_LAYOUT else case.layout
    words = (case.precision_name, fmt.size(case), layout, case.backend)
    label = " ".join(filter(None, words))
    if found is None:
        return Reading(label, result.flops, status=result.status, reason=result.reason)
    return Reading(
        label, result.flops, found.median_s, found.ci95_s, result.status, result.reason,
        found.sm_clock_mhz, found.power_w, found.temperature_c, found.throttle,
    )  # fmt: skip


def copy_reading(byte_per_s: float) -> Reading:
    """The bandwidth of a copy on the device."""
    return Reading(COPY, COPIED_BYTES, COPIED_BYTES / byte_per_s)


def row_to_json(row: GpuRow) -> Json:
    """The row as the file has it: without process ids."""
    return asdict(replace(row, state=replace(row.state, processes=None) if row.state else None))


def fleet_to_json(fleet: Fleet, facts: Json) -> Json:
    """The file: facts of the command, then the check."""
    rows = [row_to_json(row) for row in fleet.rows]
    return {"check": CHECK, **facts, **asdict(replace(fleet, rows=())), "rows": rows}


def fleet_from_json(data: Json) -> Fleet:
    """The check in a file. ValueError names the invalid field."""
    fleet: Fleet = decode(Fleet, data, "")
    for i, row in enumerate(fleet.rows):
        checked(row, f"rows[{i}]")
    return fleet


def row_from_json(data: Any, where: str) -> GpuRow:
    """The inverse of `row_to_json`. ValueError names the invalid field."""
    return checked(decode(GpuRow, data, where), where)


def checked(row: GpuRow, where: str) -> GpuRow:
    """The row. ValueError for times that none can be."""
    for one in row.readings:
        low, high = one.ci95_s or (1.0, 1.0)
        if (one.median_s is not None and one.median_s <= 0) or not 0 < low <= high:
            raise ValueError(f"{where}: the time of {one.case} is not above zero, or no interval")
    return row


# ---------------------------------------------------------------- the verdict

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
