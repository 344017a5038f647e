"""Trainings as a Markdown table, for READMEs and issues."""

from __future__ import annotations

from collections.abc import Sequence

from microbench.report import words
from microbench.report.training.arms import (
    Group,
    View,
    is_generated,
    reason,
    view_of,
    what_was_trained,
)
from microbench.report.training.figures import gigabytes, milliseconds, rate, spread
from microbench.report.training.table import busy_pct, ratio_cells
from microbench.results import Run
from microbench.train_results import Training


def training_table(run: Run) -> str:
    """One row an arm or a ladder's rung, in the order measured; what has no times says why.

    Columns that no arm fills are left out, and so is what all arms share: that is the caption's.
    """
    view = view_of(run)
    compared = view.compared
    header = _header(run, view, compared)
    rows = [_cells(arm, group, view, compared) for group in view.groups for arm in group.arms]
    kept = [i for i in range(len(header)) if any(row[i] for row in rows)]
    left = ("", "recipe", "rung", "limited by", "learnt")
    rule = ["---" if header[i] in left else "---:" for i in kept]
    lines = [[header[i] for i in kept], rule, *([row[i] for i in kept] for row in rows)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n"
                   for line in lines)  # fmt: skip


def training_caption(run: Run) -> str:
    """A line on the device, what was trained, and on which data."""
    device = words.clean(run.device.get("name", "unknown device"))
    return f"{device}: {', '.join(what_was_trained(run))}."


def _header(run: Run, view: View, compared: Sequence[str]) -> list[str]:
    units = {arm.unit for arm in run.trainings}
    unit = words.clean(next(iter(units))) if len(units) == 1 else ""
    generated = any(is_generated(arm.case) for arm in run.trainings)
    return [
        "",
        "rung" if any(group.is_ladder for group in view.groups) else "recipe",
        f"{unit}/s" if unit else "a second",
        "ms a step",
        *(f"x {view.title(name)}" for name in compared),
        "peak GB",
        "W",
        f"{unit}/J" if unit else "a joule",
        "GPU busy",
        "limited by",
        f"accuracy{' (generated data)' * generated}",
        f"held-out loss{' (generated data)' * generated}",
        "training s",
        "learnt",
    ]


def _cells(arm: Training, group: Group, view: View, compared: Sequence[str]) -> list[str]:
    name = [group.title, view.label(arm)]
    per_s = arm.per_s
    if per_s is None:
        said = arm.status if arm.status == "ok" else f"{arm.status}: {reason(arm)}"
        timed = [said, *[""] * (6 + len(compared))]
    else:
        several_units = len({other.unit for g in view.groups for other in g.arms}) > 1
        power_w = arm.state.power_w
        timed = [
            rate(per_s) + f" {words.clean(arm.unit)}" * several_units,
            milliseconds(arm.step_s),
            *ratio_cells(arm, group, compared),
            gigabytes(arm.memory_peak_bytes),
            f"{power_w:.0f}" if power_w is not None else "",
            rate(arm.per_j) if arm.per_j else "",
            words.per_cent(busy_pct(arm)),
            words.clean(arm.limit or ""),
        ]
    several = len(arm.repeats) > 1
    accuracy = spread(arm.accuracy, several, 100)
    why = f": {words.clean(arm.convergence)}" if arm.convergence else ""
    learnt = {True: "converged", False: f"not converged{why}", None: ""}[arm.converged]
    return [*name, *timed, f"{accuracy} %" if accuracy else "", spread(arm.loss, several),
            spread(arm.train_s, several), learnt]  # fmt: skip
