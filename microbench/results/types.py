"""The types of a run: what was measured, of what, and what it means.

History of `schema_version` (readers accept this one and older):
  1  first version.
`method_version` counts changes of how numbers are taken (timer, flush, stopping rule): runs of
different methods are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from kernels.case import Case
from microbench.results.values import Entry
from microbench.results.values import Interval as Interval
from microbench.results.values import Json as Json
from microbench.results.values import Ratio as Ratio
from microbench.results.values import Warning as Warning

SCHEMA_VERSION = 1
METHOD_VERSION = 1
STATUSES = ("ok", "skipped", "failed")
TIME_DECIMALS = 10  # of a second in `times_s`: a tenth of a nanosecond, under every timer's tick

E = TypeVar("E", bound=Entry)


@dataclass(frozen=True)
class Measurement:
    """Samples of one case and the state of the device while they were taken.

    `times_s` are seconds a launch, with `timer_overhead_s` already taken off each (add it back for
    the raw readings); `blocks` says how many of them each round took, in order.
    """

    times_s: tuple[float, ...]
    blocks: tuple[int, ...]
    median_s: float
    ci95_s: Interval | None
    timer: str
    l2: str
    regime: str
    timer_overhead_s: float = 0.0
    timer_resolution_s: float = 0.0
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ceiling:
    """A limit of the device: FLOP/s of a precision (dense), bytes/s, or seconds a launch."""

    name: str
    source: str  # "datasheet" or "measured"
    precision: str | None = None
    flop_per_s: float | None = None
    byte_per_s: float | None = None
    seconds: float | None = None
    reference: str = ""


@dataclass(frozen=True)
class Result:
    """What became of one case. `flops` and `min_bytes` are of one launch.

    `rel_error` is the kernel's own, against a float64 product of the inputs as stored;
    `total_error` is against the product of the inputs before they were rounded to the precision.
    `kernels_s` are the durations of `kernels` in one profiled launch, the cache warm.
    """

    case: Case
    status: str
    reason: str | None = None
    measurement: Measurement | None = None
    flops: int = 0
    min_bytes: int = 0
    rel_error: float | None = None
    total_error: float | None = None
    variant: str | None = None
    kernels: tuple[str, ...] = ()
    kernels_s: tuple[float, ...] = ()
    tile: tuple[int, ...] | None = None
    tensor_core: bool | None = None
    speedup: Mapping[str, Ratio] = field(default_factory=dict[str, Ratio])
    vs_backend: Mapping[str, Ratio] = field(default_factory=dict[str, Ratio])
    ceiling_pct: float | None = None
    efficiency_pct: Mapping[str, float] = field(default_factory=dict[str, float])
    bound: str | None = None
    why: str | None = None
    warnings: tuple[Warning, ...] = ()

    @property
    def timed(self) -> Measurement | None:
        """Its time, when measured."""
        return self.measurement

    def caveat(self, other: Result) -> str:
        """Nothing colours a comparison of kernels but what their times say."""
        return ""

    @property
    def median_s(self) -> float | None:
        """Median seconds a launch, when measured."""
        return self.measurement.median_s if self.measurement else None

    @property
    def flop_per_s(self) -> float | None:
        """FLOP/s at the median, when measured."""
        return self.flops / self.median_s if self.median_s else None

    @property
    def byte_per_s(self) -> float | None:
        """Minimal bytes over the median time, when measured."""
        return self.min_bytes / self.median_s if self.median_s else None


@dataclass(frozen=True)
class LayerUse:
    """Where a network uses a problem: `group` is the problem's `Case.group`, `which` its pass.

    `count` times a training step, by the modules `names`.
    """

    group: str
    which: str
    count: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class NotMeasured:
    """A product of the network that no case stands for, and why; `flops` of one run."""

    what: str
    reason: str
    count: int
    flops: int


@dataclass(frozen=True)
class NetworkUse:
    """The network whose layers a run measured, at which batch and image size."""

    name: str
    batch: int
    image: int | None
    layers: tuple[LayerUse, ...]
    not_measured: tuple[NotMeasured, ...] = ()


@dataclass(frozen=True)
class PathError:
    """Errors of predicted times of cases on one path (() for all): |predicted / measured - 1|."""

    path: tuple[str, ...]
    count: int
    median: float
    p90: float


@dataclass(frozen=True)
class Pool:
    """Coefficients of the time model, by name, fitted to the cases whose path starts so."""

    path: tuple[str, ...]
    coefficients: Mapping[str, float]


@dataclass(frozen=True)
class TimeModel:
    """The model of a run's times; see `microbench.roofline.model`.

    `overall` and `by_path` are errors on cases that it was not fitted on, `fitted` the number of
    cases of the smallest of those fits. `pools` were fitted to all measured cases.
    """

    fitted: int
    overall: PathError
    by_path: tuple[PathError, ...]
    pools: tuple[Pool, ...]


@dataclass(frozen=True)
class Run:
    """Everything one command measured."""

    command: tuple[str, ...]
    started_at: str
    device: Json
    software: Json
    settings: Json = field(default_factory=dict[str, Any])
    ceilings: tuple[Ceiling, ...] = ()
    results: tuple[Result, ...] = ()
    others: tuple[Entry, ...] = ()  # of the kinds in `microbench.results.kinds`
    network: NetworkUse | None = None
    model: TimeModel | None = None  # None: not fitted, or too few cases
    finished_at: str | None = None
    schema_version: int = SCHEMA_VERSION
    method_version: int = METHOD_VERSION

    def with_results(self, results: Sequence[Result]) -> Run:
        """The run with these results added; one for a case already there takes its place.

        Without its time model, which knows nothing of them.
        """
        merged = {result.case.key: result for result in self.results}
        merged.update({result.case.key: result for result in results})
        return replace(self, results=tuple(merged.values()), model=None)

    def with_other(self, entry: Entry) -> Run:
        """The run with this result of another kind; one for a case already there is replaced."""
        merged = {known.case.key: known for known in self.others}
        merged[entry.case.key] = entry
        return replace(self, others=tuple(merged.values()))

    def with_all(self, kind: type[E], found: Sequence[E]) -> Run:
        """The run with these results of a kind in place of all it had of it."""
        rest = tuple(entry for entry in self.others if not isinstance(entry, kind))
        return replace(self, others=(*found, *rest))

    def of(self, kind: type[E]) -> tuple[E, ...]:
        """The results of a kind, in the order measured."""
        return tuple(entry for entry in self.others if isinstance(entry, kind))

    def find(self, kind: type[E], key: str) -> E | None:
        """The result of this kind for the case with this key."""
        return next((entry for entry in self.of(kind) if entry.case.key == key), None)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Everything that was measured, kernels first."""
        return (*self.results, *self.others)

    def ceiling(self, name: str, source: str, precision: str | None = None) -> Ceiling | None:
        """The ceiling of this name, source and precision, or None."""
        return next(
            (
                c
                for c in self.ceilings
                if (c.name, c.source, c.precision) == (name, source, precision)
            ),
            None,
        )

    @cached_property
    def by_key(self) -> Mapping[str, Result]:
        """The results by their case's key."""
        return {result.case.key: result for result in self.results}

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """Names of the settings (see `Op.setting`) that differ between the results."""
        from kernels import OPS  # with all kernels, so not for the types alone

        seen: dict[str, set[str]] = {}
        for result in self.results:
            for name, value in OPS[result.case.op].setting(result.case).items():
                seen.setdefault(name, set()).add(value)
        return tuple(name for name, values in seen.items() if len(values) > 1)

    @cached_property
    def by_group_flops(self) -> Mapping[str, int]:
        """FLOPs of a launch of each problem, by `Case.group`."""
        return {result.case.group: result.flops for result in self.results}

    def result(self, key: str) -> Result | None:
        """The result of the case with this key."""
        return self.by_key.get(key)
