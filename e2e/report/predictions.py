"""What was predicted of steps: the GPU's time from their operations or, in older files, steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

from e2e.report.arms import SHORT_MARK, SHORT_NOTE, Group, View, arms_of, grouped, in_order, place
from e2e.report.figures import bottleneck, signed_pct
from e2e.report.table import BASELINES, arms_table, raw, raw_pair
from e2e.results.types import Predicted, Training
from microbench import fmt
from microbench.report.table import Column, Part, Value
from microbench.results.types import Ratio

# A CPU that needs this share of the GPU's time to launch may limit the step: in nine of ten steps
# the estimate is at most a quarter off, and a shared CPU's speed changes by half.
MAY_LIMIT = 0.6
ROUGH = (
    "On a CPU this is rough: operations alone, without what Python does between them. Steps of "
    "small networks were 30 to 70 % off."
)
MOST_UNCOVERED = 6
MOST_NAMED = 4
MISSING = "missing from the prediction of {arms} (could not be replayed): too short"
FROM_STEP = "timed in real steps for {arms} (could not be launched in isolation)"


def of_operations(arm: Training) -> bool:
    """Whether the GPU's time was predicted, the sum of operations."""
    return arm.predicted is not None and arm.predicted.of_operations


def is_predicted(arm: Training) -> bool:
    """Whether anything was."""
    return arm.predicted is not None


def error_pct(arm: Training) -> float | None:
    """Error in per cent (positive: too long) of the GPU's time, or of the step; None: unknown."""
    predicted, steps = arm.predicted, arm.steps
    if predicted is None or steps is None:
        return None
    if predicted.of_operations:
        return off_pct(predicted.gpu_s, steps.busy_s)
    if predicted.error_pct is None or arm.case.fed:  # older files have that of the median step
        return off_pct(predicted.step_s, arm.step_s)
    return predicted.error_pct


def off_pct(predicted: float | None, measured: float | None) -> float | None:
    """How much larger the prediction is, in per cent; None unless both are known."""
    return 100 * (predicted / measured - 1) if predicted and measured else None


def plain_ratio(value: float) -> str:
    """A ratio without an interval, such as "5.64"."""
    return fmt.short_ratio(Ratio(value, None))


def interval(predicted: Predicted) -> str:
    """The ends of the interval in milliseconds, such as "41.6..44.0"; "" without one."""
    ends = predicted.interval_s
    return f"{fmt.milliseconds(ends[0])}..{fmt.milliseconds(ends[1])}" if ends else ""


def _of(arm: Training) -> Predicted:
    assert arm.predicted is not None
    return arm.predicted


def prediction_part(view: View, *, details: bool = True) -> Part:
    """A row for each prediction, in ms, beside what was measured."""
    arms = view.only(is_predicted)
    alone = any(map(of_operations, arms.arms))
    names = in_order({name: 0 for arm in arms.arms for name in _of(arm).speedup})
    unsaid = not view.compared and any(map(view.is_short, names))  # below the table of speed
    columns: list[Column[Training]] = [
        Column("predicted\nms", lambda arm: fmt.milliseconds(_of(arm).step_s), right=True),
        Column("interval", lambda arm: interval(_of(arm)), right=True, drop=9),
        Column("measured\nms", _measured, right=True),
        Column("error", lambda arm: signed_pct(error_pct(arm)), right=True),
        *(Column(f"x {view.title(name, SHORT_MARK)}", _ratio(name), right=True) for name in names),
        Column("exchange\nadds ms", lambda arm: fmt.milliseconds(_of(arm).exchange_s),
               right=True, drop=5),
        Column("launches", lambda arm: str(_of(arm).launches or ""), right=True, drop=6),
        Column("CPU launch\nms, about", lambda arm: fmt.milliseconds(_of(arm).host_s), right=True,
               drop=4),
        Column("bottleneck", lambda arm: bottleneck(_of(arm).limit), drop=7),
        Column("peak\nGB", lambda arm: fmt.gigabytes(_of(arm).memory_bytes), right=True, drop=8),
    ]  # fmt: skip
    return Part(
        "Predicted GPU time of a step (operations alone)" if alone else "Predicted step",
        arms_table(view, arms, columns),
        [*_calls(arms, details), *[SHORT_NOTE] * unsaid],
        notes=[_predicting(arms)],
    )


def _measured(arm: Training) -> str:
    """The GPU's time, or the step."""
    if of_operations(arm):
        return fmt.milliseconds(arm.steps.busy_s) if arm.steps else ""
    return fmt.milliseconds(arm.step_s)


def _ratio(name: str) -> Callable[[Training], str]:
    return lambda arm: plain_ratio(found) if (found := _of(arm).speedup.get(name)) else ""


def _predicting(view: View) -> str:
    """How long predicting took, over all arms, such as "prediction took 31 s: ..."."""
    took = [stage for arm in view.arms if arm.predicted for stage in arm.predicted.took_s.items()]
    stages = {name: sum(found) for name, found in grouped(took).items()}
    if not stages:
        return ""
    parts = [f"{fmt.clean(name)} {fmt.duration(s)}" for name, s in stages.items() if s]
    return f"prediction took {fmt.duration(sum(stages.values()))}: {', '.join(parts)}"


def _calls(view: View, details: bool) -> list[str]:
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
        f"{fmt.listed(list(ops), len(ops) if details else MOST_UNCOVERED)}."
        for (said, ops), names in found.items()
    ]


def raw_columns() -> list[Column[Training]]:
    """The predictions in CSV: seconds, bytes, per cent."""

    def speedup(name: str, arm: Training) -> Value:
        return arm.predicted.speedup.get(name) if arm.predicted else None

    return [
        Column(csv={
            **raw("predicted", predicted_step_s="step_s"), "predicted_error_pct": error_pct,
            **raw("", "predicted_per_s"),
            **raw_pair("predicted_low_s", "predicted_high_s",
                       lambda arm: arm.predicted.interval_s if arm.predicted else None),
            **raw("predicted", predicted_at_host_speed_s="paced_s", predicted_limit="limit",
                  predicted_memory_peak_bytes="memory_bytes"),
            **{f"predicted_speedup_{name}": partial(speedup, name) for name in BASELINES},
        })
    ]  # fmt: skip


# ---------------------------------------------------------------- sentences


def prediction_sentences(view: View, family: Sequence[Group]) -> list[str]:
    """What was predicted, its doubts, and how far it is from what was measured."""
    arms = list(filter(of_operations, arms_of(family)))
    found = [_sentence(view, arm) for arm in arms]
    if any(_of(arm).gpu_s is None for arm in arms):
        found.append(ROUGH)
    errors = [(abs(error), arm) for arm in arms if (error := error_pct(arm)) is not None]
    if errors:
        middle = median(error for error, _ in errors)
        worst, arm = max(errors, key=lambda pair: pair[0])
        found.append(
            f"Error of the GPU time: median {middle:.1f} %, worst {worst:.1f} % "
            f"({view.full_label(arm)}), of {fmt.count(len(errors), 'step')}."
        )
    return found


def _sentence(view: View, arm: Training) -> str:
    """ "amp: 42.9 ms of the GPU a step, 40.8..45.0 (resnet50, batch 256), 11.6 GB; 605 launches,
    about 14.5 ms of this CPU."
    """
    predicted = _of(arm)
    what = "of operations" if predicted.gpu_s is None else "of the GPU"
    least = "at least " * bool(predicted.uncovered)
    parts = [f"{view.label(arm)}: {least}{fmt.milliseconds(predicted.step_s)} ms {what} a step"]
    if ends := interval(predicted):
        parts.append(f", {ends}")
    parts.append(f" ({place(arm)})")
    parts += [
        f"; {view.title(name)} takes {plain_ratio(ratio)} times as long"
        for name, ratio in predicted.speedup.items()
    ]
    if predicted.memory_bytes:
        parts.append(f", {fmt.gigabytes(predicted.memory_bytes)} GB")
    if predicted.launches:
        parts.append(f"; {fmt.count(predicted.launches, 'launch', 'launches')}")
    if predicted.host_s:
        parts.append(f", about {fmt.milliseconds(predicted.host_s)} ms of this CPU")
        if predicted.host_s > MAY_LIMIT * predicted.step_s:
            parts.append(": may be the limit, then a step takes longer")
    if predicted.uncovered:
        names = [fmt.clean(line).split(":")[0] for line in predicted.uncovered]
        parts.append(f". No time is known of {fmt.listed(names, MOST_NAMED)}")
    return "".join(parts) + "."
