"""Host time of a step outside its ATen calls: modules, autograd, the optimizer's own Python.

Calls are timed alone. The rest is fitted once per machine: steps of small networks are timed and
traced, and the host time beyond their calls is fitted to counts of modules, weights and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from e2e.prediction.trace.fake_trace import Trace
from e2e.prediction.trace.recorder import is_view
from e2e.recipes import DYNAMIC, recipe_of

# Forward calls that autograd notes have a node in the backward pass; views, which are not launched
# alone, have all their time here, with those of the backward pass that undo them. Autocast is
# entered and left, and a loss scaler looks at every gradient, in Python.
COUNTED = (
    "step", "module", "noted call", "noted view", "backward call", "weight", "autocast step",
    "scaled step", "scaled weight",
)  # fmt: skip
least_squares = cast(
    Any,
    torch.linalg.lstsq,  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
)
RIDGE = 1e-4  # keeps a count that the calibration hardly varies from taking a wild value


@dataclass(frozen=True)
class FrameworkOverhead:
    """Host seconds at the reference speed for each of COUNTED, and the error of the fit.

    `error` is the root mean square of (fitted - measured) / measured, of the calibration steps'
    whole host times: a ratio.
    """

    seconds: tuple[float, ...]
    error: float

    def of(self, trace: Trace) -> float:
        """Host seconds per step outside the calls of this trace; not negative."""
        counted = zip(counts(trace), self.seconds, strict=True)
        return max(0.0, sum(count * each_s for count, each_s in counted))


@dataclass(frozen=True)
class CalibrationStep:
    """A small network's trace, and host seconds per step: in all, and of its calls alone."""

    trace: Trace
    host_s: float
    calls_s: float


def counts(trace: Trace) -> tuple[float, ...]:
    """How often each of COUNTED occurs in a step, in that order."""
    noted = [is_view(op) for op in trace.ops if op.saved_for_backward]
    backward = sum(op.phase == "backward" for op in trace.ops)
    recipe = recipe_of(trace.case)
    scaled = recipe.scale == DYNAMIC
    return (
        1.0, trace.module_calls, noted.count(False), noted.count(True), backward, trace.weights,
        recipe.autocast is not None, scaled, scaled * trace.weights,
    )  # fmt: skip


def fitted(samples: Sequence[CalibrationStep]) -> FrameworkOverhead:
    """Non-negative least squares over relative errors: a short step counts as much as a long one.

    Where a coefficient would be negative it is set to 0, the most negative first.
    """
    rows = torch.tensor([counts(sample.trace) for sample in samples], dtype=torch.float64)
    whole = torch.tensor([sample.host_s for sample in samples], dtype=torch.float64)
    rest = whole - torch.tensor([sample.calls_s for sample in samples], dtype=torch.float64)
    scaled, wanted = rows / whole[:, None], rest / whole
    typical = scaled.square().mean(0).sqrt().clamp_min(1e-12)
    ridge = torch.diag(RIDGE * typical * len(samples) ** 0.5)
    system = torch.cat([scaled, ridge])
    target = torch.cat([wanted, torch.zeros(rows.shape[1], dtype=torch.float64)])
    found = _not_negative(system, target)
    error = (scaled @ found - wanted).square().mean().sqrt().item()
    return FrameworkOverhead(tuple(each.item() for each in found), error)


def _not_negative(system: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Least squares without negative values, by elimination. [rows, n], [rows] -> [n]"""
    found = torch.zeros(system.shape[1], dtype=system.dtype)
    used = torch.arange(system.shape[1])
    while len(used):
        values: torch.Tensor = least_squares(system[:, used], target[:, None]).solution[:, 0]
        if values.min() >= 0:
            found[used] = values
            break
        used = used[torch.arange(len(used)) != values.argmin()]
    return found
