"""The break-even size of a precision, from which on it stays faster, per setting of a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kernels import is_library
from microbench.results.types import Ratio, Result, Run

BASELINES = ("fp32", "tf32")
MIN_GAIN = 1.02  # between runs, ratios of small GEMMs vary by more than their intervals

RUINED = "ruined"  # of a gain: the interval is beyond RUINED_PCT

Row = tuple[Result, Ratio]


@dataclass(frozen=True)
class Payoff:
    """One precision against one baseline, at every size of one setting, smallest first."""

    subject: str
    precision: str
    baseline: str
    rows: Sequence[Row]

    @cached_property
    def gains(self) -> list[str]:
        """What each row shows, see `gain`."""
        return [gain(*row) for row in self.rows]

    @property
    def uncertain(self) -> Mapping[str, float]:
        """Half intervals in per cent, by size, that are too wide for the verdict on this.

        It rests on the sizes from the one below `start` up, or on all.
        """
        first = max(0, self.start - 1) if self.from_start else 0
        return {
            result.case.problem.size: max(result.ruined_pct, ratio.ruined_pct)
            for (result, ratio), gain in list(zip(self.rows, self.gains, strict=True))[first:]
            if gain == RUINED
        }

    @property
    def start(self) -> int:
        """The first row from which the precision is faster and stays so; len(rows) if none."""
        start = len(self.rows)
        while start and self.gains[start - 1] == "faster":
            start -= 1
        return start

    @property
    def from_start(self) -> Sequence[Row]:
        """The rows from `start` on; empty where the precision is not faster at the largest size."""
        return self.rows[self.start :]

    @property
    def best(self) -> Row:
        """The row of the largest ratio; of those not ruined, where there are any."""
        return max(self.rows, key=lambda row: (gain(*row) != RUINED, row[1].ratio))


def gain(result: Result, ratio: Ratio | None) -> str:
    """ "faster" or "slower" where the whole 95 % interval is beyond MIN_GAIN, else "same".

    "unknown" without an interval, RUINED where that or the time's is too wide.
    """
    if ratio is None or ratio.ci95 is None:
        return "unknown"
    if result.ruined_pct or ratio.ruined_pct:
        return RUINED
    low, high = ratio.ci95
    return "faster" if low > MIN_GAIN else "slower" if high < 1 / MIN_GAIN else "same"


def payoffs(run: Run, precision: str) -> list[Payoff]:
    """The precision against each of BASELINES, in each setting of the run."""
    subjects: dict[str, list[Result]] = {}
    for result in library_or_best([r for r in run.results if r.case.precision_name == precision]):
        subjects.setdefault(subject_of(result, run), []).append(result)
    found: list[Payoff] = []
    for subject, results in subjects.items():
        for baseline in BASELINES:
            rows = [(r, r.speedup[baseline]) for r in results if baseline in r.speedup]
            if rows and baseline != precision:
                found.append(Payoff(subject, precision, baseline, rows))
    return found


def library_or_best(results: Sequence[Result]) -> list[Result]:
    """One measured result per problem, smallest first: the library's, else the fastest."""
    chosen: dict[str, Result] = {}
    for result in results:
        if result.measurement is None:
            continue
        before = chosen.get(result.case.group)
        faster = before is None or (
            not is_library(before.case) and (result.median_s or 0) < (before.median_s or 0)
        )
        if faster or is_library(result.case):
            chosen[result.case.group] = result
    return sorted(chosen.values(), key=lambda r: r.flops)


def subject_of(result: Result, run: Run, without: Collection[str] = ()) -> str:
    """The settings of this result that vary in the run: "fprop nhwc image 28"."""
    return " ".join(
        value if name in ("pass", "layout") else f"{name} {value}"
        for name, value in result.case.problem.setting.items()
        if name in run.varying and name not in without
    )
