"""python -m tests.validation.splits FILE compare|power RUN...: is the verdict of `compare` right?

A case that 2N processes measured is two runs of N processes each, of one thing at one time. So each
verdict but "same" and "cannot tell" on them is false (compare), and a case whose times are
multiplied, or that does more work, shows how often a slow-down of known size is called one (power).
Splits are drawn at random and share processes, so that their pairs are not independent.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from kernels.case import Case
from microbench.errors import UserError
from microbench.results.comparison import fit_priors, judge, noise_of
from microbench.results.runfile import read_run
from microbench.results.types import Entry, ProcessTime, Result, Run, Timed
from microbench.timing.stats import mean_interval, variance_between
from tests.validation.evidence import parser_of, says_mistakes, write

SEED = 20261124  # the same files always give the same splits
SPLITS, PROCESSES = 100, 3
SCALES = (1.05, 1.10, 1.20)
BASE = "base"  # a back end "module:base", beside "module:NAME" that does more work
HOLDING = {"power cap", "thermal"}  # what lowers the clock while a kernel runs
VERDICTS = ("faster", "slower", "same", "cannot tell")


Row = dict[str, Any]


@says_mistakes
def main(arguments: list[str] | None = None) -> int:
    """Split, judge, print and write. 2 for runs that are none, or not alike."""
    parser = parser_of("splits", __doc__)
    parser.add_argument("check", choices=("compare", "power"))
    parser.add_argument("runs", type=Path, nargs="+", help="of twice as many processes")
    parser.add_argument("--tries", type=int, default=SPLITS)
    parser.add_argument("--processes", type=int, default=PROCESSES, help="of each half")
    given = parser.parse_args(arguments)
    check = {"compare": false_verdicts, "power": power}[given.check]
    runs = [read_run(path) for path in given.runs]
    # Each is split by itself, so cards of one model may differ.
    runs = [replace(run, device={**run.device, "card": None}) for run in runs]
    for path, run in zip(given.runs, runs, strict=True):
        for name in ("device", "software", "method_version"):
            if getattr(run, name) != getattr(runs[0], name):
                raise UserError(f"{path} is of another {name} than {given.runs[0]}")
    rows = check(runs, given.processes, given.tries)
    names = ("pairs", "faster", "slower", "same", "cannot_tell")
    counts = {name: sum(row[name] for row in rows) for name in names}
    print(", ".join(f"{count:,} {name}" for name, count in counts.items()))
    facts = {
        "finished_at": max(run.finished_at or run.started_at for run in runs),
        "device": runs[0].device, "software": runs[0].software,
        "method_version": runs[0].method_version,
        "runs": [
            {"file": path.name, "command": list(run.command), "started_at": run.started_at,
             "finished_at": run.finished_at}
            for path, run in zip(given.runs, runs, strict=True)
        ],
        "processes": given.processes, "tries": given.tries, "seed": SEED,
        **counts, "rows": rows,
    }  # fmt: skip
    words = ["tests.validation.splits", given.check, *(path.name for path in given.runs),
             "--processes", str(given.processes), "--tries", str(given.tries)]  # fmt: skip
    write(given.file, given.check, words, facts)
    return 0


def false_verdicts(runs: Sequence[Run], processes: int, tries: int) -> list[Row]:
    """Verdicts on each case against itself, of runs split into two of `processes` processes each.

    `sd_pct` is the standard deviation between processes of its time, in per cent; `sd_cycles_pct`
    of its clock cycles, `sd_one_speed_pct` of its time at one CPU speed. UserError for a run in
    which no case has twice as many processes.
    """
    rows: list[Row] = []
    for run in runs:
        cases = _cases(run, processes)
        found = _verdicts(cases, {key: key for key in cases}, 1.0, processes, tries)
        for key, verdicts in found.items():
            row, parts = _row(cases[key], verdicts), _processes(cases[key])
            cycles = [p.median_s * p.sm_clock_mhz for p in parts if p.sm_clock_mhz]
            speeds = [p.median_s / p.host_pace for p in parts if p.host_pace and row["cpu_bound"]]
            times = [p.median_s for p in parts]
            spread = {"sd_pct": times, "sd_cycles_pct": cycles, "sd_one_speed_pct": speeds}
            more = {name: _sd_pct(values) for name, values in spread.items()}
            rows.append({**row, "processes": len(parts), **more})
    return rows


def power(runs: Sequence[Run], processes: int, tries: int) -> list[Row]:
    """How often a case made slower is called slower.

    Those of a module's back ends that do more work than its base, and all others with their times
    multiplied by SCALES (`scaled`). `slower_by_pct` is the true slow-down over all processes,
    `ci95_pct` its interval. UserError for a run in which no case has twice as many processes.
    """
    rows: list[Row] = []
    for run in runs:
        cases = _cases(run, processes)
        rows += _more_work(cases, processes, tries)
        ordinary = {key: key for key, result in cases.items() if not _module(result)}
        for scale in SCALES:
            found = _verdicts(cases, ordinary, scale, processes, tries)
            change = {"change": "scaled", "scaled": True, "slower_by_pct": round(100 * scale - 100),
                      "ci95_pct": None}  # fmt: skip
            rows += [_row(cases[key], verdicts) | change for key, verdicts in found.items()]
    return rows


# ---------------------------------------------------------------- two runs of one


Cases = Mapping[str, Entry]


def _cases(run: Run, processes: int) -> Cases:
    found = {e.case.key: e for e in run.entries if len(_processes(e)) >= 2 * processes}
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
        priors = fit_priors(list(pairs.values()))
        for key, (a, b) in pairs.items():
            noise = noise_of(cases[key].case.op, a, b)
            found[key].append(judge(a, b, noise, priors).verdict)
    return found


def _processes(entry: Entry) -> tuple[ProcessTime, ...]:
    return entry.timed.processes if entry.timed else ()


def _part(entry: Entry, numbers: Sequence[int], scale: float = 1.0) -> Timed | None:
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
    return Timed(
        centre, interval, fmean(clocks) if clocks else None, entry.timed.cpu_bound,
        fmean(paces) if paces else None, chosen,
    )  # fmt: skip


# ---------------------------------------------------------------- rows


def _more_work(cases: Cases, processes: int, tries: int) -> Iterator[Row]:
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
            known = {p.number: p.median_s for p in _processes(cases[base])}
            ratio, interval = mean_interval(  # of those that measured both, which they interleaved
                [p.median_s / known[p.number] for p in _processes(cases[slower])
                 if p.number in known]
            )  # fmt: skip
            ends = interval and (100 * (interval[0] - 1), 100 * (interval[1] - 1))
            by_pct = round(100 * (ratio - 1), 6)
            change = {"change": name, "scaled": False, "slower_by_pct": by_pct, "ci95_pct": ends}
            yield _row(cases[base], found[base]) | change


def _module(entry: Entry) -> str:
    """The module of a kernel's back end "module:name"; "" for the others."""
    module, colon, _ = entry.case.backend.partition(":") if isinstance(entry, Result) else ("",) * 3
    return module if colon else ""


def _beside(case: Case) -> tuple[str, ...]:
    return case.group, case.precision_name, case.backend.partition(":")[0]


def _row(entry: Entry, verdicts: Sequence[str]) -> Row:
    """The case and how often it got each verdict.

    `clock_held`: the power cap or heat lowered a kernel's clock. `cpu_bound`: a training that CPU
    launch limits.
    """
    timed = entry.timed
    measured = entry.measurement if isinstance(entry, Result) else None
    held = measured is not None and bool(HOLDING & set(measured.throttle))
    counts = {name.replace(" ", "_"): verdicts.count(name) for name in VERDICTS}
    return {
        "case": entry.case.key, "op": entry.case.op, "median_s": timed.median_s if timed else 0.0,
        "clock_held": held, "cpu_bound": timed is not None and timed.cpu_bound,
        "pairs": len(verdicts), **counts,
    }  # fmt: skip


def _sd_pct(values: Sequence[float]) -> float | None:
    return 100 * math.sqrt(variance_between(values).value) if len(values) > 1 else None


if __name__ == "__main__":
    sys.exit(main())
