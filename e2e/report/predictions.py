"""Steps as predicted from their operations: beside what was measured, or alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from e2e.report.arms import LADDER, Group, View, is_base
from e2e.results.baselines import BASELINES
from e2e.results.types import Predicted, Training
from microbench import fmt
from microbench.report.grid import DIM, Column, Grid, Row
from microbench.results.types import Ratio

BESIDE_TITLE = "The step as predicted from its operations, and as measured"
ALONE_TITLE = "The step as predicted from its operations; not measured"
MOST_UNCOVERED = 6
LACKING = "not in the prediction of {arms}, could not be replayed"
FROM_STEP = "timed in real steps for the prediction of {arms}, could not be launched alone"
AT_ITS_PACE = "at its pace: of what was predicted for the host's pace while it was measured"


def is_beside(arm: Training) -> bool:
    """Whether the arm was both predicted and timed."""
    return arm.predicted is not None and arm.steps is not None


def is_alone(arm: Training) -> bool:
    """Whether the arm was predicted and has no times."""
    return arm.predicted is not None and arm.steps is None


def error_pct(arm: Training) -> float | None:
    """How much longer the predicted step is than the measured one; None unless both are known."""
    predicted, step_s = arm.predicted, arm.step_s
    if predicted is None or not step_s:
        return None
    if predicted.error_pct is not None:
        return predicted.error_pct
    return 100 * (predicted.step_s / step_s - 1)


def paced_error_pct(arm: Training) -> float | None:
    """The same of the step as predicted for the host's pace while it was measured."""
    paced_s = arm.predicted.paced_s if arm.predicted else None
    return 100 * (paced_s / arm.step_s - 1) if paced_s and arm.step_s else None


@dataclass(frozen=True)
class Rows:
    """A table of predictions: its arms, its columns, and what they hold of an arm."""

    view: View
    columns: Sequence[Column]
    cells: Callable[[Training, Group], list[str]]


def compared_with(view: View) -> list[str]:
    """What predicted speed-ups are against, in the order of the columns."""
    found = dict.fromkeys(
        name
        for group in view.groups
        for arm in group.arms
        for name in (arm.predicted.speedup if arm.predicted else ())
    )
    known = [name for name in (*LADDER, *BASELINES) if name in found]
    return [*known, *(name for name in found if name not in known)]


def predicted_ratio(arm: Training, name: str, group: Group) -> str:
    """ "5.64"; "base" or "-" as in the table of measured ones."""
    predicted = arm.predicted
    if predicted and name in predicted.speedup:
        return plain_ratio(predicted.speedup[name])
    return "base" if is_base(arm, name, group) else "-"


def plain_ratio(value: float) -> str:
    """A ratio that nobody knows the interval of: "5.64"."""
    return fmt.short_ratio(Ratio(value, None))


def interval(predicted: Predicted) -> str:
    """The ends in milliseconds: "41.6..44.0"; "" when there are none."""
    ends = predicted.interval_s
    return f"{fmt.milliseconds(ends[0])}..{fmt.milliseconds(ends[1])}" if ends else ""


# ---------------------------------------------------------------- beside what was measured


def beside(view: View) -> Rows:
    """The arms that were predicted and timed; pairs are predicted / measured."""
    arms = view.only(is_beside)
    names = compared_with(arms)
    columns = [
        Column("recipe"),
        Column("predicted\nms", right=True),
        Column("between\nms", right=True, drop=9),
        Column("measured\nms", right=True),
        Column("error", right=True),
        Column("at its\npace", right=True, drop=10),
        Column("limited\nby", drop=6),
        Column("peak\nGB", right=True, drop=7),
        *_ratio_columns(view, names),
    ]
    return Rows(arms, columns, lambda arm, group: _beside(arm, group, view, names))


def beside_table(view: View, width: int, *, details: bool = False) -> list[Text]:
    """`beside` as a table with its notes."""
    rows = beside(view)
    outside = [view.label(a) for group in rows.view.groups for a in group.arms if _is_outside(a)]
    notes = [
        "two values: predicted / measured; error: of the predicted step",
        f"measured outside of what was predicted: {fmt.listed(outside, 4)}" * bool(outside),
    ]
    return _table(rows, notes, width, details)


def _beside(arm: Training, group: Group, view: View, names: Sequence[str]) -> list[str]:
    predicted, error = arm.predicted, error_pct(arm)
    assert predicted is not None
    return [
        view.label(arm),
        fmt.milliseconds(predicted.step_s),
        interval(predicted),
        fmt.milliseconds(arm.step_s),
        fmt.signed_pct(error) if error is not None else "",
        _paced(arm),
        _pair(fmt.clean(predicted.limit or ""), fmt.clean(arm.limit or "")),
        _pair(fmt.gigabytes(predicted.memory_bytes), fmt.gigabytes(arm.memory_peak_bytes)),
        *(_ratios(arm, name, group) for name in names),
    ]


def _ratio_columns(view: View, names: Sequence[str]) -> list[Column]:
    return [Column(f"x {view.title(name)}", right=True, drop=1 + i) for i, name in enumerate(names)]


def _pair(predicted: str, measured: str) -> str:
    return f"{predicted or '?'} / {measured or '?'}" if predicted or measured else ""


def _ratios(arm: Training, name: str, group: Group) -> str:
    predicted, measured = arm.predicted, arm.speedup.get(name)
    told = predicted_ratio(arm, name, group)
    if not predicted or name not in predicted.speedup:
        return told
    return _pair(told, plain_ratio(measured.ratio) if measured else "")


def _paced(arm: Training) -> str:
    """Where the host is the limit: elsewhere its pace changes nothing."""
    error = paced_error_pct(arm) if arm.limit == "host" else None
    return fmt.signed_pct(error) if error is not None else ""


def _is_outside(arm: Training) -> bool:
    ends = arm.predicted.interval_s if arm.predicted else None
    return bool(ends and arm.step_s and not ends[0] <= arm.step_s <= ends[1])


# ---------------------------------------------------------------- alone


def alone(view: View) -> Rows:
    """The arms that were predicted and have no times."""
    arms = view.only(is_alone)
    names = compared_with(arms)
    units = {arm.unit for group in arms.groups for arm in group.arms}
    unit = fmt.clean(next(iter(units))) if len(units) == 1 else ""
    columns = [
        Column("recipe"),
        Column(f"{unit}/s" if unit else "a second", right=True),
        Column("ms a\nstep", right=True, drop=8),
        Column("between\nms", right=True, drop=9),
        *_ratio_columns(view, names),
        Column("limited\nby", drop=6),
        Column("peak\nGB", right=True, drop=7),
    ]
    with_unit = len(units) > 1
    return Rows(arms, columns, lambda arm, group: _alone(arm, group, view, names, with_unit))


def alone_table(view: View, width: int, *, details: bool = False) -> list[Text]:
    """`alone` as a table with its notes."""
    return _table(alone(view), [], width, details)


def _alone(
    arm: Training, group: Group, view: View, names: Sequence[str], with_unit: bool
) -> list[str]:
    predicted = arm.predicted
    assert predicted is not None
    return [
        view.label(arm),
        fmt.throughput(arm.predicted_per_s or 0.0) + f" {fmt.clean(arm.unit)}" * with_unit,
        fmt.milliseconds(predicted.step_s),
        interval(predicted),
        *(predicted_ratio(arm, name, group) for name in names),
        fmt.clean(predicted.limit or ""),
        fmt.gigabytes(predicted.memory_bytes),
    ]


# ---------------------------------------------------------------- both


def _table(rows: Rows, notes: Sequence[str], width: int, details: bool) -> list[Text]:
    """The table with its notes; empty when it would have no rows."""
    view = rows.view
    if not view.groups:
        return []
    grid = Grid(rows.columns)
    for group in view.groups:
        if group.title:
            grid.rows += [*[None] * bool(grid.rows), group.title]
        grid.rows += [
            Row(rows.cells(arm, group), style=DIM if view.is_baseline(arm) else "")
            for arm in group.arms
        ]
    lines, left_out = grid.lines(width)
    known = [arm.predicted for group in view.groups for arm in group.arms]
    spread = any(predicted and predicted.interval_s for predicted in known)
    paced = any(_paced(arm) for group in view.groups for arm in group.arms)
    notes = [
        *notes,
        "between: the interval of the prediction" * (spread and "between ms" not in left_out),
        AT_ITS_PACE * (paced and "at its pace" not in left_out),
        *calls_named(view, details),
        predicting(view),
        f"left out to fit {fmt.count(width, 'column')}: {', '.join(left_out)}" * bool(left_out),
    ]
    return [*lines, *(Text(note, "dim") for note in notes if note)]


def predicting(view: View) -> str:
    """What predicting took, all arms together: "predicting these took 31 s: ..."."""
    stages: dict[str, float] = {}
    for group in view.groups:
        for arm in group.arms:
            for name, seconds in (arm.predicted.took_s if arm.predicted else {}).items():
                stages[name] = stages.get(name, 0.0) + seconds
    if not stages:
        return ""
    parts = [f"{fmt.clean(name)} {fmt.duration(s)}" for name, s in stages.items() if s]
    return f"predicting these took {fmt.duration(sum(stages.values()))}: {', '.join(parts)}"


def calls_named(view: View, details: bool) -> list[str]:
    """What predictions lack, and what they have from a real step, each list once with the arms it
    is of; whole with `details`.
    """
    seen: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for group in view.groups:
        for arm in group.arms:
            name = view.label(arm) + f" ({group.title})" * bool(group.title)
            for said, calls in _calls_of(arm).items():
                ops = tuple(fmt.clean(op) or "-" for op in calls)
                seen.setdefault((said, ops), []).append(name)
    return [
        f"{said.format(arms=fmt.listed(names))}: "
        f"{fmt.listed(list(ops), len(ops) if details else MOST_UNCOVERED)}"
        for (said, ops), names in seen.items()
    ]


def _calls_of(arm: Training) -> dict[str, tuple[str, ...]]:
    if not arm.predicted:
        return {}
    found = {LACKING: arm.predicted.uncovered, FROM_STEP: arm.predicted.from_step}
    return {said: calls for said, calls in found.items() if calls}
