"""Measures the error of the time model on cases that it was not fitted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernels import OPS
from microbench.results.types import Ceiling, PathError, Pool, Result, Run, TimeModel
from microbench.roofline.model.fitting import Path, fit, paths
from microbench.roofline.model.terms import Rates

FOLDS = 8
LEAST_CASES = 12
LEAST_SIZES = 3  # problem sizes: with two, only one would be left to fit
DIGITS = 6  # significant, of what is written to the run file: more would differ by machine


@dataclass(frozen=True)
class HeldOut:
    """The error |predicted / measured - 1| of each case, by key, with its size left out of the fit.

    `fitted` is how many cases the smallest of the fits had.
    """

    fitted: int
    errors: Mapping[str, float]


def with_model(run: Run) -> Run:
    """The run with the time model of its results; without one where there are too few of them."""
    held, rates = held_out_errors(run), Rates.of(run)
    if held is None or rates is None:
        return replace(run, model=None)
    by_path: dict[Path, list[float]] = {}
    for result in run.results:
        if result.case.key in held.errors:
            errors = by_path.setdefault(paths(result.case)[-1], [])
            errors.append(held.errors[result.case.key])
    model = fit([(result, rates) for result in run.results])
    found = TimeModel(
        held.fitted,
        _summary((), list(held.errors.values())),
        tuple(_summary(path, errors) for path, errors in by_path.items()),
        tuple(
            Pool(path, {name: _rounded(value) for name, value in coefficients.items()})
            for path, coefficients in model.by_pool.items()
        ),
    )
    return replace(run, model=found)


def held_out_errors(run: Run) -> HeldOut | None:
    """Fit on some problem sizes, predict the others, until each size was predicted once.

    A size is left out with all its variants (precision, back end, layout, pass). None with fewer
    than LEAST_CASES measured cases or LEAST_SIZES sizes, or without measured peaks.
    """
    measured = [result for result in run.results if result.median_s]
    sizes = sorted({size_of_problem(r) for r in measured}, key=lambda size: (size[0], size))
    if len(measured) < LEAST_CASES or len(sizes) < LEAST_SIZES or Rates.of(run) is None:
        return None
    folds = min(FOLDS, len(sizes))
    errors: dict[str, float] = {}
    fitted: list[int] = []
    for fold in range(folds):
        hidden = set(sizes[fold::folds])
        seen = [r for r in measured if size_of_problem(r) not in hidden]
        found = _errors(seen, [r for r in measured if size_of_problem(r) in hidden], run)
        errors |= found
        fitted += [len(seen)] * bool(found)
    if len(errors) < LEAST_CASES:
        return None
    return HeldOut(min(fitted), errors)


def size_of_problem(result: Result) -> tuple[int, str]:
    """Identity of a problem's size, its FLOPs first: the same for every variant and pass."""
    case = result.case
    dims = [f"{name}={case.dims[name]}" for name in OPS[case.op].dims]
    return OPS[case.op].flops(case), f"{case.op}/{','.join(dims)}"


def _errors(seen: Sequence[Result], unseen: Sequence[Result], run: Run) -> dict[str, float]:
    """|predicted / measured - 1| of the unseen cases, by key."""
    rates = Rates.of(without(run, {result.case.key for result in unseen}, seen))
    if rates is None:
        return {}
    try:
        model = fit([(result, rates) for result in seen])
    except ValueError:
        return {}
    found: dict[str, float] = {}
    for result in unseen:
        prediction = model.predict(result.case, rates)
        if prediction and result.median_s:
            found[result.case.key] = abs(prediction.seconds / result.median_s - 1)
    return found


def without(run: Run, hidden: set[str], seen: Sequence[Result]) -> Run:
    """The run with the seen results only, and with no peak that comes from a hidden case.

    The FLOP/s of a hidden large GEMM are replaced by the best of the seen ones.
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


def _summary(path: Path, errors: Sequence[float]) -> PathError:
    median, p90 = (_rounded(float(value)) for value in np.quantile(errors, (0.5, 0.9)))
    return PathError(path, len(errors), median, p90)


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
