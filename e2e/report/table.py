"""The table of a run's throughput: one row an arm, a block for each group of arms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from e2e.report.arms import (
    LADDER,
    Group,
    View,
    is_base,
    reason,
)
from e2e.report.figures import ratio
from e2e.results.types import Training
from microbench import fmt
from microbench.report.grid import DIM, Column, Grid, Row

SENTENCE = {"skipped": "skipped", "failed": "FAILED"}
NOT_CONVERGED = " *"


@dataclass(frozen=True)
class TrainTable:
    """Lines ready to print, titles of columns left out, and arms whose reason did not fit."""

    lines: list[Text]
    left_out: list[str]
    cut: list[Training]


def train_table(view: View, width: int) -> TrainTable:
    """The table, no wider than `width`."""
    units = {arm.unit for group in view.groups for arm in group.arms}
    compared = view.compared
    grid = Grid(_columns(view, compared, units))
    placed: list[tuple[Row, Training]] = []
    for group in view.groups:
        grid.rows += [None] * bool(grid.rows)
        if group.title:
            grid.rows.append(group.title)
        rows = [_row(arm, group, view, compared, len(units) > 1) for arm in group.arms]
        grid.rows += rows
        placed += zip(rows, group.arms, strict=True)
    lines, left_out = grid.lines(width)
    cut = [
        arm
        for row, arm in placed
        if row.sentence and cell_len(row.sentence) > grid.space_for_sentence(row, width)
    ]
    return TrainTable(lines, left_out, cut)


def _columns(view: View, compared: Sequence[str], units: set[str]) -> list[Column]:
    ladder = any(group.is_ladder for group in view.groups)
    unit = fmt.clean(next(iter(units))) if len(units) == 1 else ""
    ratios = [Column(f"x {view.title(name)}", right=True, drop=1 + i)
              for i, name in enumerate(compared)]  # fmt: skip
    return [
        Column("rung" if ladder else "recipe"),
        Column(f"{unit}/s" if unit else "a second", right=True),
        Column("±", right=True, drop=19),
        Column("ms a\nstep", right=True, drop=16),
        *ratios,
        Column("peak\nGB", right=True, drop=15),
        Column("power\nW", right=True, drop=20),
        Column(f"{unit}/J" if unit else "a joule", right=True, drop=17),
        Column("GPU\nbusy", right=True, drop=21),
        Column("host\nms", right=True, drop=22),
        *[Column("waits\nms", right=True, drop=14)] * _is_fed(view),
        Column("limited\nby", drop=18),
    ]


def _is_fed(view: View) -> bool:
    """Whether a loader feeds any of the arms."""
    return any(arm.case.fed for group in view.groups for arm in group.arms)


def _row(arm: Training, group: Group, view: View, compared: Sequence[str], with_unit: bool) -> Row:
    label = view.label(arm) + NOT_CONVERGED * (arm.converged is False)
    steps, per_s = arm.steps, arm.per_s
    if steps is None or per_s is None:
        style = "red" if arm.status == "failed" else DIM
        said = SENTENCE.get(arm.status, "not timed")
        return Row([label], said if arm.status == "ok" else f"{said}: {reason(arm)}", style)
    unit = f" {fmt.clean(arm.unit)}" if with_unit else ""
    state = arm.state
    cells = [
        label,
        fmt.throughput(per_s) + unit,
        fmt.half_interval(steps.median_s, steps.ci95_s),
        fmt.milliseconds(steps.median_s),
        *ratio_cells(arm, group, compared),
        fmt.gigabytes(arm.memory_peak_bytes),
        f"{state.power_w:.0f}" if state.power_w is not None else "",
        fmt.throughput(arm.per_j) if arm.per_j else "",
        fmt.per_cent(busy_pct(arm)),
        fmt.milliseconds(steps.host_s),
        *[fmt.milliseconds(steps.wait_s)] * _is_fed(view),
        fmt.clean(arm.limit or ""),
    ]
    style = "red" if arm.converged is False else DIM if view.is_baseline(arm) else ""
    return Row(cells, style=style)


def ratio_cells(arm: Training, group: Group, compared: Sequence[str]) -> list[str]:
    """A cell for each baseline. A baseline is compared with those before it only: the rest would
    repeat the same ratios upside down."""
    cells: list[str] = []
    own = False
    for name in compared:
        found = arm.speedup.get(name)
        base = is_base(arm, name, group)
        own = own or (base and name not in LADDER)
        if base and found is None:
            cells.append("base")
        else:
            cells.append(ratio(found) if found and not own else "-")
    return cells


def busy_pct(arm: Training) -> float | None:
    """Share of the step in which at least one kernel ran."""
    steps = arm.steps
    if steps is None or steps.busy_s is None:
        return None
    return 100 * min(1.0, steps.busy_s / steps.median_s)


def notes(view: View, table: TrainTable, width: int) -> list[Text]:
    """How to read the table, and what belongs to all of it."""
    arms = [arm for group in view.groups for arm in group.arms]
    timed = [arm for arm in arms if arm.steps]
    ratios = [found for arm in arms for found in arm.speedup.values()]
    parts = [
        ("±: larger half of 95 % interval", any(a.steps and a.steps.ci95_s for a in timed)),
        ("~1: no difference seen; under 1: slower", bool(ratios)),
        ("±?: too few rounds to say", any(found.ci95 is None for found in ratios)),
    ]
    explained = {
        "GPU busy": "GPU busy: share of the step in which a kernel runs",
        "host ms": "host ms: to launch a step",
        "waits ms": "waits ms: of the step, for its data",
    }
    there = {
        "GPU busy": _has(timed, "busy_s"),
        "host ms": _has(timed, "host_s"),
        "waits ms": _is_fed(view),
    }
    seconds = [
        text for title, text in explained.items() if there[title] and title not in table.left_out
    ]
    left_out = ", ".join(table.left_out)
    lines = [
        "; ".join(text for text, said in parts if said),
        "; ".join(seconds),
        *([f"*{_names(view, arms, _did_not_converge)}: did not converge"]
          if any(map(_did_not_converge, arms)) else []),
        wall_check(timed),
        _skipped(view, timed),
        f"left out to fit {fmt.count(width, 'column')}: {left_out}" if left_out else "",
    ]  # fmt: skip
    return [Text(line, "dim") for line in lines if line]


def _has(timed: Sequence[Training], name: str) -> bool:
    return any(getattr(arm.steps, name) is not None for arm in timed)


def _did_not_converge(arm: Training) -> bool:
    return arm.converged is False


def _names(view: View, arms: Sequence[Training], chosen: Callable[[Training], bool]) -> str:
    names = list(dict.fromkeys(view.label(arm) for arm in arms if chosen(arm)))
    return f" {fmt.listed(names)}"


def wall_check(timed: Sequence[Training]) -> str:
    """How far throughput by the host's clock over whole blocks is from the medians; "" unknown."""
    known = [arm for arm in timed if arm.wall_per_s and arm.per_s]
    return (
        f"by the wall clock: within {100 * max(map(wall_gap, known)):.1f} % of these"
        if known
        else ""
    )


def wall_gap(arm: Training) -> float:
    """How far that is of an arm, of its throughput; 0 where it is not known."""
    return abs(arm.wall_per_s / arm.per_s - 1) if arm.wall_per_s and arm.per_s else 0.0


def _skipped(view: View, timed: Sequence[Training]) -> str:
    skipped = [f"{view.label(arm)} {arm.skipped_steps}" for arm in timed if arm.skipped_steps]
    return f"steps that the loss scaler skipped: {fmt.listed(skipped, 6)}" if skipped else ""


def reasons(view: View, cut: Sequence[Training]) -> list[Text]:
    """The whole reason of arms whose row had no room for it."""
    return [
        Text(f"  {view.label(arm)}, batch {arm.case.batch}: ", "bold").append(
            reason(arm), "not bold"
        )
        for arm in cut
    ]
