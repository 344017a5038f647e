"""What a run compares: precisions with their baselines, from which size on they are faster, and our
kernels, and the user's, with the better of the vendor's libraries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import geometric_mean
from typing import Any, NamedTuple, cast

from kernels import OPS, is_library
from kernels.case import Case
from kernels.op import OWN, TUNED
from microbench import fmt
from microbench.device import host
from microbench.results.types import Ratio, Result, Run, Warning


def asked_for(run: Run) -> list[str]:
    """The precisions that the user asked about: all but baselines; if none, all but fp32; or all.

    One of them can be a baseline too.
    """
    names = list(dict.fromkeys(r.case.precision_name for r in run.results))
    others = [name for name in names if name not in baselines_of(run)]
    return others or [name for name in names if name != "fp32"] or names


def baselines_of(run: Run) -> Sequence[str]:
    """The precisions that those of the run are held against: of all ops that it has."""
    ops = {result.case.op: None for result in run.results} or {"gemm": None}
    return list(dict.fromkeys(name for op in ops for name in OPS[op].baselines))


def compared_with(run: Run) -> list[str]:
    """The baselines that something in the run was compared with, TF32 first."""
    return [b for b in reversed(baselines_of(run)) if any(b in r.speedup for r in run.results)]


# ---------------------------------------------------------------- break-even


MIN_GAIN = 1.02  # between runs, ratios of small GEMMs vary by more than their intervals

RUINED = "ruined"  # of a gain: the interval is beyond RUINED_PCT


class SizeGain(NamedTuple):
    """The result at one size, its ratio to the baseline's time, and what that shows, see `gain`."""

    result: Result
    ratio: Ratio
    gain: str


@dataclass(frozen=True)
class Payoff:
    """One precision against one baseline, at every size of one setting, smallest first."""

    subject: str
    precision: str
    baseline: str
    rows: Sequence[SizeGain]

    @property
    def case(self) -> Case:
        """That of the smallest size."""
        return self.rows[0].result.case

    @cached_property
    def gains(self) -> list[str]:
        """What each row shows."""
        return [row.gain for row in self.rows]

    @property
    def uncertain(self) -> Mapping[str, float]:
        """Half intervals in per cent, by size, that are too wide for the verdict on this.

        It rests on the sizes from the one below `start` up, or on all.
        """
        first = max(0, self.start - 1) if self.first_faster else 0
        return {
            row.result.case.problem.size: max(row.result.ruined_pct, row.ratio.ruined_pct)
            for row in self.rows[first:]
            if row.gain == RUINED
        }

    @property
    def start(self) -> int:
        """The first row from which the precision is faster and stays so; len(rows) if none."""
        start = len(self.rows)
        while start and self.gains[start - 1] == "faster":
            start -= 1
        return start

    @property
    def first_faster(self) -> str:
        """The size at `start`; "" where the precision is not faster at the largest size."""
        return next((fmt.size(row.result.case) for row in self.rows[self.start :]), "")

    @property
    def steady(self) -> bool:
        """Whether it is faster at the largest size, and at none below `start`."""
        return bool(self.first_faster) and "faster" not in self.gains[: self.start]


def gain(result: Result | None, ratio: Ratio | None) -> str:
    """ "faster" or "slower" where the whole 95 % interval is beyond MIN_GAIN, else "same".

    "unknown" without an interval, RUINED where that or the time's is too wide.
    """
    if ratio is None or ratio.ci95 is None:
        return "unknown"
    if (result and result.ruined_pct) or ratio.ruined_pct:
        return RUINED
    low, high = ratio.ci95
    return "faster" if low > MIN_GAIN else "slower" if high < 1 / MIN_GAIN else "same"


def payoffs(run: Run, precision: str) -> list[Payoff]:
    """The precision against each baseline, in each setting of the run."""
    subjects: dict[str, list[Result]] = {}
    for result in sorted(representatives(run, [precision]), key=lambda r: r.flops):
        subjects.setdefault(subject_of(result, run), []).append(result)
    by_baseline: list[Payoff] = []
    for subject, results in subjects.items():
        for baseline in OPS[results[0].case.op].baselines:
            rows = [SizeGain(r, ratio, gain(r, ratio)) for r in results
                    if (ratio := r.speedup.get(baseline))]  # fmt: skip
            if rows and baseline != precision:
                by_baseline.append(Payoff(subject, precision, baseline, rows))
    return by_baseline


def subject_of(result: Result, run: Run, without: Collection[str] = ()) -> str:
    """The settings of this result that vary in the run: "fprop nhwc image 28"."""
    return " ".join(
        value if name in ("pass", "layout") else f"{name} {value}"
        for name, value in result.case.problem.setting.items()
        if name in run.varying and name not in without
    )


# ---------------------------------------------------------------- libraries


@dataclass(frozen=True)
class BesideLibrary:
    """A result and the better library: the one with the shorter time for this very problem.

    `ratio` is that library's time over the result's; `measured` are the libraries to choose from.
    """

    result: Result
    library: str
    ratio: Ratio
    measured: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """One back end in one precision, over all sizes; `which` is what else they share."""

    backend: str
    precision: str
    which: str
    rows: Sequence[BesideLibrary]

    @property
    def mean(self) -> float:
        """Geometric mean of the ratios; above 1 the back end is faster."""
        return geometric_mean([row.ratio.ratio for row in self.rows])

    @property
    def ruined_pct(self) -> float:
        """As `Ratio.ruined_pct`, of the mean: the sizes' ratios are independent."""
        halves = [math.log(r.ci95[1] / r.ratio) for row in self.rows if (r := row.ratio).ci95]
        half = math.hypot(*halves) / len(self.rows)
        return Ratio(1.0, (math.exp(-half), math.exp(half))).ruined_pct

    @property
    def least(self) -> BesideLibrary:
        """The size where it does worst."""
        return min(self.rows, key=lambda row: row.ratio.ratio)

    @property
    def most(self) -> BesideLibrary:
        """The size where it does best."""
        return max(self.rows, key=lambda row: row.ratio.ratio)

    @property
    def libraries(self) -> list[str]:
        """Those that were measured beside any of them."""
        return list(dict.fromkeys(name for row in self.rows for name in row.measured))

    @property
    def against(self) -> str:
        """ "cublas", or "the better of cublas and cublaslt (cublaslt at 5 of 6)"."""
        names = self.libraries
        count = {name: sum(name in row.measured for row in self.rows) for name in names}
        some = [f"{name} at {n} of {len(self.rows)}" for name, n in count.items()
                if n < len(self.rows)]  # fmt: skip
        better = names[0] if len(names) == 1 else f"the better of {' and '.join(names)}"
        return f"{better} ({', '.join(some)})" if some else better


def summaries(run: Run, which: Callable[[Result], str] = lambda _: "") -> list[Summary]:
    """Every back end of ours or of the user's against the better library, in the run's order.

    `which` names what else is summed up apart: passes, say.
    """
    by_key: dict[tuple[str, str, str], list[BesideLibrary]] = {}
    for result in run.results:
        backend = result.case.backend
        row = beside_library(result) if backend == TUNED or OWN in backend else None
        if row:
            key = (backend, result.case.precision_name, which(result))
            by_key.setdefault(key, []).append(row)
    return [Summary(*key, rows) for key, rows in by_key.items()]


def beside_library(result: Result) -> BesideLibrary | None:
    """The result and the better library; None where none was measured beside it."""
    known = {name: result.vs_backend[name] for name in _libraries(result)
             if name in result.vs_backend}  # fmt: skip
    if not known:
        return None
    better = min(known, key=lambda name: known[name].ratio)
    return BesideLibrary(result, better, known[better], tuple(known))


def libraries_beside_own(run: Run) -> list[str]:
    """The libraries that were measured beside a back end of the user's."""
    own = [r for r in run.results if OWN in r.case.backend]
    return list(dict.fromkeys(
        name for result in own for name in _libraries(result) if name in result.vs_backend
    ))  # fmt: skip


def _libraries(result: Result) -> tuple[str, ...]:
    """The vendor's libraries for the result's op, on the kind of device that it ran on."""
    return ("cpu",) if "cpu" in result.vs_backend else OPS[result.case.op].libraries


# ---------------------------------------------------------------- what a run compares


def groups_of(run: Run) -> list[list[Result]]:
    """Results grouped by problem, in the order in which each problem was first measured."""
    groups: dict[str, list[Result]] = {}
    for result in run.results:
        groups.setdefault(result.case.group, []).append(result)
    return list(groups.values())


def representative(results: Sequence[Result], precisions: Sequence[str]) -> Result | None:
    """The measured result that the verdict uses: the library's, else the fastest; None if none, and
    where the library's failed.
    """
    named = [r for r in results if r.case.precision_name in precisions]
    if any(r.status == "failed" and is_library(r.case) for r in named):
        return None
    timed = [r for r in named if r.measurement]
    return min(timed, key=lambda r: (not is_library(r.case), r.median_s), default=None)


def representatives(run: Run, precisions: Sequence[str]) -> list[Result]:
    """Those of each problem that has one."""
    found = (representative(group, precisions) for group in groups_of(run))
    return [result for result in found if result]


def rate_unit(results: Sequence[Result]) -> fmt.Unit:
    """The unit for the rates of these results: TFLOP/s, GFLOP/s, TOP/s or GOP/s."""
    integers = any(r.case.precision_name.startswith("int") for r in results)
    return fmt.rate_unit((r.flop_per_s or 0.0 for r in results), integers=integers)


# ---------------------------------------------------------------- other programs


def load_warnings(settings: Mapping[str, Any]) -> list[Warning]:
    """Warnings about other programs, from a run's settings; see `microbench.device.host`."""
    load = settings.get(host.LOAD)
    facts = cast("dict[str, Any]", load) if isinstance(load, dict) else {}
    share, average, processes, held_bytes, busy_pct, later = (
        facts.get(name) or 0 for name in (
            host.SHARE, host.AT_START, host.PROCESSES, host.HELD, host.COMPUTING, host.LATER)
    )  # fmt: skip
    others = fmt.count(processes, "other process", "other processes")
    came = fmt.count(later, "other process was", "other processes were")
    symptoms = (
        (share > host.LOADED, f"other programs used {100 * share:.0f} % of the CPU during the run",
         _BUSY_CPU),
        (share <= host.LOADED < average,
         f"the load average was {average:.2f} per core before the run", _BUSY_CPU),
        (processes, f"{others} held {held_bytes / 1e9:.1f} GB on the GPU before the run",
         _BUSY_GPU),
        (busy_pct, "another program computed on the GPU before the run "
         f"({busy_pct} % of the time)", _BUSY_GPU),
        (later, f"{came} on the GPU at the end of the run", _BUSY_GPU),
    )  # fmt: skip
    return [Warning(symptom, *cause) for holds, symptom, cause in symptoms if holds]


_BUSY_CPU = (
    "other programs delay CPU launches and data loading, so times are longer and vary",
    "stop other programs and measure again",
)
_BUSY_GPU = (
    "other processes may take the GPU's time, memory bandwidth and power",
    "stop them, or choose another GPU with --device cuda:N",
)
