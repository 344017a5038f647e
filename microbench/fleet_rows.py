"""What a fleet check reads of each GPU: the types of its file, and their form in JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from microbench import fmt
from microbench.device.nvml import GpuState
from microbench.results.fields import decode
from microbench.results.types import Result
from microbench.results.values import Interval, Json

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
