"""Compares the time model with interpolation of log time over log FLOPs, on held-out shapes.

A development script: python -m microbench.roofline.model.interpolation FILE...

Both predict the same cases from the same others (the folds of `held_out`). Interpolation sees the
measured cases of the same variant (op, precision, back end, layout, data, pass) and of the same
kind (rows aligned or not; filter, stride, groups): a parabola through the three nearest sizes, and
beyond the smallest and the largest the line through the last two.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kernels import OPS
from kernels.case import Case
from microbench.results.runfile import read_run
from microbench.results.types import Result, Run
from microbench.roofline.model.held_out import FOLDS, held_out_errors, size_of_problem

CLEARLY = 1.3  # times smaller: what the model's median error must be on a path
LEAST_ON_PATH = 2


def variant(case: Case) -> tuple[object, ...]:
    """What all cases of one curve share."""
    kind = tuple(case.dims.get(name) for name in ("r", "s", "stride", "groups"))
    off = bool(OPS[case.op].misaligned(case))
    arm = (case.op, case.precision_name, case.backend, case.layout, case.data)
    return (*arm, case.dims.get("pass"), off, *kind)


def interpolated_s(case: Case, seen: Sequence[Result]) -> tuple[float, bool] | None:
    """(seconds, whether between sizes) from cases of the same variant; None for fewer than two."""
    times: dict[float, list[float]] = {}
    for other in seen:
        if variant(other.case) == variant(case) and other.median_s:
            times.setdefault(float(np.log(other.flops)), []).append(float(np.log(other.median_s)))
    sizes = np.array(sorted(times))
    logs = np.array([np.median(times[size]) for size in sizes])
    if len(sizes) < 2:
        return None
    at = float(np.log(OPS[case.op].flops(case)))
    between = bool(sizes[0] <= at <= sizes[-1])
    points = min(3, len(sizes)) if between else 2
    near = np.sort(np.argsort(np.abs(sizes - at))[:points])
    degree = points - 1
    return float(np.exp(np.polyval(np.polyfit(sizes[near] - at, logs[near], degree), 0))), between


def errors(run: Run) -> dict[str, tuple[float, bool]]:
    """(|interpolated / measured - 1|, whether between sizes) of the held-out cases, by key."""
    measured = [result for result in run.results if result.median_s]
    sizes = sorted({size_of_problem(r) for r in measured}, key=lambda size: (size[0], size))
    folds = min(FOLDS, len(sizes))
    found: dict[str, tuple[float, bool]] = {}
    for fold in range(folds):
        hidden = set(sizes[fold::folds])
        seen = [r for r in measured if size_of_problem(r) not in hidden]
        for result in measured:
            guess = interpolated_s(result.case, seen) if size_of_problem(result) in hidden else None
            if guess and result.median_s:
                found[result.case.key] = abs(guess[0] / result.median_s - 1), guess[1]
    return found


def table(path: Path) -> list[str]:
    """Rows of a markdown table for a run file: between and beyond the measured sizes."""
    run = read_run(path)
    held, others = held_out_errors(run), errors(run)
    rows: list[str] = []
    for between in (True, False):
        keys = [k for k in others if held and k in held.errors and others[k][1] is between]
        if not held or not keys:
            continue
        model, curve = [held.errors[k] for k in keys], [others[k][0] for k in keys]
        by_path: dict[tuple[object, ...], list[str]] = {}
        for key in keys:
            by_path.setdefault(variant(run.by_key[key].case)[:6], []).append(key)
        paths = [some for some in by_path.values() if len(some) >= LEAST_ON_PATH]
        gains = [
            np.median([others[k][0] for k in some]) / np.median([held.errors[k] for k in some])
            for some in paths
        ]
        wins = sum(gain >= CLEARLY for gain in gains)
        cells = [path.stem, "between" if between else "beyond", str(len(keys))]
        cells += [
            f"{100 * np.median(e):.1f} / {100 * np.quantile(e, 0.9):.0f}" for e in (model, curve)
        ]
        rows.append("| " + " | ".join([*cells, f"{wins} of {len(paths)}"]) + " |")
    return rows


if __name__ == "__main__":
    print("\n".join(row for name in sys.argv[1:] for row in table(Path(name))))
