"""A measured ceiling: one probe of `kernels.ceilings`, its types and its form in the run file."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from kernels.ceilings.plan import INSTRUCTIONS, LAUNCHES, Probe
from microbench.results.codec import check_measurement
from microbench.results.fields import decode
from microbench.results.types import STATUSES, Ceiling, Json, Measurement
from microbench.results.values import Count

OP = Probe.op


@dataclass(frozen=True)
class Tried:
    """A variant that was tried: seconds of a launch, its FLOPs or bytes, the SM clock meanwhile.

    Without seconds, `reason` says why it does not count.
    """

    label: str
    seconds: float | None = None
    work: Count = 0
    sm_clock_mhz: float | None = None
    rel_error: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class CeilingResult:
    """The result of one probe: the best variant, timed.

    `flops` and `moved_bytes` are of a launch. `nominal` is what an SM can do in a clock by the
    architecture's documents, in FLOP or bytes; None where they do not say. `sms` share the work.
    `cycles` are SM clocks of a launch, the median over blocks; None where the clock is not known.
    """

    case: Probe
    status: str
    reason: str | None = None
    measurement: Measurement | None = None
    flops: Count = 0
    moved_bytes: Count = 0
    sms: Count = 0
    nominal: float | None = None
    cycles: float | None = None
    rel_error: float | None = None
    variant: str | None = None
    tried: tuple[Tried, ...] = ()

    @property
    def timed(self) -> Measurement | None:
        """Its time, when measured."""
        return self.measurement

    def caveat(self, other: CeilingResult) -> str:
        """Names the variants where the runs found another one best."""
        return "" if self.variant == other.variant else f"{self.variant}; now {other.variant}"

    @property
    def flop_per_s(self) -> float | None:
        """FLOP/s at the median time; None where nothing is multiplied."""
        return self.flops / self.measurement.median_s if self.measurement and self.flops else None

    @property
    def byte_per_s(self) -> float | None:
        """Bytes/s at the median time; None where nothing is moved."""
        found = self.measurement
        return self.moved_bytes / found.median_s if found and self.moved_bytes else None

    @property
    def per_clock(self) -> float | None:
        """FLOP, or else bytes, per clock and SM."""
        work = self.flops or self.moved_bytes
        return work / self.cycles / self.sms if self.cycles and self.sms and work else None

    @property
    def nominal_pct(self) -> float | None:
        """`per_clock` in per cent of `nominal`."""
        return 100 * self.per_clock / self.nominal if self.per_clock and self.nominal else None


def ceiling_of(result: CeilingResult) -> Ceiling | None:
    """The ceiling that a result stands for; None where it was not measured."""
    probe, found = result.case, result.measurement
    if found is None:
        return None
    best = Ceiling(probe.name, "measured", probe.precision_name, reference=result.variant or "")
    if probe.name in LAUNCHES:
        return replace(best, seconds=found.median_s)
    if probe.name in INSTRUCTIONS:
        return replace(best, flop_per_s=result.flop_per_s, flop_per_clock=result.per_clock)
    if probe.working_set is not None:
        return None  # a curve, which the results have, and not one roof
    return replace(best, byte_per_s=result.byte_per_s)


def to_json(result: CeilingResult) -> Json:
    """The result as the schema writes it: raw values and the rates that readers want."""
    rates = {
        name: getattr(result, name)
        for name in ("flop_per_s", "byte_per_s", "per_clock", "nominal_pct")
    }
    return {"op": OP, **asdict(result), **rates}


def from_json(data: Json, where: str) -> CeilingResult:
    """The inverse of `to_json`; ValueError says which field is not what it should be."""
    result = decode(CeilingResult, data, where)
    if result.status not in STATUSES:
        raise ValueError(f"{where}.status is {result.status!r}")
    measured = result.measurement
    if (result.status == "ok") != (measured is not None):
        raise ValueError(f"{where}.status is {result.status!r}, which its measurement contradicts")
    check_measurement(measured, where)
    try:
        _ = result.case.precision
    except ValueError as error:
        raise ValueError(f"{where}.case: {error}") from None
    return result
