"""How wrong the model is on cases that it was not fitted on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernels import OPS
from microbench.results.types import Ceiling, Result, Run
from microbench.roofline.model.features import Rates
from microbench.roofline.model.fitting import Path, fit, path_text, paths

FOLDS = 8
LEAST_CASES = 12
LEAST_NAMED = 3  # cases of a path that is named as the worst
LEAST_SIZES = 3  # problem sizes: with two, one is all there is to learn from


@dataclass(frozen=True)
class PathError:
    """Errors of the predictions of unseen cases: median and 90th percentile of |t'/t - 1|."""

    count: int
    median: float
    p90: float


@dataclass(frozen=True)
class HeldOut:
    """The error on unseen cases; `fitted` is how many the smallest fit saw.

    `errors` has |predicted / measured - 1| by the key of the case.
    """

    fitted: int
    overall: PathError
    by_path: Mapping[Path, PathError]
    errors: Mapping[str, float]


def held_out_error(run: Run) -> HeldOut | None:
    """Fit on some problem sizes, predict the others, until each size was predicted once.

    A size is held out with all its arms (precision, back end, layout, pass). None with fewer than
    LEAST_CASES measured cases or LEAST_SIZES sizes, or without ceilings.
    """
    measured = [result for result in run.results if result.median_s]
    sizes = sorted({_size(r) for r in measured}, key=lambda size: (size[0], size))
    if len(measured) < LEAST_CASES or len(sizes) < LEAST_SIZES or Rates.of(run) is None:
        return None
    folds = min(FOLDS, len(sizes))
    errors: dict[str, float] = {}
    fitted: list[int] = []
    for fold in range(folds):
        hidden = set(sizes[fold::folds])
        seen = [r for r in measured if _size(r) not in hidden]
        found = _errors(seen, [r for r in measured if _size(r) in hidden], run)
        errors |= found
        fitted += [len(seen)] * bool(found)
    if len(errors) < LEAST_CASES:
        return None
    arms: dict[Path, list[float]] = {}
    for result in measured:
        if result.case.key in errors:
            arms.setdefault(paths(result.case)[-1], []).append(errors[result.case.key])
    by_path = {path: _summary(values) for path, values in arms.items()}
    return HeldOut(min(fitted), _summary(list(errors.values())), by_path, errors)


def _size(result: Result) -> tuple[int, str]:
    """Identity of a problem's size, its FLOPs first: the same for every arm and pass."""
    case = result.case
    dims = [f"{name}={case.dims[name]}" for name in OPS[case.op].dims]
    return OPS[case.op].flops(case), f"{case.op}/{','.join(dims)}"


def _errors(seen: Sequence[Result], unseen: Sequence[Result], run: Run) -> dict[str, float]:
    """|predicted / measured - 1| of the unseen cases, by key."""
    blind = without(run, {result.case.key for result in unseen}, seen)
    try:
        model = fit(seen, blind)
    except ValueError:
        return {}
    found: dict[str, float] = {}
    for result in unseen:
        prediction = model.predict(result.case, blind)
        if prediction and result.median_s:
            found[result.case.key] = abs(prediction.seconds / result.median_s - 1)
    return found


def without(run: Run, hidden: set[str], seen: Sequence[Result]) -> Run:
    """The run with no ceiling that comes from a hidden case, and with the seen results only.

    The rate of a large product that is hidden is replaced by the best among the seen ones.
    """
    kept: list[Ceiling] = []
    for ceiling in run.ceilings:
        if ceiling.name == "large GEMM" and ceiling.reference in hidden:
            rates = [
                (r.flop_per_s or 0.0, r.case.key)
                for r in seen
                if r.case.op == "gemm" and r.case.precision_name == ceiling.precision
            ]
            rate, key = max(rates, default=(0.0, ""))
            if not rate:
                continue
            ceiling = replace(ceiling, flop_per_s=rate, reference=key)
        kept.append(ceiling)
    return replace(run, ceilings=tuple(kept), results=tuple(seen))


def _summary(errors: Sequence[float]) -> PathError:
    return PathError(len(errors), float(np.median(errors)), float(np.quantile(errors, 0.9)))


def describe(held: HeldOut) -> list[str]:
    """The error in words, for the screen."""
    overall = held.overall
    lines = [
        "Model (launch floor + compute in tiles and waves + bytes + conversions): median error "
        f"{100 * overall.median:.0f} % on {overall.count} cases it was not fitted on "
        f"(90 % within {100 * overall.p90:.0f} %)."
    ]
    named = [(path, error) for path, error in held.by_path.items() if error.count >= LEAST_NAMED]
    if named:
        path, worst = max(named, key=lambda item: item[1].median)
        lines.append(
            f"It is least certain of {path_text(path)}: median error {100 * worst.median:.0f} % "
            f"on {worst.count}."
        )
    return lines
