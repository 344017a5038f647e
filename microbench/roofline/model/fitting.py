"""Fits the coefficients of the physical terms to measured cases, and predicts times with them.

One way to compute a case takes

    launch * L + ((compute * C / (1 + boost * h / (h + C)))^p + (memory * B)^p)^(1/p) + convert * V

seconds, where L, C, B and V are its terms in seconds and p is OVERLAP: compute and memory overlap.
launch, compute, memory, convert, boost and h are positive coefficients; work much shorter than h
(`hold_s`) runs before the power limit lowers the clock. The library takes the fastest way. A path
has its own coefficients. They start from those of the wider pool that it is part of, and differ
only as far as its cases show; the widest pools start from PRIORS. `held_out` measures the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kernels import OPS
from kernels.case import Case
from microbench.results.types import Result
from microbench.roofline.model.terms import Rates, Terms, uses_tensor_cores, ways

Floats = NDArray[np.float64]
Path = tuple[str, ...]

WAYS = ("direct", "simt", "fft")
OVERLAP = 3.0  # exponent of the smooth maximum of compute and memory
NOISE = 0.05  # of the time: residuals below this are not worth moving a coefficient for
# name, value that physics suggests, and how far (in logarithms) the first pool may be from it
PRIORS = (
    ("memory", 1.15, 0.05),  # few kernels move bytes faster than the copy that measures the peak
    ("boost", 0.3, 0.5),
    ("hold_s", 50e-6, 0.3),
    ("launch direct", 1.1, 0.5),
    ("compute direct", 1.1, 0.7),
    ("convert direct", 1.3, 0.2),
    ("launch simt", 1.1, 0.5),
    ("compute simt", 1.3, 0.7),
    ("convert simt", 1.0, 0.5),  # nothing to convert
    ("launch fft", 1.1, 0.3),
    ("compute fft", 1.1, 0.1),
    ("convert fft", 1.3, 0.2),
)
CLOSED_S = 1e9  # of a way that cannot compute a case, so that it is never the fastest
SHARED = 3  # of the coefficients above belong to every way, the others to one each
NARROWER = 0.6  # of the first pools' distances: how far other pools may be from their wider one
STEPS = 10  # of Gauss-Newton at most, each with fresh weights
ENOUGH = 1e-3  # of the loss: a step that gains less is the last
LONGEST_STEP = 1.0  # in logarithms, of one coefficient
DIFFERENCE = 1e-4  # in logarithms, of the numerical derivatives
POINTWISE = "pointwise"


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of a case, and the seconds of each cause in them.

    The values of `causes` add up to `seconds`; `terms` are those of the way that is predicted to be
    taken. Of a misaligned case, "alignment" is what its aligned twin saves; the others are the
    twin's.
    """

    seconds: float
    terms: Terms
    causes: Mapping[str, float]

    @property
    def cause(self) -> str:
        """The cause that takes most of the time."""
        return max(self.causes, key=lambda name: self.causes[name])


@dataclass(frozen=True)
class Model:
    """Natural logarithms of the fitted coefficients by pool, from a whole op to a single path."""

    logs: Mapping[Path, Floats]

    def coefficients(self, case: Case) -> dict[str, float]:
        """The coefficients that predict a case, by name: of its narrowest path that was fitted."""
        return _named(self._logs(case))

    @property
    def by_pool(self) -> dict[Path, dict[str, float]]:
        """The coefficients of every pool, by name."""
        return {path: _named(logs) for path, logs in self.logs.items()}

    def _logs(self, case: Case) -> Floats:
        known = (self.logs[path] for path in reversed(paths(case)) if path in self.logs)
        return next(known, np.log([value for _, value, _ in PRIORS]))

    def predict(self, case: Case, rates: Rates) -> Prediction | None:
        """The predicted time of a case with these measured peaks; None where one is missing."""
        own = self._quickest(case, rates)
        if own is None or not OPS[case.op].misaligned(case):
            return own
        twin = self._quickest(OPS[case.op].aligned(case), rates)
        if twin is None or twin.seconds >= own.seconds:
            return own
        causes = {**twin.causes, "alignment": own.seconds - twin.seconds}
        return replace(own, causes=causes)

    def _quickest(self, case: Case, rates: Rates) -> Prediction | None:
        """The prediction of the way that should take least."""
        logs = self._logs(case)
        options = [_priced(way, logs) for way in ways(case, rates)]
        return min(options, key=lambda option: option.seconds, default=None)


def _named(logs: Floats) -> dict[str, float]:
    return {name: float(np.exp(log)) for (name, _, _), log in zip(PRIORS, logs, strict=True)}


def paths(case: Case) -> tuple[Path, ...]:
    """The pools of a case, from the widest to its own path.

    A pointwise convolution shares a pool with GEMMs: libraries run it as one.
    """
    cores = "tensor cores" if uses_tensor_cores(case.precision_name) else "simt"
    special = _special(case)
    pool = ("gemm" if special == POINTWISE else case.op, cores)
    kind = (*pool, special, case.op)
    data = "" if case.data == "normal" else case.data  # what is multiplied changes the power
    arm = (*kind, case.layout, str(case.dims.get("pass", "")), case.backend, data)
    return pool[:1], pool, kind, arm, (*arm, case.precision_name)


def _special(case: Case) -> str:
    """Why a library runs other kernels for this case than for most; "" for most."""
    if OPS[case.op].misaligned(case):
        return "misaligned"
    pointwise = case.op == "conv" and {case.dims[d] for d in ("r", "s", "stride", "groups")} == {1}
    return POINTWISE if pointwise else ""


def _priced(way: Terms, logs: Floats) -> Prediction:
    """The prediction of one way, its seconds shared out among causes."""
    index = WAYS.index(way.way)
    launch, body, compute, memory, convert = (
        float(part[0, index]) for part in _parts(_pack([(way,)]), logs)
    )
    total = compute**OVERLAP + memory**OVERLAP
    busy = body * compute**OVERLAP / total if total else 0.0
    useful = min(1.0, way.ideal_s / way.compute_s) if way.compute_s else 1.0
    causes = {
        "launch": launch,
        "compute": busy * useful,
        "tiles and waves": busy * (1 - useful),
        "memory": body - busy,
        "layout conversion" if way.way == "direct" else "transforms": convert,
    }
    return Prediction(launch + body + convert, way, causes)


def _pack(found: Sequence[Sequence[Terms]]) -> Floats:
    """[case, way, (launch, compute, memory, convert)] seconds; CLOSED_S for an impossible way."""
    packed = np.full((len(found), len(WAYS), 4), CLOSED_S)
    for row, options in zip(packed, found, strict=True):
        for way in options:
            row[WAYS.index(way.way)] = (way.launch_s, way.compute_s, way.memory_s, way.convert_s)
    return packed


def _parts(packed: Floats, logs: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """(launch, compute and memory together, compute, memory, convert) in seconds, [case, way]."""
    memory, boost, hold = np.exp(logs[:SHARED])
    launch, slower, convert = np.exp(logs[SHARED:]).reshape(len(WAYS), 3).T
    work = packed[:, :, 1]
    compute = slower * work / (1 + boost * hold / (hold + work))
    moved = memory * packed[:, :, 2]
    body = (compute**OVERLAP + moved**OVERLAP) ** (1 / OVERLAP)
    return launch * packed[:, :, 0], body, compute, moved, convert * packed[:, :, 3]


def _log_seconds(packed: Floats, logs: Floats) -> Floats:
    launch, body, _, _, convert = _parts(packed, logs)
    return np.log((launch + body + convert).min(axis=1))


def fit(measured: Sequence[tuple[Result, Rates]]) -> Model:
    """Fit a model to measured results, each with the measured peaks of its run.

    Robust, like a median: least absolute deviations of the logarithm of the time (Huber's loss with
    NOISE as its threshold), wide pools before the paths in them. ValueError when no result and no
    peak was measured.
    """
    rows = [(r, ways(r.case, rates)) for r, rates in measured if r.median_s]
    rows = [(result, found) for result, found in rows if found]
    if not rows:
        raise ValueError("nothing to fit: no case or no ceiling was measured")
    packed = _pack([found for _, found in rows])
    target = np.log([result.median_s or 1.0 for result, _ in rows])
    members = _members([result.case for result, _ in rows])
    first = np.array([spread for _, _, spread in PRIORS])
    logs: dict[Path, Floats] = {}
    for path in sorted(members, key=len):
        wider = max((p for p in logs if p == path[: len(p)]), key=len, default=None)
        start = np.log([value for _, value, _ in PRIORS]) if wider is None else logs[wider]
        chosen = members[path]
        spread = first if wider is None else NARROWER * first
        logs[path] = _descend(packed[chosen], target[chosen], start, spread)
    return Model(logs)


def _members(cases: Sequence[Case]) -> dict[Path, list[int]]:
    """Indices of the cases of each pool.

    Pools of several kinds hold no special cases, which would change the predictions of the others.
    A pool with nothing else is left out.
    """
    members: dict[Path, list[int]] = {}
    for index, case in enumerate(cases):
        for path in paths(case):
            if len(path) > 2 or not _special(case):
                members.setdefault(path, []).append(index)
    return members


def _descend(packed: Floats, target: Floats, start: Floats, spread: Floats) -> Floats:
    """Logarithms that fit, near `start` by `spread`: iteratively reweighted least squares."""
    logs, loss = start, _loss(packed, target, start, start, spread)
    axes = np.eye(len(start))[_in_use(packed)]
    for _ in range(STEPS):
        here = _log_seconds(packed, logs)
        moved = [_log_seconds(packed, logs + DIFFERENCE * axis) for axis in axes]
        slopes = (np.stack(moved, axis=1) - here[:, None]) / DIFFERENCE
        weighted = slopes.T / (NOISE * np.maximum(np.abs(target - here), NOISE))
        stiff = 1 / (axes @ spread) ** 2
        square = weighted @ slopes + np.diag(stiff)
        pull = weighted @ (target - here) + stiff * (axes @ (start - logs))
        step = axes.T @ np.clip(np.linalg.solve(square, pull), -LONGEST_STEP, LONGEST_STEP)
        tries = [logs + shorter * step for shorter in (1.0, 0.3, 0.1)]
        losses = [_loss(packed, target, tried, start, spread) for tried in tries]
        best = int(np.argmin(losses))
        if losses[best] > loss * (1 - ENOUGH):
            break
        logs, loss = tries[best], losses[best]
    return logs


def _in_use(packed: Floats) -> list[int]:
    """Indices of the coefficients that the time of any of the cases depends on."""
    own = [
        SHARED + 3 * way + place
        for way in range(len(WAYS))
        for place, term in enumerate((0, 1, 3))
        if ((packed[:, way, term] > 0) & (packed[:, way, 0] < CLOSED_S)).any()
    ]
    return [*range(SHARED), *own]


def _loss(packed: Floats, target: Floats, logs: Floats, start: Floats, spread: Floats) -> float:
    size = np.abs(target - _log_seconds(packed, logs))
    rounded = np.where(size < NOISE, size**2 / (2 * NOISE), size - NOISE / 2)
    return float(rounded.sum() / NOISE + 0.5 * (((logs - start) / spread) ** 2).sum())
