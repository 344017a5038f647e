"""The cells of a study: what its run files have, each by the key of its case."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, pstdev, stdev
from typing import Any

from e2e.case import TrainCase, label_of
from e2e.report.figures import bottleneck
from e2e.results.baselines import BASELINES
from e2e.results.types import PREDICTED, Repeat, Training
from microbench import fmt
from microbench.results.types import AnyCase, Ratio
from microbench.timing.stats import t_quantile

HERE = "here"  # the machine, where the author's are keys
DEVIATION, HALF = "_std", "_ci95"  # of a column's repeats: endings of its name
Read = Callable[[Training], Any]


def half_interval(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of the mean of repeats, by Student's t; None for fewer than two."""
    if len(values) < 2:
        return None
    return t_quantile(0.95, len(values) - 1) * stdev(values) / math.sqrt(len(values))


def gain_of(training: Training) -> Ratio | None:
    """Times faster than float32 (fp32 or O0), else than TF32; None for float32 itself."""
    if training.case.recipe in BASELINES["fp32"]:
        return None
    return training.speedup.get("fp32") or training.speedup.get("tf32")


def _finite(training: Training, each: Callable[[Repeat], float | None]) -> list[float]:
    """The values of all repeats; none where one is not finite: the others went well by chance."""
    values = [each(repeat) for repeat in training.repeats]
    known = [value for value in values if value is not None and math.isfinite(value)]
    return known if len(known) == len(values) else []


def _repeated(name: str, each: Callable[[Repeat], float | None]) -> dict[str, Read]:
    """The mean over the repeats, their population deviation, and the half interval of the mean."""
    return {
        name: lambda t: fmean(values) if (values := _finite(t, each)) else None,
        name + DEVIATION: lambda t: pstdev(v) if len(v := _finite(t, each)) > 1 else None,
        name + HALF: lambda t: half_interval(_finite(t, each)),
    }


def _losses(training: Training) -> str | None:
    """ "4.8026 (5.1898)": the last loss and the average."""
    last, mean = _finite(training, lambda r: r.last_loss), _finite(training, lambda r: r.mean_loss)
    return f"{fmean(last):.4f} ({fmean(mean):.4f})" if last and mean else None


def _per_s(end: int) -> Read:
    """Throughput of the shortest (0) or longest (-1) single step."""
    return lambda t: t.step_units / t.step_range_s[end] if t.step_range_s else None


def _over(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


COLUMNS: dict[str, Read] = {
    "per_s": lambda t: t.per_s,
    "step_ms": lambda t: _over(t.step_s, 1e-3),
    "speedup": lambda t: (gain := gain_of(t)) and gain.ratio,
    "limit": lambda t: t.limit,
    "wait_ms": lambda t: _over(t.data_wait_s, 1e-3),
    "slowest_per_s": _per_s(-1),
    "fastest_per_s": _per_s(0),
    **_repeated("iterations_s", lambda r: r.train_s),
    **_repeated("hundred_s", lambda r: 100 * r.train_s / r.steps if r.steps else None),
    **_repeated("accuracy_pct", lambda r: _over(r.accuracy, 0.01)),
    "converged": lambda t: t.converged,
    "losses": _losses,
    "bandwidth_gb_s": lambda t: _over(t.exchange.bus_bytes_per_s, 1e9) if t.exchange else None,
    "allocated_mb": lambda t: _over(t.memory_peak_bytes, 1e6),
    "nvml_mib": lambda t: _over(t.memory_process_bytes, 2**20),
    "gpu_util_pct": lambda t: t.state.gpu_util_pct and t.state.gpu_util_pct.mean,
    "model_mb": lambda t: _over(t.model_bytes, 1e6),
    "epochs": lambda _: None,  # the cell has these two: they take the options of its run
    "projected_s": lambda _: None,
}


def written(name: str, value: Any) -> str:
    """A value of a column, or a field of a case, for a person."""
    if name == "limit":
        return bottleneck(value)
    if name not in COLUMNS or not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 else fmt.number(value)


@dataclass(frozen=True)
class Cell:
    """One result of the run with the id `run`. `cell` is its name, "RUN-N".

    `reason` is why it has no values; `case` None stands for what a run has not measured.
    """

    cell: str
    run: str
    status: str
    reason: str = ""
    case: AnyCase | None = None
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    training: Training | None = None

    @property
    def measured(self) -> bool:
        """Whether it has values."""
        return self.status in ("ok", PREDICTED)

    def value(self, name: str) -> Any:
        """The value of a column, or a field of the case or of the cell; None where it has none."""
        if name in COLUMNS:
            return self.values.get(name)
        return getattr(self.case, name, getattr(self, name, None))

    def words(self, names: Sequence[str]) -> list[str]:
        """These fields of its case, as ["resnet50", "amp", "2 GPUs"]; usual ones are left out."""
        if not isinstance(self.case, TrainCase):
            return []
        return [text for name in names if (text := label_of(self.case, name))]


def differing(cells: Sequence[Cell]) -> list[str]:
    """The fields in which the cases of cells differ, in the order of a case."""
    cases = [cell.case for cell in cells if cell.case]
    return [
        name for name in TrainCase.__dataclass_fields__
        if len({getattr(case, name) for case in cases if hasattr(case, name)}) > 1
    ]  # fmt: skip
