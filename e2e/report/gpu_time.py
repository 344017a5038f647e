"""The GPU's time of steps, predicted from their operations, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.text import Text

from e2e.report.arms import Group, View, arms_of, place
from e2e.report.figures import signed_pct
from e2e.report.predictions import (
    MOST_NAMED,
    calls_named,
    compared_with,
    interval,
    off_pct,
    plain_ratio,
    predicting,
)
from e2e.report.table import arms_table, name_columns, plain_row, table_lines
from e2e.results.types import Predicted, Training
from microbench import fmt
from microbench.report.table import Column, Table

TITLE = "Predicted GPU time of a step (operations alone)"
# A CPU that needs this share of the GPU's time to launch may limit the step: in nine of ten steps
# the estimate is at most a quarter off, and a shared CPU's speed changes by half.
MAY_LIMIT = 0.6
ROUGH = (
    "On a CPU this is rough: operations alone, without what Python does between them. Steps of "
    "small networks were 30 to 70 % off."
)


def is_predicted(arm: Training) -> bool:
    """Whether the GPU's time was predicted."""
    return arm.predicted is not None and arm.predicted.of_operations


def gpu_error_pct(arm: Training) -> float | None:
    """How much longer it is than the measured step's kernels run, in per cent; None: unknown."""
    if arm.predicted is None or not is_predicted(arm) or arm.steps is None:
        return None
    return off_pct(arm.predicted.gpu_s, arm.steps.busy_s)


def gpu_time_table(view: View) -> Table[Training]:
    """A row for each step whose GPU time was predicted, in ms."""
    arms = view.only(is_predicted)
    measured = any(arm.steps for arm in arms.arms)
    columns: list[Column[Training]] = [
        *name_columns(view),
        Column("predicted\nms", lambda arm: fmt.milliseconds(_of(arm).step_s), right=True),
        Column("interval", lambda arm: interval(_of(arm)), right=True, drop=5),
        Column(
            "measured\nms",
            lambda arm: (
                fmt.milliseconds(arm.steps.busy_s if arm.steps else None) if measured else ""
            ),
            right=True,
        ),
        Column("error", lambda arm: signed_pct(gpu_error_pct(arm)), right=True),
        *(
            Column(f"x {view.title(name)}", lambda arm, name=name: _ratio(arm, name), right=True)
            for name in compared_with(arms)
        ),
        Column("launches", lambda arm: str(_of(arm).launches or ""), right=True, drop=3),
        Column("CPU launch\nms, about", lambda arm: fmt.milliseconds(_of(arm).host_s), right=True),
        Column("peak\nGB", lambda arm: fmt.gigabytes(_of(arm).memory_bytes), right=True, drop=2),
    ]
    return arms_table(arms, columns, plain_row(arms))


def _of(arm: Training) -> Predicted:
    assert arm.predicted is not None
    return arm.predicted


def _ratio(arm: Training, name: str) -> str:
    found = _of(arm).speedup.get(name)
    return plain_ratio(found) if found else ""


def gpu_time_lines(view: View, width: int, *, details: bool = False) -> list[Text]:
    """The table with notes, at most `width` columns wide; empty without rows."""
    arms = view.only(is_predicted)
    notes = [*calls_named(arms, details), predicting(arms)]
    return table_lines(gpu_time_table(view), width, filter(None, notes))


def gpu_time_sentences(view: View, family: Sequence[Group]) -> list[str]:
    """What was predicted, its doubts, and how far it is from what was measured."""
    arms = list(filter(is_predicted, arms_of(family)))
    found = [_sentence(view, arm) for arm in arms]
    if any(_of(arm).gpu_s is None for arm in arms):
        found.append(ROUGH)
    errors = sorted((abs(error), arm) for arm in arms if (error := gpu_error_pct(arm)) is not None)
    if errors:
        middle, (worst, arm) = median(error for error, _ in errors), errors[-1]
        found.append(
            f"Error of the GPU time: median {middle:.1f} %, worst {worst:.1f} % "
            f"({view.label_among(arm, family)}), of {fmt.count(len(errors), 'step')}."
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
