"""How far off the predictions of published files were, for the pages that say so.

They are of the first method, which predicted whole steps with a model of CPU launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from e2e.report.predictions import error_pct, is_predicted, off_pct
from e2e.results.baselines import BASELINES
from e2e.results.types import BORDER, Training


@dataclass(frozen=True)
class Line:
    """Median and largest of `count` errors, in per cent; `worst` names the largest one's step."""

    what: str
    count: int
    median_pct: float
    largest_pct: float
    worst: str


def error_table(trainings: Sequence[Training]) -> dict[str, Line]:
    """Errors of step times by measured bottleneck, of speed-ups, and of peak memory."""
    both = [t for t in trainings if is_predicted(t) and t.steps]
    gpu, host = ([t for t in both if t.limit == limit] for limit in ("gpu", "host"))
    plain, captured = ([t for t in gpu if t.case.graph == graph] for graph in (False, True))
    said = [t for t in both if not t.case.graph and t.predicted and t.predicted.limit == "gpu"]
    rows = (
        _line("step, bottleneck GPU", plain, error_pct),
        _line("step, bottleneck predicted as GPU", said, error_pct),
        _line("step, timed as a captured graph", captured, error_pct),
        _line("step, bottleneck CPU launch", host, error_pct),
        _line("the same, corrected for the CPU's speed", host, _paced_pct),
        *(
            _line(f"AMP's speed-up over {base}, bottleneck {who}",
                  [t for t in some if t.case.recipe.startswith("amp")], _speedup_pct(base))
            for who, some in (("GPU", gpu), ("CPU launch", host))
            for base in BASELINES
        ),
        _line("peak memory", both, _memory_pct),
    )  # fmt: skip
    return {row.what: row for row in rows if row}


def _line(
    what: str, trainings: Sequence[Training], pct: Callable[[Training], float | None]
) -> Line | None:
    known = [(abs(value), t) for t in trainings if (value := pct(t)) is not None]
    if not known:
        return None
    largest, worst = max(known, key=lambda pair: pair[0])
    case = worst.case
    named = [case.network, case.recipe, case.layout, f"batch {case.batch}", "graph" * case.graph]
    return Line(what, len(known), median(v for v, _ in known), largest,
                " ".join(filter(None, named)))  # fmt: skip


def _paced_pct(training: Training) -> float | None:
    predicted = training.predicted
    return off_pct(predicted.paced_s, training.measured_s) if predicted else None


def _speedup_pct(base: str) -> Callable[[Training], float | None]:
    def pct(training: Training) -> float | None:
        predicted = training.predicted.speedup.get(base) if training.predicted else None
        measured = training.speedup.get(base)
        return off_pct(predicted, measured.ratio if measured else None)

    return pct


def _memory_pct(training: Training) -> float | None:
    predicted = training.predicted.memory_bytes if training.predicted else None
    return off_pct(predicted, training.memory_peak_bytes)


def limits_named(trainings: Sequence[Training]) -> tuple[int, int, int]:
    """(bottlenecks named right, on the border of GPU and CPU launch, all that are known)."""
    pairs = [(t.predicted.limit, t.limit) for t in trainings
             if t.predicted and t.steps and t.limit]  # fmt: skip
    return sum(a == b for a, b in pairs), sum(a == BORDER for a, _ in pairs), len(pairs)


def is_within(training: Training) -> bool | None:
    """Whether the measured step is inside the prediction's interval; None if not known."""
    ends = training.predicted.interval_s if training.predicted else None
    step_s = training.measured_s
    return ends[0] <= step_s <= ends[1] if ends and step_s else None


def in_step_over_alone(trainings: Sequence[Training]) -> list[float]:
    """GPU time of all operations in recorded steps over that of the operations alone."""
    found: list[float] = []
    for training in trainings:
        traced, predicted = training.traced, training.predicted
        if traced and predicted and traced.launches and not training.case.graph:
            alone_ms = sum(predicted.terms_ms.values())
            if alone_ms > 0 and not predicted.uncovered:
                found.append(traced.busy_ns / traced.steps / 1e6 / alone_ms)
    return found
