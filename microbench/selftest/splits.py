"""How often `compare` is wrong, and what it sees: runs of many processes, split into two runs.

A case that 2N processes measured is two runs of N processes each, of one thing at one time. So each
verdict but "same" and "cannot tell" on them is false, and a case whose times are multiplied, or
that does more work, shows how often a slow-down of known size is called one. Splits are drawn at
random and share processes, so that their pairs are not independent.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from kernels.case import Case
from microbench.errors import UserError
from microbench.results.judging import judge, learn, noise_of
from microbench.results.types import Measurement, Result, Run
from microbench.results.values import Entry, Interval, ProcessTime
from microbench.timing.processes import mean_interval, variance_between

SEED = 20261124  # the same files always give the same splits
SCALES = (1.05, 1.10, 1.20)
BASE = "base"  # a back end "module:base", beside "module:NAME" that does more work
HOLDING = {"power cap", "thermal"}  # what lowers the clock while a kernel runs


@dataclass(frozen=True)
class Falsely:
    """The verdicts on one case against itself, a row of the file.

    `sd_pct` is the standard deviation between processes of its time, in per cent; `sd_cycles_pct`
    of its clock cycles, `sd_one_speed_pct` of its time at one CPU speed. `clock_held`: the power
    cap or heat lowered a kernel's clock. `cpu_bound`: a training that CPU launch limits.
    """

    case: str
    op: str
    median_s: float
    clock_held: bool
    processes: int
    sd_pct: float
    sd_cycles_pct: float | None
    pairs: int
    faster: int
    slower: int
    same: int
    cannot_tell: int
    cpu_bound: bool = False
    sd_one_speed_pct: float | None = None


@dataclass(frozen=True)
class FalseVerdicts:
    """All pairs of two runs of `processes` processes each; `faster` and `slower` are false."""

    processes: int
    tries: int
    seed: int
    pairs: int
    faster: int
    slower: int
    same: int
    cannot_tell: int
    rows: tuple[Falsely, ...]


@dataclass(frozen=True)
class Seen:
    """How often one case made slower is called slower, a row of the file.

    `change` is the back end that does more work, or "scaled"; then all its times were multiplied.
    `slower_by_pct` is the true slow-down over all processes, `ci95_pct` its interval.
    """

    case: str
    op: str
    change: str
    scaled: bool
    median_s: float
    clock_held: bool
    slower_by_pct: float
    ci95_pct: Interval | None
    pairs: int
    slower: int
    faster: int
    cpu_bound: bool = False


@dataclass(frozen=True)
class Power:
    """How often slow-downs of known size are called slower, by runs of `processes` processes."""

    processes: int
    tries: int
    seed: int
    rows: tuple[Seen, ...]


def false_verdicts(runs: Sequence[Run], processes: int, tries: int) -> FalseVerdicts:
    """Verdicts on each run split into two of `processes` processes, `tries` times.

    UserError for a run in which no case has twice as many.
    """
    rows: list[Falsely] = []
    for run in runs:
        cases = _cases(run, processes)
        found = _verdicts(cases, {key: key for key in cases}, 1.0, processes, tries)
        rows += [_falsely(cases[key], verdicts) for key, verdicts in found.items()]
    counts = {name: sum(getattr(row, name) for row in rows)
              for name in ("pairs", "faster", "slower", "same", "cannot_tell")}  # fmt: skip
    return FalseVerdicts(processes, tries, SEED, **counts, rows=tuple(rows))


def power(runs: Sequence[Run], processes: int, tries: int) -> Power:
    """How often a slower case is called slower.

    Those of a module's back ends that do more work than its base, and all others scaled by SCALES.
    UserError for a run in which no case has twice as many processes.
    """
    rows: list[Seen] = []
    for run in runs:
        cases = _cases(run, processes)
        rows += _planted(cases, processes, tries)
        ordinary = {key: key for key, result in cases.items() if not _module(result)}
        for scale in SCALES:
            found = _verdicts(cases, ordinary, scale, processes, tries)
            rows += [
                _seen(cases[key], "scaled", True, 100 * (scale - 1), None, verdicts)
                for key, verdicts in found.items()
            ]
    return Power(processes, tries, SEED, tuple(rows))


# ---------------------------------------------------------------- two runs of one


@dataclass(frozen=True)
class Part:
    """What some of a case's processes measured, as a run of its own (`values.Timed`)."""

    median_s: float
    ci95_s: Interval | None
    sm_clock_mhz: float | None
    host_pace: float | None
    cpu_bound: bool
    processes: tuple[ProcessTime, ...]


Cases = Mapping[str, Entry]


def _cases(run: Run, processes: int) -> Cases:
    found = {
        entry.case.key: entry
        for entry in run.entries
        if entry.timed and len(entry.timed.processes) >= 2 * processes
    }
    if not found:
        raise UserError(
            f"no case was measured by {2 * processes} processes or more, enough for two runs of "
            f"{processes}; measure with --processes {2 * processes}"
        )
    return found


def _verdicts(
    cases: Cases, against: Mapping[str, str], scale: float, processes: int, tries: int
) -> dict[str, list[str]]:
    """The verdicts on each case: on `against[key]` in B, times `scale`, held against `key` in A.

    As in a run, all cases are measured by the same processes, and what is usual is learnt from all.
    """
    chance = random.Random(SEED)
    numbers = sorted({p.number for result in cases.values() for p in _processes(result)})
    found: dict[str, list[str]] = {key: [] for key in against}
    for _ in range(tries):
        drawn = chance.sample(numbers, 2 * processes)
        ours, theirs = drawn[:processes], drawn[processes:]
        pairs = {
            key: (a, b)
            for key, other in against.items()
            if (a := _part(cases[key], ours)) and (b := _part(cases[other], theirs, scale))
        }
        learnt = learn(list(pairs.values()))
        for key, (a, b) in pairs.items():
            noise = noise_of(cases[key].case.op, a, b)
            found[key].append(judge(a, b, noise, learnt).verdict)
    return found


def _processes(entry: Entry) -> tuple[ProcessTime, ...]:
    return entry.timed.processes if entry.timed else ()


def _part(entry: Entry, numbers: Sequence[int], scale: float = 1.0) -> Part | None:
    """What these processes measured, times `scale`; None where one is missing."""
    by_number = {p.number: p for p in _processes(entry)}
    if entry.timed is None or not by_number.keys() >= set(numbers):
        return None
    chosen = tuple(
        replace(by_number[n], median_s=scale * by_number[n].median_s) for n in sorted(numbers)
    )
    centre, interval = mean_interval([p.median_s for p in chosen])
    clocks = [p.sm_clock_mhz for p in chosen if p.sm_clock_mhz]
    paces = [p.host_pace for p in chosen if p.host_pace]
    return Part(
        centre, interval, fmean(clocks) if clocks else None, fmean(paces) if paces else None,
        entry.timed.cpu_bound, chosen,
    )  # fmt: skip


# ---------------------------------------------------------------- rows


def _planted(cases: Cases, processes: int, tries: int) -> Iterator[Seen]:
    """The cases of each back end that does more work than the base of its module."""
    own = {key: r.case for key, r in cases.items() if isinstance(r, Result) and _module(r)}
    bases = {_beside(case): key for key, case in own.items() if case.backend.endswith(f":{BASE}")}
    swaps: dict[str, dict[str, str]] = {}
    for key, case in own.items():
        base = bases.get(_beside(case))
        if base and base != key:
            swaps.setdefault(case.backend.partition(":")[2], {})[base] = key
    others = {key: key for key in cases if key not in own}
    for name, swap in swaps.items():
        found = _verdicts(cases, others | swap, 1.0, processes, tries)
        for base, slower in swap.items():
            ratio, interval = _ratio(cases[slower], cases[base])
            ends = interval and (100 * (interval[0] - 1), 100 * (interval[1] - 1))
            yield _seen(cases[base], name, False, 100 * (ratio - 1), ends, found[base])


def _module(entry: Entry) -> str:
    """The module of a kernel's back end "module:name"; "" for the others."""
    module, colon, _ = entry.case.backend.partition(":") if isinstance(entry, Result) else ("",) * 3
    return module if colon else ""


def _beside(case: Case) -> tuple[str, ...]:
    return case.group, case.precision_name, case.backend.partition(":")[0]


def _ratio(slower: Entry, base: Entry) -> tuple[float, Interval | None]:
    """Time over time of the processes that measured both, which they did interleaved."""
    known = {p.number: p.median_s for p in _processes(base)}
    return mean_interval(
        [p.median_s / known[p.number] for p in _processes(slower) if p.number in known]
    )


def _held(entry: Entry) -> bool:
    timed = entry.timed
    return isinstance(timed, Measurement) and bool(HOLDING & set(timed.throttle))


def _identity(entry: Entry) -> tuple[str, str, float]:
    """(case, op, seconds): the first fields of a row."""
    return entry.case.key, entry.case.op, entry.timed.median_s if entry.timed else 0.0


def _falsely(entry: Entry, verdicts: Sequence[str]) -> Falsely:
    parts = _processes(entry)
    cycles = [p.median_s * p.sm_clock_mhz for p in parts if p.sm_clock_mhz]
    speeds = [p.median_s / p.host_pace for p in parts if p.host_pace]
    limited = entry.timed is not None and entry.timed.cpu_bound
    return Falsely(
        *_identity(entry), _held(entry), len(parts),
        _sd_pct([p.median_s for p in parts]), _sd_pct(cycles) if len(cycles) > 1 else None,
        len(verdicts), *map(_counter(verdicts), ("faster", "slower", "same", "cannot tell")),
        cpu_bound=limited,
        sd_one_speed_pct=_sd_pct(speeds) if limited and len(speeds) > 1 else None,
    )  # fmt: skip


def _seen(
    entry: Entry, change: str, scaled: bool, by_pct: float, ends: Interval | None,
    verdicts: Sequence[str],
) -> Seen:  # fmt: skip
    case, op, seconds = _identity(entry)
    return Seen(
        case, op, change, scaled, seconds, _held(entry), round(by_pct, 6), ends,
        len(verdicts), *map(_counter(verdicts), ("slower", "faster")),
        cpu_bound=entry.timed is not None and entry.timed.cpu_bound,
    )  # fmt: skip


def _counter(verdicts: Sequence[str]) -> Callable[[str], int]:
    return verdicts.count


def _sd_pct(values: Sequence[float]) -> float:
    return 100 * math.sqrt(variance_between(values).value)
