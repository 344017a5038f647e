"""What a fleet check reads of each GPU, and which GPUs are slow.

Each GPU is compared with the median of the others of its model, so that it does not hide itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

from microbench import fmt
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
    """One GPU: what was measured on it.

    `gpu` is torch's index. `reason` says why the GPU could not be measured to the end. `others` are
    the processes that were on it before. Nothing identifies the card or the host.
    """

    gpu: int
    name: str = "unknown"
    reason: str | None = None
    readings: tuple[Reading, ...] = ()
    others: int = 0

    @property
    def where(self) -> str:
        """ "GPU 3"."""
        return f"GPU {self.gpu}"

    def reading(self, case: str) -> Reading | None:
        """What was measured of a case; None if it was not."""
        return next((r for r in self.readings if r.case == case and r.median_s), None)


@dataclass(frozen=True)
class Fleet:
    """A check: its rows, and the slow-down in per cent that counts."""

    rows: tuple[GpuRow, ...]
    threshold_pct: float

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


def fleet_to_json(fleet: Fleet, facts: Json) -> Json:
    """The file: facts of the command, then the check."""
    return {"check": CHECK, **facts, **asdict(fleet)}


def fleet_from_json(data: Json) -> Fleet:
    """The check in a file. ValueError names the invalid field."""
    fleet: Fleet = decode(Fleet, data, "")
    for i, row in enumerate(fleet.rows):
        for one in row.readings:
            low, high = one.ci95_s or (1.0, 1.0)
            if (one.median_s is not None and one.median_s <= 0) or not 0 < low <= high:
                what = f"the time of {one.case} is not above zero, or no interval"
                raise ValueError(f"rows[{i}]: {what}")
    return fleet


# ---------------------------------------------------------------- the verdict

FAILED, SLOW = KINDS = ("failed", "slow")
# A modified z-score from which a value is an outlier, and what makes the median of absolute
# deviations a standard deviation (B. Iglewicz, D. Hoaglin, "How to Detect and Handle Outliers",
# 1993).
OUTLIER, OF_NORMAL = 3.5, 1.4826
LEAST_FOR_SPREAD = 4  # other GPUs, for their spread to count


@dataclass(frozen=True)
class Finding:
    """What is wrong with a GPU: its kind (one of KINDS), and in words."""

    where: str
    kind: str
    what: str


def findings(fleet: Fleet) -> list[Finding]:
    """What is wrong, GPU by GPU."""
    return [found for row in fleet.rows for found in _of_row(row, fleet)]


def _of_row(row: GpuRow, fleet: Fleet) -> Iterator[Finding]:
    if row.reason:
        yield Finding(row.where, FAILED, row.reason)
    for one in row.readings:
        if one.status == FAILED:
            yield Finding(row.where, FAILED, f"{one.case}: {one.reason}")
    for case in fleet.cases:
        if ratio := slowdown(row, peers(row, fleet), case, fleet.threshold_pct):
            what = f"{case} takes {fmt.interval(ratio)} times as long as on the others"
            yield Finding(row.where, SLOW, what)


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
    if ratio is None or ratio.ruined_pct:
        return None
    if (ratio.ci95 or (ratio.ratio, 0))[0] <= 1 + pct / 100:
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


def mean_of(row: GpuRow, name: str) -> float | None:
    """The mean of a sensor over the cases; None where it was never read."""
    known = [value for one in row.readings if (value := getattr(one, name)) is not None]
    return fmean(known) if known else None


def throttled(row: GpuRow) -> tuple[str, ...]:
    """Every reason for which it was throttled."""
    return tuple(dict.fromkeys(word for one in row.readings for word in one.throttle))
