"""What a run compares: the precisions asked for, their baselines, and the groups of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels import is_library
from microbench import fmt
from microbench.results.types import Ceiling, Result, Run
from microbench.verdict import BASELINES, asked_for


@dataclass(frozen=True)
class Arms:
    """`asked` and `baselines` are precision names; a precision can be both."""

    asked: tuple[str, ...]
    baselines: tuple[str, ...]

    def is_baseline(self, result: Result) -> bool:
        """Whether the result is only a baseline."""
        return result.case.precision_name not in self.asked


def arms_of(run: Run) -> Arms:
    """The precisions of the verdict, and the baselines that something was compared with."""
    present = tuple(dict.fromkeys(r.case.precision_name for r in run.results))
    compared = tuple(b for b in BASELINES if any(b in r.speedup for r in run.results))
    return Arms(tuple(asked_for(run)) or present, compared)


def groups_of(run: Run) -> list[list[Result]]:
    """Results grouped by problem, in the order in which each problem was first measured."""
    groups: dict[str, list[Result]] = {}
    for result in run.results:
        groups.setdefault(result.case.group, []).append(result)
    return list(groups.values())


def representative(results: Sequence[Result], precisions: Sequence[str]) -> Result | None:
    """The measured result that the verdict uses: the library's, else the fastest; None if none."""
    timed = [r for r in results if r.measurement and r.case.precision_name in precisions]
    return min(timed, key=lambda r: (not is_library(r.case), r.median_s), default=None)


def rate_unit(results: Sequence[Result]) -> fmt.Unit:
    """The unit for the rates of these results: TFLOP/s, GFLOP/s, TOP/s or GOP/s."""
    integers = any(r.case.precision_name.startswith("int") for r in results)
    return fmt.rate_unit((r.flop_per_s or 0.0 for r in results), integers=integers)


def states_of(results: Sequence[Result]) -> list[str]:
    """How the results were timed: "timer events", "L2 cold", "regime sustained"."""
    timed = [r.measurement for r in results if r.measurement]
    return [
        f"{title} {fmt.clean('/'.join(sorted({getattr(one, field) for one in timed})))}"
        for title, field in (("timer", "timer"), ("L2", "l2"), ("regime", "regime"))
        if timed
    ]


def limits_of(run: Run, results: Sequence[Result]) -> list[Ceiling]:
    """The peaks, in FLOP/s, of the precisions that were asked for and that `results` have."""
    wanted = {r.case.precision_name for r in results} & set(arms_of(run).asked)
    kinds = (("dense peak", "datasheet"), ("large GEMM", "measured"))
    return [
        ceiling
        for ceiling in run.ceilings
        if ceiling.flop_per_s
        and ceiling.precision in wanted
        and (ceiling.name, ceiling.source) in kinds
    ]
