"""The types of a run: what was measured, of what, and what it means.

History of `schema_version` (readers accept this one and older):
  1  first version.
  2  `kind` and `options` say what was asked, which before stood in the words of `command` alone.
`method_version` counts changes of how numbers are taken (timer, flush, stopping rule), of which
docs/method.md has the history. A result is not compared across a version that changed how it is
measured (`Entry.changed_in`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from statistics import fmean
from typing import Annotated, Any, Protocol, TypeVar

from msgspec import Meta

from kernels.case import Case
from kernels.tune import Choice
from microbench.timing import HEAVY_S, LARGE_FLOPS, SUSTAINED

Json = dict[str, Any]
Interval = tuple[float, float]
# Numbers of a file: what else is read is refused. Integers from 2**63 on are no sizes or counts.
Positive = Annotated[float, Meta(gt=0)]
Amount = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
AtLeastOne = Annotated[int, Meta(ge=1, le=2**63 - 1)]
NOT_EMPTY = Meta(min_length=1)
RUINED_PCT = 30.0  # half of an interval: no verdict rests on a figure beyond it
PROCESSES = "processes"  # the field of a run file, which older ones lack, and those of one process


@dataclass(frozen=True)
class Ratio:
    """A speed-up, the time of the other over the own (2.0: twice as fast), without a unit.

    `ci95` is its 95 % confidence interval, None where one round was measured.
    """

    ratio: float
    ci95: Interval | None

    @property
    def no_difference(self) -> bool:
        """Whether the interval contains 1; False where there is none."""
        return self.ci95 is not None and self.ci95[0] <= 1 <= self.ci95[1]

    def scaled(self, by: float) -> Ratio:
        """The ratio and its interval times `by`."""
        ends = self.ci95
        return Ratio(self.ratio * by, ends and (ends[0] * by, ends[1] * by))

    @property
    def ruined_pct(self) -> float:
        """Half of its interval in per cent where that is beyond RUINED_PCT; 0 within, or for none.

        The half is a factor, either way: a ratio and its inverse are ruined together.
        """
        if self.ci95 is None:
            return 0.0
        low, high = self.ci95
        pct = 100 * (max(high / self.ratio, self.ratio / low if low > 0 else math.inf) - 1)
        return pct if pct > RUINED_PCT else 0.0


@dataclass(frozen=True)
class Warning:
    """What makes a number unreliable: the symptom with its value, the cause, and the remedy."""

    symptom: str
    cause: str
    remedy: str


@dataclass(frozen=True)
class ProcessTime:
    """What the process of this `number` (from 0) measured of a case.

    The median of its samples in seconds, over `rounds` blocks, and the mean SM clock in MHz
    meanwhile, None where it is not known. `host_pace` is the CPU's slowdown meanwhile, of training
    steps.
    """

    number: Count
    rounds: AtLeastOne
    median_s: Positive
    sm_clock_mhz: Amount | None = None
    host_pace: Amount | None = None


def processes_json(processes: Sequence[ProcessTime]) -> Json:
    """The field of a run file; nothing for one process. What is not known is left out."""
    known = [{k: v for k, v in vars(p).items() if k != "host_pace" or v} for p in processes]
    return {PROCESSES: known} if known else {}


def check_processes(processes: Sequence[ProcessTime], rounds: int, where: str) -> None:
    """ValueError unless they are of so many rounds in all, or none, and each is there once."""
    if sum(process.rounds for process in processes) not in (0, rounds):
        raise ValueError(f"{where}.processes do not account for its blocks")
    if len({process.number for process in processes}) < len(processes):
        raise ValueError(f"{where}.processes has a number twice")


class Sampled:
    """Samples in blocks, a block a round, of one process or several: of a kernel, or of steps.

    Its fields are those of the dataclasses that derive from it: `times_s` in seconds, `blocks` how
    many of them each round has, `median_s` of one process the median, of several the geometric mean
    of theirs, `processes` what each measured, () for one.
    """

    times_s: tuple[float, ...]
    blocks: tuple[int, ...]
    median_s: float
    processes: tuple[ProcessTime, ...]

    @property
    def blocks_s(self) -> list[tuple[float, ...]]:
        """The times in seconds, round by round."""
        ends = accumulate(self.blocks)
        return [self.times_s[end - n : end] for end, n in zip(ends, self.blocks, strict=True)]

    @property
    def by_process(self) -> Mapping[int, list[tuple[float, ...]]]:
        """The rounds of each process, by its number; all are of process 0 where there is one."""
        rounds = self.blocks_s
        counts = {process.number: process.rounds for process in self.processes} or {0: len(rounds)}
        ends = accumulate(counts.values())
        return {
            number: rounds[end - count : end]
            for (number, count), end in zip(counts.items(), ends, strict=True)
        }


class AnyCase(Protocol):
    """The identity of what was measured, of whatever kind."""

    @property
    def op(self) -> str:
        """The kind, as the run file names it."""
        ...

    @cached_property
    def key(self) -> str:
        """Stable identity: the same text in every run of every version."""
        ...


@dataclass(frozen=True)
class Timed:
    """What a verdict needs to know of a case in one run: the median seconds per launch, step or
    image, with its 95 % interval, None where it is not known.

    `sm_clock_mhz` is the mean SM clock meanwhile, `cpu_bound` whether the CPU's launching limits
    it, so that its time is that of the CPU, and `host_pace` how many times longer than at pace 1
    the CPU took to launch meanwhile. `processes` are what each process measured, () for one, and
    `cycles` the clock cycles of each round of one, () where they are not known.
    """

    median_s: float
    ci95_s: Interval | None = None
    sm_clock_mhz: float | None = None
    cpu_bound: bool = False
    host_pace: float | None = None
    processes: tuple[ProcessTime, ...] = ()
    cycles: tuple[float, ...] = ()


class Entry(Protocol):
    """One result of a run, of whatever kind."""

    @property
    def case(self) -> AnyCase:
        """What was measured."""
        ...

    @property
    def status(self) -> str:
        """ "ok", "skipped", "failed", or a kind's own."""
        ...

    @property
    def reason(self) -> str | None:
        """Why it was not measured; None where it was."""
        ...

    @property
    def timed(self) -> Timed | None:
        """Its time; None if not measured."""
        ...

    @property
    def changed_in(self) -> tuple[int, ...]:
        """The versions of the method that changed how such a result is measured."""
        ...

    def caveat(self, other: Any) -> str:
        """Why a comparison with the same case in another run is less certain; "" for nothing."""
        ...


SCHEMA_VERSION = 2
METHOD_VERSION = 4
STATUSES = ("ok", "skipped", "failed")
TIME_DECIMALS = 10  # of a second in `times_s`: a tenth of a nanosecond, under every timer's tick
# How the reason begins where a result was right when it was checked, and its times are not true.
TURNED_WRONG = "right at first, later a wrong result"
LEFT_WORK = "its result was not complete when its time ended"
TOO_FAST = "faster than this card can be"

E = TypeVar("E", bound=Entry)


@dataclass(frozen=True)
class Measurement(Sampled):
    """Samples of one case and the state of the device while they were taken.

    `times_s` are seconds per launch, with `timer_overhead_s` subtracted from each (add it back for
    the raw readings). `blocks` is the number of samples per round, in order. `ci95_s` is the 95 %
    confidence interval of the median in seconds, None for fewer than two rounds. Of several
    `processes` the blocks stand one after another, `median_s` is the geometric mean of their
    medians, and `ci95_s` the interval of that mean. Clock, power and temperature are means over the
    samples, None where the device does not report them; `energy_j` is joules per launch. `timer`,
    `l2` and `regime` are values of the options of these names. `clocks_mhz` are the SM clocks of
    the rounds of one process, () where one is not known.
    """

    times_s: Annotated[tuple[float, ...], NOT_EMPTY]
    blocks: tuple[Count, ...]
    median_s: Positive
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
    processes: tuple[ProcessTime, ...] = ()
    clocks_mhz: tuple[Positive, ...] = ()

    @property
    def cycles(self) -> tuple[float, ...]:
        """The clock cycles of a launch in each round, of the middle half of its samples: short
        kernels have two usual times, between which a median jumps. () where they are not known.
        """
        if not self.clocks_mhz:
            return ()
        pairs = zip(map(sorted, self.blocks_s), self.clocks_mhz, strict=True)
        return tuple(
            1e6 * clock * fmean(times[len(times) // 4 : len(times) - len(times) // 4])
            for times, clock in pairs
        )


@dataclass(frozen=True)
class Ceiling:
    """A peak of the device: FLOP/s of a precision (dense), bytes/s, or seconds per launch.

    `reference` is the source of a datasheet value, what a measured one was measured with.
    `flop_per_clock` is per SM, for what was measured clock by clock.
    """

    name: str
    source: str  # "datasheet" or "measured"
    precision: str | None = None
    flop_per_s: Positive | None = None
    byte_per_s: Positive | None = None
    seconds: Positive | None = None
    reference: str = ""
    flop_per_clock: Positive | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """What it is a ceiling of; a run has one of each."""
        return self.name, self.source, self.precision


@dataclass(frozen=True)
class Result:
    """The result of one case: its measurement, or the `reason` why there is none.

    `flops` and `min_bytes` are per launch. Errors are relative (norm of the difference over norm of
    the reference, in float64): `rel_error` for the inputs as stored, `total_error` for the inputs
    before they were rounded to the precision. `kernels_s` are the durations in seconds of `kernels`
    in one profiled launch with a warm cache. `variant` is the back end's configuration, `tuned`
    whether that was tuned for this very case (None: nothing is tuned, or an older file, see
    `microbench.verdict`), `choice` how it was chosen (None likewise). `tile` is (M, N, K),
    `tiles` how many of them are launched where they do not cover M x N once.
    `speedup` has the baselines by precision, `vs_backend` the other back ends in the same
    precision; both are times faster.
    `ceiling_pct` is per cent of the datasheet's peak, else of the measured one. `bound` is the
    bottleneck, `why` its reason with numbers (`microbench.roofline.explain`).
    """

    case: Case
    status: str
    reason: str | None = None
    measurement: Measurement | None = None
    flops: Count = 0
    min_bytes: Count = 0
    rel_error: Amount | None = None
    total_error: Amount | None = None
    variant: str | None = None
    tuned: bool | None = None
    choice: Choice | None = None
    kernels: tuple[str, ...] = ()
    kernels_s: tuple[Amount, ...] = ()
    tile: tuple[AtLeastOne, ...] | None = None
    tiles: AtLeastOne | None = None
    tensor_core: bool | None = None
    speedup: Mapping[str, Ratio] = field(default_factory=dict[str, Ratio])
    vs_backend: Mapping[str, Ratio] = field(default_factory=dict[str, Ratio])
    ceiling_pct: float | None = None
    efficiency_pct: Mapping[str, float] = field(default_factory=dict[str, float])
    bound: str | None = None
    why: str | None = None
    warnings: tuple[Warning, ...] = ()

    @property
    def turned_wrong(self) -> bool:
        """Whether it failed because its result was right at first and its times are not true."""
        untrue = TURNED_WRONG, LEFT_WORK, TOO_FAST
        return self.status == "failed" and (self.reason or "").startswith(untrue)

    @property
    def timed(self) -> Timed | None:
        """Its time; None if not measured. The CPU's is not in it: kernels wait behind a gate."""
        measurement = self.measurement
        if measurement is None:
            return None
        return Timed(
            measurement.median_s, measurement.ci95_s, measurement.sm_clock_mhz,
            processes=measurement.processes, cycles=measurement.cycles,
        )  # fmt: skip

    @property
    def heavy(self) -> bool:
        """Whether its own time or arithmetic makes its comparison a heavy one, on a GPU at its
        sustained clock. A slower variant beside it can do so too, which a result does not know.
        """
        timed = self.measurement
        if timed is None or timed.regime != SUSTAINED:
            return False
        return timed.median_s >= HEAVY_S or self.flops >= LARGE_FLOPS

    @property
    def changed_in(self) -> tuple[int, ...]:
        """Version 3 measures heavy comparisons otherwise."""
        return (3,) if self.heavy else ()

    def caveat(self, other: Result) -> str:
        """Always "": only their times decide a comparison of kernels."""
        return ""

    @property
    def median_s(self) -> float | None:
        """Median seconds per launch; None if not measured."""
        return self.measurement.median_s if self.measurement else None

    @property
    def ruined_pct(self) -> float:
        """Half of its time's interval in per cent where that is too wide for a verdict, else 0."""
        return Ratio(self.timed.median_s, self.timed.ci95_s).ruined_pct if self.timed else 0.0

    @property
    def flop_per_s(self) -> float | None:
        """FLOP/s at the median time; None if not measured."""
        return self.flops / self.median_s if self.median_s else None

    @property
    def byte_per_s(self) -> float | None:
        """`min_bytes` over the median time, in bytes/s; None if not measured."""
        return self.min_bytes / self.median_s if self.median_s else None


def settings_of(case: Case) -> Mapping[str, str]:
    """The properties of a case beside size, precision and back end, with the input data."""
    return {**case.problem.setting, "data": case.data}


@dataclass(frozen=True)
class LayerUse:
    """Where a network uses a problem: `group` is the problem's `Case.group`, `which` its pass.

    A training step runs it `count` times, for the modules `names`.
    """

    group: str
    which: str
    count: AtLeastOne
    names: tuple[str, ...]


@dataclass(frozen=True)
class NotMeasured:
    """A GEMM, convolution or attention of the network that has no case, and why.

    A step runs it `count` times; `flops` are the FLOPs of one run.
    """

    what: str
    reason: str
    count: AtLeastOne
    flops: Count


@dataclass(frozen=True)
class NetworkUse:
    """The network whose layers a run measured: images per batch, `image` pixels a side.

    `image` is None where the user's function brought its own input.
    """

    name: str
    batch: AtLeastOne
    image: AtLeastOne | None
    layers: tuple[LayerUse, ...]
    not_measured: tuple[NotMeasured, ...] = ()


@dataclass(frozen=True)
class Run:
    """Everything that one command measured: the contents of a run file.

    `kind` is the command ("gemm", "train"), "" where it is not known; `options` are those that it
    was given, by the names of its fields and without local paths, {} in files of schema 1.
    `command` are its words, for people.
    `started_at` and `finished_at` are ISO 8601 in UTC; `finished_at` is None for an unfinished run.
    `settings` are the options of the command and the state of the machine (`environment`, `load`).
    """

    command: tuple[str, ...]
    started_at: str
    device: Json
    software: Json
    kind: str = ""
    options: Json = field(default_factory=dict[str, Any])
    settings: Json = field(default_factory=dict[str, Any])
    ceilings: tuple[Ceiling, ...] = ()
    results: tuple[Result, ...] = ()
    others: tuple[Entry, ...] = ()  # of the kinds in `microbench.results.kinds`
    network: NetworkUse | None = None
    finished_at: str | None = None
    schema_version: int = SCHEMA_VERSION
    method_version: int = METHOD_VERSION

    def with_results(self, results: Sequence[Result]) -> Run:
        """The run with these results added; one for a known case replaces it."""
        merged = {result.case.key: result for result in self.results}
        merged.update({result.case.key: result for result in results})
        return replace(self, results=tuple(merged.values()))

    def with_other(self, entry: Entry) -> Run:
        """The run with this result of another kind added; one for a known case replaces it."""
        merged = {known.case.key: known for known in self.others}
        merged[entry.case.key] = entry
        return replace(self, others=tuple(merged.values()))

    def of(self, kind: type[E]) -> tuple[E, ...]:
        """The results of a kind, in the order in which they were measured."""
        return tuple(entry for entry in self.others if isinstance(entry, kind))

    def find(self, kind: type[E], key: str) -> E | None:
        """The result of this kind for the case with this key; None if there is none."""
        return next((entry for entry in self.of(kind) if entry.case.key == key), None)

    @property
    def device_name(self) -> str:
        """Of the device that was measured."""
        return str(self.device.get("name") or "unknown device")

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All results, kernels first."""
        return (*self.results, *self.others)

    def ceiling(self, name: str, source: str, precision: str | None = None) -> Ceiling | None:
        """The ceiling of this name, source and precision, or None."""
        wanted = (name, source, precision)
        return next((c for c in self.ceilings if (c.name, c.source, c.precision) == wanted), None)

    @cached_property
    def by_key(self) -> Mapping[str, Result]:
        """The results by their case's key."""
        return {result.case.key: result for result in self.results}

    @cached_property
    def varying(self) -> tuple[str, ...]:
        """Names of the settings that differ between the results."""
        seen: dict[str, set[str]] = {}
        for result in self.results:
            for name, value in settings_of(result.case).items():
                seen.setdefault(name, set()).add(value)
        return tuple(name for name, values in seen.items() if len(values) > 1)
