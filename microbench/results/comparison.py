"""Compares two runs case by case: faster, slower, same, or cannot tell; and why.

Runs happen at different times, with other memory addresses and temperatures, so the interval of
each run alone is too narrow for their ratio. A `Noise` is what two runs of the same cases on one
H200 differed by (docs/method.md, "Comparing runs"; later: results/nvidia-h200/compare-aa.json).
A verdict needs the whole interval beyond it and, where both runs know their clock, the same verdict
in cycles.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from microbench.errors import UserError
from microbench.results.kinds import KINDS
from microbench.results.types import Run
from microbench.results.values import AnyCase, Entry, Interval, Timed

NOISE_PCT = 3.0
NOISE_S = 1.3e-6  # effect of memory addresses: up to 1.22 us between runs, stable in each
VERDICTS = ("faster", "slower", "same", "cannot tell")
MUST_AGREE = ("timer", "l2", "regime")
CARD = "card"  # the device fact that tells two cards of one model apart
SAME_CARD, ANOTHER_CARD = "same card", "another card"
MAX_THRESHOLD_PCT = 1000.0
MOST_FACTS = 3


@dataclass(frozen=True)
class Noise:
    """What two runs of one case may differ by: the larger of `pct` per cent and of `seconds`."""

    pct: float
    seconds: float = 0.0

    def share(self, a_s: float, b_s: float) -> float:
        """The larger of the two as a fraction of the shorter time. Both are seconds, above 0."""
        return max(self.pct / 100, self.seconds / min(a_s, b_s))


KERNELS = Noise(NOISE_PCT, NOISE_S)


@dataclass(frozen=True)
class CompareRow:
    """One case in both runs. `ratio` is time in A over time in B: above 1, B is faster.

    `a_s` and `b_s` are medians in seconds. `threshold_pct` is the difference, in per cent, that the
    whole interval must lie beyond; `threshold_s` the absolute time behind it where that decides.
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
    threshold_s: float | None = None


class Judgement(NamedTuple):
    """A verdict on B, one of VERDICTS. `note` is "" for none; `threshold` is a fraction."""

    verdict: str
    note: str
    reason: str
    threshold: float


@dataclass(frozen=True)
class Comparison:
    """The comparison of run B with run A. `differences` are facts that differ.

    `card` is SAME_CARD or ANOTHER_CARD, None where one run does not know its card. `threshold_pct`
    is what the user asked for in place of the noise of two runs.
    """

    differences: list[str]
    rows: list[CompareRow]
    only_a: list[AnyCase]
    only_b: list[AnyCase]
    card: str | None = None
    threshold_pct: float | None = None

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON: counts, noise in per cent and seconds, one row per case."""
        names = (
            "key", "verdict", "ratio", "ci95", "a_s", "b_s", "note", "reason", "threshold_pct",
            "threshold_s",
        )  # fmt: skip
        return {
            "counts": {verdict: self.count(verdict) for verdict in VERDICTS},
            "noise_pct": NOISE_PCT,
            "noise_s": NOISE_S,
            **{f"{op}_noise_pct": kind.noise_pct for op, kind in KINDS.items()},
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

    `threshold_pct` replaces the noise of two runs, in per cent, for all kinds; a kernel's
    difference in seconds must still be above NOISE_S. UserError when the runs were measured by
    different methods or settings (MUST_AGREE), or have no case in common.
    """
    if a.method_version != b.method_version:
        raise UserError(
            f"the runs were measured by different methods (method_version {a.method_version} and "
            f"{b.method_version}); measure one of them again"
        )
    _refuse_other_settings(a, b)
    in_a, in_b = _by_key(a), _by_key(b)
    rows = [_row(found, in_b[key], threshold_pct) for key, found in in_a.items() if key in in_b]
    if not rows:
        raise UserError(f"the runs have no case in common{_apart(in_a, in_b)}")
    return Comparison(
        _differences(a, b),
        rows,
        [found.case for key, found in in_a.items() if key not in in_b],
        [found.case for key, found in in_b.items() if key not in in_a],
        _card(a, b),
        threshold_pct,
    )


def parse_threshold(text: str) -> float:
    """Per cent from "5%" or "5". UserError unless above 0 and at most MAX_THRESHOLD_PCT."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*%?\s*", text, re.ASCII)
    pct = float(found[1]) if found else 0.0
    if not 0 < pct <= MAX_THRESHOLD_PCT:
        raise UserError(
            f"--threshold takes per cent above 0 and at most {MAX_THRESHOLD_PCT:.0f}, as 5%, "
            f"not {text!r}"
        )
    return pct


def _by_key(run: Run) -> dict[str, Entry]:
    """Everything that the run measured, kernels first."""
    return {found.case.key: found for found in run.entries}


def _apart(a: Iterable[str], b: Iterable[str]) -> str:
    """ ": network is resnet50 in A, vgg16 in B": facts of which A and B share no value."""
    ours, theirs = _facts(a), _facts(b)
    apart = [
        f"{name} is {_or(ours[name])} in A, {_or(theirs[name])} in B"
        for name in ours
        if name in theirs and not ours[name].keys() & theirs[name].keys()
    ]
    shown = apart[:1] if ours["kind"] != theirs["kind"] else apart[:MOST_FACTS]
    return f": {'; '.join(shown)}" if shown else ""


def _facts(keys: Iterable[str]) -> dict[str, dict[str, None]]:
    """The values of each fact that the cases' keys name, "gemm/m=256,n=256/nt", in their order."""
    found: dict[str, dict[str, None]] = {}
    for key in keys:
        kind, *rest = key.split("/")
        facts = [fact for part in rest for fact in part.split(",") if "=" in fact]
        for fact in (f"kind={kind}", *facts):
            name, _, value = fact.partition("=")
            found.setdefault(name, {})[value] = None
    return found


def _or(values: Iterable[str]) -> str:
    first, *others = values
    return f"{first} and {len(others)} more" if others else first


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
    found: list[str] = []
    for ours, theirs in ((a.device, b.device), (a.software, b.software)):
        for name in sorted(ours.keys() | theirs.keys()):
            if name != CARD and ours.get(name) != theirs.get(name):
                found.append(f"{name}: {ours.get(name)} | {theirs.get(name)}")
    clock_a, clock_b = _mean_clock(a), _mean_clock(b)
    if clock_a and clock_b and abs(clock_a / clock_b - 1) > 0.02:
        found.append(f"mean SM clock: {clock_a:.0f} MHz | {clock_b:.0f} MHz")
    return found


def _card(a: Run, b: Run) -> str | None:
    """Whether both runs used the same card; None where one of them does not know (older files)."""
    ours, theirs = a.device.get(CARD), b.device.get(CARD)
    if ours is None or theirs is None:
        return None
    return SAME_CARD if ours == theirs else ANOTHER_CARD


def _mean_clock(run: Run) -> float | None:
    clocks = [entry.timed.sm_clock_mhz for entry in run.entries if entry.timed]
    known = [clock for clock in clocks if clock]
    return sum(known) / len(known) if known else None


def _row(a: Entry, b: Entry, threshold_pct: float | None) -> CompareRow:
    case, timed_a, timed_b = a.case, a.timed, b.timed
    a_s, b_s = (timed.median_s if timed else None for timed in (timed_a, timed_b))
    if timed_a is None or timed_b is None:
        verdict, reason = _untimed(a.status, b.status)
        statuses = f"{a.status} | {b.status}"
        return CompareRow(case.key, case, verdict, None, None, a_s, b_s, statuses, reason)
    ratio, interval = ratio_between(timed_a, timed_b)
    noise = noise_of(case.op, threshold_pct)
    found = judge(timed_a, timed_b, noise)
    notes = [text for text in (found.note, a.caveat(b)) if text]
    absolute = noise.seconds if found.threshold > noise.pct / 100 else None
    return CompareRow(
        case.key, case, found.verdict, ratio, interval, a_s, b_s, "; ".join(notes), found.reason,
        100 * found.threshold, absolute,
    )  # fmt: skip


def noise_of(op: str, threshold_pct: float | None = None) -> Noise:
    """What two runs of a case of this `op` may differ by; `threshold_pct` replaces `pct`."""
    usual = Noise(KINDS[op].noise_pct) if op in KINDS else KERNELS
    return usual if threshold_pct is None else Noise(threshold_pct, usual.seconds)


def _untimed(a: str, b: str) -> tuple[str, str]:
    """(verdict on B, reason) of a case that has no time in one of the runs, by its statuses."""
    if {a, b} == {"ok", "failed"}:  # as if it took infinitely long
        return ("slower", "failed in B") if b == "failed" else ("faster", "failed in A")
    if a == b:
        return "same" if a == "skipped" else "cannot tell", f"{a} in both"
    run, status = ("A", a) if a != "ok" else ("B", b)
    return "cannot tell", f"{status} in {run}"


def ratio_between(a: Timed, b: Timed) -> tuple[float, Interval | None]:
    """(median time in A over that in B, its 95 % interval); None where a run has no interval.

    The logarithms of the two intervals add in quadrature: the runs' errors are taken as
    independent.
    """
    ratio = a.median_s / b.median_s
    if a.ci95_s is None or b.ci95_s is None:
        return ratio, None
    below = math.hypot(math.log(a.median_s / a.ci95_s[0]), math.log(b.ci95_s[1] / b.median_s))
    above = math.hypot(math.log(a.ci95_s[1] / a.median_s), math.log(b.median_s / b.ci95_s[0]))
    return ratio, (ratio * math.exp(-below), ratio * math.exp(above))


def judge(a: Timed, b: Timed, noise: Noise = KERNELS) -> Judgement:
    """The verdict on B against A.

    "faster" and "slower" need the whole interval beyond the noise, "same" the whole interval within
    its per cent. What is neither, or has no interval, or is not so in clock cycles: "cannot tell".
    """
    ratio, interval = ratio_between(a, b)
    share = noise.share(a.median_s, b.median_s)
    near = noise.pct / 100
    if interval is None:
        return Judgement("cannot tell", "one round only", "one round only", share)
    verdict = _verdict(interval, share, near)
    found = Judgement(verdict, "", _reason(verdict, interval, noise, share), share)
    if verdict not in ("faster", "slower") or not a.sm_clock_mhz or not b.sm_clock_mhz:
        return found
    in_cycles = ratio * a.sm_clock_mhz / b.sm_clock_mhz
    scale = in_cycles / ratio
    if _verdict((interval[0] * scale, interval[1] * scale), share, near) == verdict:
        return found
    note = (
        f"the clocks differ ({a.sm_clock_mhz:.0f} and {b.sm_clock_mhz:.0f} MHz): "
        f"{in_cycles:.2f}x in cycles"
    )
    return Judgement("cannot tell", note, "clocks differ", share)


def _reason(verdict: str, interval: Interval, noise: Noise, share: float) -> str:
    """The reason of a verdict, from the interval and the noise."""
    if verdict in ("faster", "slower"):
        return "interval is beyond it"
    if verdict == "same":
        return f"interval is within {noise.pct:g} %"
    low, high = interval
    if share > noise.pct / 100:
        floor = f"{noise.seconds * 1e6:g} us"
        if 1 / (1 + share) <= low and high <= 1 + share:
            return f"interval is within {floor}"
        if low > 1 + noise.pct / 100 or high < 1 / (1 + noise.pct / 100):
            return f"interval reaches within {floor}"
    return f"interval reaches beyond {noise.pct:g} %"


def _verdict(interval: Interval, beyond: float, near: float) -> str:
    """Shares of a ratio: `beyond` which it is a difference, `near` to which it is none."""
    low, high = interval
    if low > 1 + beyond:
        return "faster"
    if high < 1 / (1 + beyond):
        return "slower"
    if low >= 1 / (1 + near) and high <= 1 + near:
        return "same"
    return "cannot tell"


def failing(comparison: Comparison, fail_on: Sequence[str]) -> list[CompareRow]:
    """Rows whose verdict is one that the user asked to fail on."""
    return [row for row in comparison.rows if row.verdict in fail_on]
