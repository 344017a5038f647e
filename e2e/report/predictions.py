"""Steps as older versions predicted them, beside measured ones; what all predictions share."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from rich.text import Text

from e2e.report.arms import View, grouped, in_order
from e2e.report.figures import bottleneck_short, signed_pct
from e2e.report.table import (
    BASELINES,
    arms_table,
    name_columns,
    plain_row,
    raw_pair,
    table_lines,
)
from e2e.results.types import Predicted, Training
from microbench import fmt
from microbench.report.table import Column, Table, Value
from microbench.results.types import Ratio

TITLE = "Predicted step"
MOST_UNCOVERED = 6
MOST_NAMED = 4
MISSING = "missing from the prediction of {arms} (could not be replayed): too short"
FROM_STEP = "timed in real steps for {arms} (could not be launched in isolation)"


def is_beside(arm: Training) -> bool:
    """Whether the arm's step was both predicted and timed."""
    return has_step(arm) and arm.steps is not None


def is_alone(arm: Training) -> bool:
    """Whether the arm's step was predicted but not timed."""
    return has_step(arm) and arm.steps is None


def has_step(arm: Training) -> bool:
    """Whether a whole step was predicted, not the GPU's time alone."""
    return arm.predicted is not None and not arm.predicted.of_operations


def error_pct(arm: Training) -> float | None:
    """Error of the predicted step in per cent (positive: too long); None if not known."""
    if arm.predicted is None or not arm.measured_s or not is_beside(arm):
        return None
    known = arm.predicted.error_pct
    if known is None or arm.case.fed:  # older files have that of the median step
        return off_pct(arm.predicted.step_s, arm.measured_s)
    return known


def off_pct(predicted: float | None, measured: float | None) -> float | None:
    """How much larger the prediction is, in per cent; None unless both are known."""
    return 100 * (predicted / measured - 1) if predicted and measured else None


def compared_with(view: View) -> tuple[str, ...]:
    """The baselines of predicted speed-ups, in the order of the columns."""
    return in_order({name: 0 for arm in view.arms for name in _speedup(arm)})


def plain_ratio(value: float) -> str:
    """A ratio without an interval, such as "5.64"."""
    return fmt.short_ratio(Ratio(value, None))


def interval(predicted: Predicted) -> str:
    """The ends of the interval in milliseconds, such as "41.6..44.0"; "" without one."""
    ends = predicted.interval_s
    return f"{fmt.milliseconds(ends[0])}..{fmt.milliseconds(ends[1])}" if ends else ""


def _of(read: Callable[[Predicted], str]) -> Callable[[Training], str]:
    """What a prediction says; "" without one."""
    return lambda arm: read(arm.predicted) if arm.predicted else ""


def _speedup(arm: Training) -> dict[str, float]:
    return dict(arm.predicted.speedup) if arm.predicted else {}


def step_table(view: View) -> Table[Training]:
    """The arms whose whole step was predicted, in ms, beside what was measured."""
    arms = view.only(has_step)
    several = any(arm.predicted and arm.predicted.exchange_s is not None for arm in arms.arms)
    columns: list[Column[Training]] = [
        *name_columns(view),
        Column("predicted\nms", _of(lambda p: fmt.milliseconds(p.step_s)), right=True),
        Column("interval", _of(interval), right=True, drop=9),
        Column("exchange\nadds ms", _of(lambda p: fmt.milliseconds(p.exchange_s)) if several
               else None, right=True, drop=8),
        *(
            Column(f"x {view.title(name)}", _ratio(name), right=True, drop=drop)
            for drop, name in enumerate(compared_with(arms), 1)
        ),
        Column("bottleneck", _of(lambda p: bottleneck_short(p.limit)), drop=6),
        Column("peak\nGB", _of(lambda p: fmt.gigabytes(p.memory_bytes)), right=True, drop=7),
        Column("measured\nms", lambda arm: fmt.milliseconds(arm.measured_s), right=True),
        Column("error", lambda arm: signed_pct(error_pct(arm)), right=True),
    ]  # fmt: skip
    return arms_table(arms, columns, plain_row(arms))


def _ratio(name: str) -> Callable[[Training], str]:
    return lambda arm: plain_ratio(_speedup(arm)[name]) if name in _speedup(arm) else ""


def step_lines(view: View, width: int, *, details: bool = False) -> list[Text]:
    """The table with its notes; empty without rows."""
    arms = view.only(has_step)
    notes = [*calls_named(arms, details), predicting(arms)]
    return table_lines(step_table(view), width, filter(None, notes))


def predicting(view: View) -> str:
    """How long predicting took, over all arms, such as "prediction took 31 s: ..."."""
    took = [stage for arm in view.arms if arm.predicted for stage in arm.predicted.took_s.items()]
    stages = {name: sum(found) for name, found in grouped(took).items()}
    if not stages:
        return ""
    parts = [f"{fmt.clean(name)} {fmt.duration(s)}" for name, s in stages.items() if s]
    return f"prediction took {fmt.duration(sum(stages.values()))}: {', '.join(parts)}"


def calls_named(view: View, details: bool) -> list[str]:
    """The calls missing from predictions, and those timed in a real step, with their arms.

    Each list once; all calls with `details`.
    """
    found = grouped(
        ((said, tuple(fmt.clean(op) or "-" for op in calls)), view.full_label(arm))
        for arm in view.arms
        if arm.predicted
        for said, calls in (
            (MISSING, arm.predicted.uncovered), (FROM_STEP, arm.predicted.from_step),
        )
        if calls
    )  # fmt: skip
    return [
        f"{said.format(arms=fmt.listed(names))}: "
        f"{fmt.listed(list(ops), len(ops) if details else MOST_UNCOVERED)}"
        for (said, ops), names in found.items()
    ]


def raw_columns() -> list[Column[Training]]:
    """The predictions in CSV: seconds, bytes, per cent."""
    return [
        Column(csv={
            "predicted_step_s": _raw("step_s"), "predicted_error_pct": error_pct,
            "predicted_per_s": attrgetter("predicted_per_s"),
            **raw_pair("predicted_low_s", "predicted_high_s",
                       lambda arm: arm.predicted.interval_s if arm.predicted else None),
            "predicted_at_host_speed_s": _raw("paced_s"), "predicted_limit": _raw("limit"),
            "predicted_memory_peak_bytes": _raw("memory_bytes"),
            **{f"predicted_speedup_{name}": _raw_speedup(name) for name in BASELINES},
        })
    ]  # fmt: skip


def _raw(name: str) -> Callable[[Training], Value]:
    return lambda arm: getattr(arm.predicted, name) if arm.predicted else None


def _raw_speedup(name: str) -> Callable[[Training], Value]:
    return lambda arm: _speedup(arm).get(name)
