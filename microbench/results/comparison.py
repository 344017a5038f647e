"""Compares two runs case by case: B is faster, slower, same, cannot tell or not measured; and why.

Runs happen at different times on different allocations of memory and at different temperatures, so
the interval of one process is too narrow for the ratio of two. Where both runs measured a case in
several processes, the interval is of the ratio of the means over processes, with a variance between
processes that is learnt from all cases of both runs (`microbench.timing.stats`), and a verdict
needs it beyond LEAST_PCT. That of a kernel in one process has in it what kernels like it were seen
to differ by, and must be beyond NOISE_PCT. For trainings and loaders of one process a `Noise`
stands for what is not known. Where both runs know their clock, a difference must be one in cycles
too; and where a power limit varies the clock, so that no difference is seen in time, kernels are
the same that are so in cycles. Steps that the CPU limits are compared as they would be at one CPU
speed. Where the figures come from: docs/method.md, "Comparing runs".
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kernels.op import OWN
from microbench.errors import UserError
from microbench.results import types
from microbench.results.kinds import kinds
from microbench.results.types import AnyCase, Entry, Interval, ProcessTime, Ratio, Run, Timed
from microbench.timing import stats

NOT_MEASURED = "not measured"  # in one of the runs, or both
VERDICTS = ("faster", "slower", "same", "cannot tell", NOT_MEASURED)
MUST_AGREE = ("timer", "l2", "regime")
CARD = "card"  # the device fact that tells two cards of one model apart
SAME_CARD, ANOTHER_CARD = "same card", "another card"
MAX_THRESHOLD_PCT = 1000.0
MOST_FACTS = 3  # of runs without a case in common
OPS = {"gemm": "GEMMs", "conv": "convolutions", "linear": "linear layers", "attention": "attention",
       "train": "trainings", "load": "loaders"}  # fmt: skip


@dataclass(frozen=True)
class CompareRow:
    """One case in both runs. `ratio` is time in A over time in B: above 1, B is faster.

    `a_s` and `b_s` are medians in seconds. `threshold_pct` is the difference, in per cent, that the
    whole interval must lie beyond.
    `reason` says in a few words why this verdict, `note` has the details.
    """

    key: str
    case: AnyCase
    verdict: str
    ratio: float | None
    ci95: tuple[float, float] | None
    a_s: float | None
    b_s: float | None
    note: str = ""
    reason: str = ""
    threshold_pct: float | None = None
    processes: tuple[int, int] = (1, 1)  # that measured it in A and B

    @property
    def guessed(self) -> bool:
        """Whether the threshold stands for what one process cannot know."""
        return self._of_one and self.case.op not in stats.PRIORS

    @property
    def widened(self) -> bool:
        """Whether the interval has in it what processes usually differ by."""
        return self._of_one and self.case.op in stats.PRIORS

    @property
    def _of_one(self) -> bool:
        return self.threshold_pct is not None and min(self.processes) < 2


@dataclass(frozen=True)
class Comparison:
    """The comparison of run B with run A. `differences` are facts that differ.

    `missing` are those of `only_a` that A has a time of.
    `card` is SAME_CARD or ANOTHER_CARD, None where one run does not know its card. `threshold_pct`
    is what the user asked for in place of the noise of two runs.
    """

    differences: list[str]
    rows: list[CompareRow]
    only_a: list[AnyCase]
    only_b: list[AnyCase]
    card: str | None = None
    threshold_pct: float | None = None
    missing: Sequence[AnyCase] = ()

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON: counts, noise in per cent, one row per case."""
        names = (
            "key", "verdict", "ratio", "ci95", "a_s", "b_s", "note", "reason", "threshold_pct",
            "processes",
        )  # fmt: skip
        return {
            "counts": {verdict: self.count(verdict) for verdict in VERDICTS},
            "noise_pct": NOISE_PCT,
            **{f"{op}_noise_pct": kind.noise_pct for op, kind in kinds().items()},
            "threshold_pct": self.threshold_pct,
            "card": self.card,
            "differences": self.differences,
            "only_a": [case.key for case in self.only_a],
            "only_b": [case.key for case in self.only_b],
            "rows": [{name: getattr(row, name) for name in names} for row in self.rows],
        }

    def count(self, verdict: str) -> int:
        """How many rows have this verdict."""
        return sum(row.verdict == verdict for row in self.rows)


def compare(a: Run, b: Run, threshold_pct: float | None = None) -> Comparison:
    """Compare run B with run A, case by case.

    `threshold_pct` replaces the noise of two runs, in per cent, for all kinds. A case that is
    measured otherwise since one of the runs is "cannot tell". UserError when that is all they have
    in common, when they have nothing in common, and when they were measured under other conditions
    (MUST_AGREE).
    """
    _refuse_other_settings(a, b)
    in_a, in_b = ({entry.case.key: entry for entry in run.entries} for run in (a, b))
    common = [(found, in_b[key]) for key, found in in_a.items() if key in in_b]
    priors = fit_priors([(x.timed, y.timed) for x, y in common if x.timed and y.timed])
    if not common:
        raise UserError(f"the runs have no case in common{_apart(in_a, in_b)}")
    changed = [method_changed(x, a.method_version, b.method_version) for x, _ in common]
    if all(changed):
        raise UserError(
            f"the runs were measured by different methods (method_version {a.method_version} and "
            f"{b.method_version}); measure one of them again"
        )
    rows = [
        _row(x, y, threshold_pct, priors, changed=other)
        for (x, y), other in zip(common, changed, strict=True)
    ]
    only_a, only_b = (
        [found for key, found in here.items() if key not in there]
        for here, there in ((in_a, in_b), (in_b, in_a))
    )
    cards = [run.device.get(CARD) for run in (a, b)]
    return Comparison(
        _differences(a, b),
        rows,
        [found.case for found in only_a],
        [found.case for found in only_b],
        None if None in cards else SAME_CARD if cards[0] == cards[1] else ANOTHER_CARD,
        threshold_pct,
        [found.case for found in only_a if found.timed],
    )


def parse_threshold(text: str) -> float:
    """Per cent from "5%" or "5". UserError unless above 0 and at most MAX_THRESHOLD_PCT."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%?\s*", text, re.ASCII)
    pct = float(match[1]) if match else 0.0
    if not 0 < pct <= MAX_THRESHOLD_PCT:
        raise UserError(
            f"--threshold takes per cent above 0 and at most {MAX_THRESHOLD_PCT:.0f}, as 5%, "
            f"not {text!r}"
        )
    return pct


def _apart(a: Iterable[str], b: Iterable[str]) -> str:
    """ ": only the first has m=64": the op, or what else the keys of one run's cases alone have."""
    ours, theirs = (
        {OPS.get(part, part): None for key in keys for part in re.split("[/,]", key)}
        for keys in (a, b)
    )
    texts = [
        f"only the {run} has {', '.join(alone[: 1 if alone[0] in OPS.values() else MOST_FACTS])}"
        for run, own, other in (("first", ours, theirs), ("second", theirs, ours))
        if (alone := [part for part in own if part not in other])
    ]
    if ours.keys() ^ theirs.keys() == {"search=short"}:
        texts.append("measure it again with --search full")
    return f": {'; '.join(texts)}" if texts else ""


def _refuse_other_settings(a: Run, b: Run) -> None:
    for name in MUST_AGREE:
        ours, theirs = (
            {str(getattr(r.measurement, name)) for r in run.results if r.measurement}
            for run in (a, b)
        )
        if ours and theirs and ours != theirs:
            raise UserError(
                f"the runs differ in {name} ({', '.join(sorted(ours))} and "
                f"{', '.join(sorted(theirs))}): such times do not compare; measure one again"
            )


def _differences(a: Run, b: Run) -> list[str]:
    texts: list[str] = []
    for ours, theirs in ((a.device, b.device), (a.software, b.software)):
        for name in sorted(ours.keys() | theirs.keys()):
            if name != CARD and ours.get(name) != theirs.get(name):
                texts.append(f"{name}: {ours.get(name)} | {theirs.get(name)}")
    clock_a, clock_b = map(_mean_clock, (a, b))
    if clock_a and clock_b and abs(clock_a / clock_b - 1) > 0.02:
        texts.append(f"mean SM clock: {clock_a:.0f} MHz | {clock_b:.0f} MHz")
    return texts


def _mean_clock(run: Run) -> float | None:
    clocks = [entry.timed.sm_clock_mhz for entry in run.entries if entry.timed]
    known = [clock for clock in clocks if clock]
    return sum(known) / len(known) if known else None


def _row(
    a: Entry, b: Entry, threshold_pct: float | None, priors: ProcessPriors, *, changed: bool
) -> CompareRow:
    """One case in both runs; `changed`: it is measured by another method since one of them."""
    case, timed_a, timed_b = a.case, a.timed, b.timed
    a_s, b_s = (timed.median_s if timed else None for timed in (timed_a, timed_b))
    if changed or timed_a is None or timed_b is None:
        verdict, reason, note = *_untimed(a.status, b.status), f"{a.status} | {b.status}"
        if changed:
            verdict, reason = "cannot tell", "other method"
            note = "it is measured by another method since one of the runs; measure it again"
        return CompareRow(case.key, case, verdict, None, None, a_s, b_s, note, reason)
    noise = noise_of(case.op, timed_a, timed_b, threshold_pct)
    times = ratio_between(timed_a, timed_b, priors, noise.op)
    found = judge(timed_a, timed_b, noise, priors)
    notes = [text for text in (found.note, a.caveat(b)) if text]
    return CompareRow(
        case.key, case, found.verdict, times.ratio, times.ci95, a_s, b_s, "; ".join(notes),
        found.reason, noise.pct, (processes_of(timed_a), processes_of(timed_b)),
    )  # fmt: skip


def method_changed(entry: Entry, a: int, b: int) -> bool:
    """Whether such a result is measured otherwise in one of these method versions."""
    older, newer = sorted((a, b))
    if older < 1 or newer > types.METHOD_VERSION:  # of which nothing is known
        return a != b
    return any(older < version <= newer for version in entry.changed_in)


def _untimed(a: str, b: str) -> tuple[str, str]:
    """(verdict on B, reason) of a case that has no time in one of the runs, by its statuses."""
    if {a, b} == {"ok", "failed"}:  # as if it took infinitely long
        return ("slower", "failed in B") if b == "failed" else ("faster", "failed in A")
    if a == b:
        return NOT_MEASURED, f"{a} in both"
    run, status = ("A", a) if a != "ok" else ("B", b)
    return NOT_MEASURED, f"{status} in {run}"


def failing(comparison: Comparison, fail_on: Sequence[str]) -> list[AnyCase]:
    """Cases whose verdict is one that the user asked to fail on; of the user's own kernels alone,
    where there are some: what stands beside them is a yardstick.

    "slower" is also what A measured and B did not, and every case where neither measured any.
    """
    own = [row for row in comparison.rows if OWN in getattr(row.case, "backend", "")]
    rows = own or comparison.rows
    failed = [row.case for row in rows if row.verdict in fail_on]
    if "slower" in fail_on:
        lost = [row for row in rows if row.verdict == NOT_MEASURED]
        if len(lost) < len(rows):
            lost = [row for row in lost if row.a_s is not None]
        failed += [*(row.case for row in lost), *comparison.missing]
    return failed


# ---------------------------------------------------------------- one case


LEAST_PCT = 1.0  # that a difference must exceed, where runs know how processes differ
NOISE_PCT = (
    3.0  # likewise, of kernels in one process; and within which their own interval is the same
)
CPU_BOUND_PCT = 30.0  # at one CPU speed; 98.5 % of 1,065 pairs of one step were within it


@dataclass(frozen=True)
class Noise:
    """What two runs of one case may differ by, in per cent.

    Within `near_pct` they are the same; None: within `pct`. `op` is that whose usual differences
    between processes the interval of one process gets; "" for none.
    """

    pct: float
    near_pct: float | None = None
    op: str = ""

    def differs(self, interval: Interval) -> str:
        """What an interval says that is wholly beyond it; "" for any other."""
        low, high = interval
        beyond = 1 + self.pct / 100
        return "faster" if low > beyond else "slower" if high < 1 / beyond else ""


class Judgement(NamedTuple):
    """A verdict on B, a detail for the notes ("" for none), and why."""

    verdict: str
    note: str
    reason: str


def processes_of(timed: Timed) -> int:
    """How many processes measured it."""
    return max(1, len(timed.processes))


def in_processes(a: Timed, b: Timed) -> bool:
    """Whether several processes measured both."""
    return min(processes_of(a), processes_of(b)) > 1


def noise_of(op: str, a: Timed, b: Timed, threshold_pct: float | None = None) -> Noise:
    """What these two may differ by; `threshold_pct` replaces the per cent in it."""
    usual_pct = kinds()[op].noise_pct if op in kinds() else NOISE_PCT
    if a.cpu_bound or b.cpu_bound:
        noise = Noise(CPU_BOUND_PCT)
    elif in_processes(a, b):
        noise = Noise(LEAST_PCT, usual_pct)
    elif op in stats.PRIORS:  # it is known what processes differ by
        noise = Noise(usual_pct, op=op)
    else:
        noise = Noise(usual_pct)
    return noise if threshold_pct is None else replace(noise, pct=threshold_pct, near_pct=None)


# ---------------------------------------------------------------- what varies between processes

Quantity = Callable[[ProcessTime], float]


def _seconds(process: ProcessTime) -> float:
    return process.median_s


def _cycles(process: ProcessTime) -> float:
    return process.median_s * (process.sm_clock_mhz or 0.0)


def _at_one_speed(process: ProcessTime) -> float:
    return process.median_s / (process.host_pace or 1.0)


def _know(name: str, a: Timed, b: Timed) -> bool:
    """Whether several processes measured both, each of which knows this of itself."""
    return in_processes(a, b) and all(getattr(p, name) for p in (*a.processes, *b.processes))


UNKNOWN = stats.VariancePrior(0.0, 0.0)  # of too few cases: each has its own variance alone


@dataclass(frozen=True)
class ProcessPriors:
    """What is usual between processes, in seconds and in cycles, and at one CPU speed; and between
    the rounds of one process, in cycles, as far as they are known.
    """

    seconds: stats.VariancePrior = stats.DEFAULT_PRIOR
    cycles: stats.VariancePrior = stats.DEFAULT_PRIOR
    at_one_speed: stats.VariancePrior = stats.DEFAULT_PRIOR  # of steps that the CPU limits
    rounds: stats.VariancePrior = UNKNOWN


USUAL = ProcessPriors()


def fit_priors(pairs: Sequence[tuple[Timed, Timed]]) -> ProcessPriors:
    """What is usual, from the cases of both runs."""
    every = [(a, b) for a, b in pairs if in_processes(a, b)]
    several = [(a, b) for a, b in every if not (a.cpu_bound or b.cpu_bound)]
    paced = [(a, b) for a, b in every if a.cpu_bound or b.cpu_bound]
    paced = [pair for pair in paced if _know("host_pace", *pair)]
    clocked = [pair for pair in several if _know("sm_clock_mhz", *pair)]
    rounds = [_of_rounds(a, b) for a, b in pairs if min(len(a.cycles), len(b.cycles)) > 1]
    known = {"rounds": stats.VariancePrior.fit(rounds)} if len(rounds) >= stats.FEWEST_CASES else {}
    return ProcessPriors(
        stats.VariancePrior.fit([_own(a, b, _seconds) for a, b in several]),
        stats.VariancePrior.fit([_own(a, b, _cycles) for a, b in clocked]),
        stats.VariancePrior.fit([_own(a, b, _at_one_speed) for a, b in paced]),
        **known,
    )


def _of_rounds(a: Timed, b: Timed) -> stats.Variance:
    """How much the cycles of one case vary between the rounds of each run."""
    own = stats.pooled([stats.variance_between(timed.cycles) for timed in (a, b)])
    return own._replace(value=stats.CORRELATED**2 * own.value)


def _own(a: Timed, b: Timed, quantity: Quantity) -> stats.Variance:
    """How much one case varies between the processes of each run."""
    return stats.pooled(
        [stats.variance_between([quantity(p) for p in timed.processes]) for timed in (a, b)]
    )


def _over_processes(a: Timed, b: Timed, quantity: Quantity, usual: stats.VariancePrior) -> Ratio:
    ours, theirs = ([quantity(p) for p in timed.processes] for timed in (a, b))
    return Ratio(*stats.ratio_over(ours, theirs, usual.posterior(_own(a, b, quantity))))


# ---------------------------------------------------------------- ratios and verdicts


RUINED = f"interval is beyond ±{types.RUINED_PCT:.0f} %"
IN_CYCLES = "the same in cycles"


def ratio_between(a: Timed, b: Timed, priors: ProcessPriors = USUAL, op: str = "") -> Ratio:
    """Time in A over time in B.

    Of the means over processes, where both have several; else from the medians' intervals, taken
    as independent. That of one process has in it what processes differ by, of kernels of this `op`.
    """
    if in_processes(a, b):
        return _over_processes(a, b, _seconds, priors.seconds)
    ratio = a.median_s / b.median_s
    a_s, b_s = (
        stats.over_processes(timed.median_s, own, stats.prior_of(op, timed.median_s))
        if (own := timed.ci95_s) and op and processes_of(timed) == 1 else own
        for timed in (a, b)
    )  # fmt: skip
    if a_s is None or b_s is None:
        return Ratio(ratio, None)
    below = math.hypot(math.log(a.median_s / a_s[0]), math.log(b_s[1] / b.median_s))
    above = math.hypot(math.log(a_s[1] / a.median_s), math.log(b.median_s / b_s[0]))
    return Ratio(ratio, (ratio * math.exp(-below), ratio * math.exp(above)))


def judge(a: Timed, b: Timed, noise: Noise, priors: ProcessPriors = USUAL) -> Judgement:
    """The verdict on B. The whole interval must lie beyond the noise of two runs."""
    own, times = (ratio_between(a, b, priors, op) for op in ("", noise.op))
    if own.ci95 is None or times.ci95 is None:
        return Judgement("cannot tell", "one round only", "one round only")
    if a.cpu_bound or b.cpu_bound:
        return _judge_at_one_speed(own, a, b, noise, priors)
    differs = noise.differs(times.ci95)
    if own.ruined_pct and not differs:
        return Judgement("cannot tell", "", RUINED)
    cycles = _in_cycles(times, a, b, priors) if differs else None
    if cycles and cycles.ci95 and noise.differs(cycles.ci95) != differs:
        clocks = f"{a.sm_clock_mhz or 0:.0f} and {b.sm_clock_mhz or 0:.0f} MHz"
        note = f"the clocks differ ({clocks}): {cycles.ratio:.2f}x in cycles"
        return Judgement("cannot tell", note, "clocks differ")
    found = _judged(differs, own.ci95, noise)
    steady = _steady(a, b, priors) if found.verdict == "cannot tell" and not differs else None
    if steady is None or stats.excludes_one(own.ci95):
        return found
    if _judged("", steady, noise).verdict != "same":
        return found
    note = f"the clocks vary: {math.exp(sum(map(math.log, steady)) / 2):.2f}x in cycles"
    return Judgement("same", note, IN_CYCLES)


def _steady(a: Timed, b: Timed, priors: ProcessPriors) -> Interval | None:
    """The interval of the ratio in cycles, of processes or rounds; None where it is not known."""
    if _know("sm_clock_mhz", a, b):
        return _over_processes(a, b, _cycles, priors.cycles).ci95
    if min(len(a.cycles), len(b.cycles)) < 2:
        return None
    return stats.ratio_over(a.cycles, b.cycles, priors.rounds.posterior(_of_rounds(a, b)))[1]


def _in_cycles(times: Ratio, a: Timed, b: Timed, priors: ProcessPriors) -> Ratio | None:
    """The ratio in cycles of the SM; None where a run does not know its clock."""
    if _know("sm_clock_mhz", a, b):
        return _over_processes(a, b, _cycles, priors.cycles)
    if not a.sm_clock_mhz or not b.sm_clock_mhz:
        return None
    return times.scaled(a.sm_clock_mhz / b.sm_clock_mhz)


def _judge_at_one_speed(
    times: Ratio, a: Timed, b: Timed, noise: Noise, priors: ProcessPriors
) -> Judgement:
    """The verdict on a step that the CPU limits: of the times at one CPU speed.

    Of several processes each time is at the speed that its own process read.
    """
    if a.host_pace is None or b.host_pace is None:
        note = "the CPU limits the step, and a run does not know its CPU's speed meanwhile"
        return Judgement("cannot tell", note, "CPU-bound")
    at_one = times.scaled(b.host_pace / a.host_pace)
    if _know("host_pace", a, b):
        at_one = _over_processes(a, b, _at_one_speed, priors.at_one_speed)
    assert at_one.ci95 is not None
    note = f"{at_one.ratio:.2f}x at one CPU speed"
    differs = noise.differs(at_one.ci95)
    if at_one.ruined_pct and not differs:
        return Judgement("cannot tell", note, RUINED)
    if differs and (at_one.ratio > 1) != (times.ratio > 1):
        return Judgement("cannot tell", note, "CPU speeds differ")
    return _judged(differs, at_one.ci95, noise)._replace(note=note)


def _judged(differs: str, own: Interval, noise: Noise) -> Judgement:
    """The verdict with its reason, from how the runs differ, and their own interval."""
    low, high = own
    near_pct = noise.pct if noise.near_pct is None else noise.near_pct
    most = 1 + near_pct / 100
    least, near = 1 / most, f"{near_pct:g} %"
    if differs:
        return Judgement(differs, "", "interval is beyond it")
    if least <= low and high <= most:
        return Judgement("same", "", f"interval is within {near}")
    if noise.op and (low > most or high < least):
        return Judgement("cannot tell", "", "processes may differ by as much")
    return Judgement("cannot tell", "", f"interval reaches beyond {near}")
