"""The types that every kind of result is made of, whichever package measured it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, Protocol

from msgspec import Meta

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
    known = [{k: v for k, v in vars(one).items() if k != "host_pace" or v} for one in processes]
    return {PROCESSES: known} if known else {}


def check_processes(processes: Sequence[ProcessTime], rounds: int, where: str) -> None:
    """ValueError unless they are of so many rounds in all, or none, and each is there once."""
    if sum(one.rounds for one in processes) not in (0, rounds):
        raise ValueError(f"{where}.processes do not account for its blocks")
    if len({one.number for one in processes}) < len(processes):
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
        counts = {one.number: one.rounds for one in self.processes} or {0: len(rounds)}
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
    the CPU took to launch meanwhile. `processes` are what each process measured, () for one.
    """

    median_s: float
    ci95_s: Interval | None = None
    sm_clock_mhz: float | None = None
    cpu_bound: bool = False
    host_pace: float | None = None
    processes: tuple[ProcessTime, ...] = ()


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
