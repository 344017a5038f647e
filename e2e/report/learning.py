"""What was learnt: accuracy and loss on held-out data, a row an arm, and what did not converge."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from e2e.report.arms import Group, View, is_generated
from e2e.report.figures import spread
from e2e.results.types import Repeat, Training
from microbench import fmt
from microbench.report.grid import DIM, Column, Grid, Row
from microbench.results.types import Run


def was_trained(arm: Training) -> bool:
    """Whether there is anything to say of what the arm learnt."""
    return bool(arm.repeats) or arm.converged is not None


def learning_title(run: Run) -> str:
    """The heading, which says where the data came from."""
    generated = {is_generated(arm.case) for arm in run.of(Training) if was_trained(arm)}
    if generated == {False}:
        return "What was learnt"
    return f"What was learnt, {'in part ' if len(generated) > 1 else ''}from generated data"


def learning_table(view: View, width: int) -> list[Text]:
    """The table with its seeds and reasons; empty when nothing was trained to be judged."""
    groups = [
        Group(group.title, tuple(filter(was_trained, group.arms)))
        for group in view.groups
        if any(map(was_trained, group.arms))
    ]
    if not groups:
        return []
    grid = Grid(_columns(view))
    for group in groups:
        grid.rows += [None] * bool(grid.rows)
        if group.title:
            grid.rows.append(group.title)
        grid.rows += [_row(arm, view) for arm in group.arms]
    arms = [arm for group in groups for arm in group.arms]
    lines, left_out = grid.lines(width)
    under = [
        *_reasons(view, groups),
        *_legend(arms),
        *([f"left out to fit {fmt.count(width, 'column')}: {', '.join(left_out)}"]
          if left_out else []),
    ]  # fmt: skip
    return [*lines, *(Text(line, "dim") for line in under)]


def _columns(view: View) -> list[Column]:
    return [
        Column("rung" if any(group.is_ladder for group in view.groups) else "recipe"),
        Column("accuracy\n%", right=True),
        Column("held-out\nloss", right=True, drop=2),
        Column("loss of\ntraining", right=True, drop=5),
        Column("training\ns", right=True, drop=1),
        Column("steps", right=True, drop=6),
        Column("skipped\nsteps", right=True, drop=3),
        Column("repeats", right=True, drop=4),
        Column("learnt"),
    ]


def _row(arm: Training, view: View) -> Row:
    repeats = arm.repeats
    finite = sum(repeat.train_loss is not None for repeat in repeats)
    several = len(repeats) > 1
    skipped = [repeat.skipped_steps for repeat in repeats]
    verdict = {True: "converged", False: "NOT CONVERGED", None: "not judged"}[arm.converged]
    cells = [
        view.label(arm),
        spread(arm.accuracy, several, 100),
        spread(arm.loss, several),
        spread(_mean_loss(repeats), several=False),
        spread(arm.train_s, several),
        _range([repeat.steps for repeat in repeats]),
        _range(skipped) if any(skipped) else "",
        f"{finite} of {len(repeats)}" if finite < len(repeats) else str(len(repeats) or ""),
        verdict,
    ]
    style = "red" if arm.converged is False else DIM if view.is_baseline(arm) else ""
    return Row(cells, style=style)


def _mean_loss(repeats: Sequence[Repeat]) -> tuple[float, float] | None:
    """Mean training loss at the end, when every repeat had a finite one."""
    losses = [repeat.train_loss for repeat in repeats if repeat.train_loss is not None]
    if not losses or len(losses) < len(repeats):
        return None
    return sum(losses) / len(losses), 0.0


def _range(values: Sequence[int]) -> str:
    """ "4", "0-4"."""
    if not values:
        return ""
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def _reasons(view: View, groups: Sequence[Group]) -> list[str]:
    """Each reason once, with the arms it is about."""
    seen: dict[str, list[str]] = {}
    for group in groups:
        for arm in group.arms:
            if arm.converged is False or (arm.converged is None and arm.convergence):
                why = fmt.clean(arm.convergence or "no reason given")
                name = f"{view.label(arm)} ({group.title})" if group.title else view.label(arm)
                seen.setdefault(why, []).append(name)
    return [f"{fmt.listed(names)}: {why}" for why, names in seen.items()]


def _legend(arms: Sequence[Training]) -> list[str]:
    parts: list[str] = []
    if any(len(arm.repeats) > 1 for arm in arms):
        parts.append("±: standard deviation of the repeats")
    chances = {arm.chance for arm in arms if arm.chance is not None}
    if len(chances) == 1:
        parts.append(f"guessing is right in {100 * chances.pop():.3g} %")
    parts += _seeds(arms)
    return ["; ".join(parts)] if parts else []


def _seeds(arms: Sequence[Training]) -> list[str]:
    """The seeds, once when all arms had the same."""
    seeds = dict.fromkeys(tuple(repeat.seed for repeat in arm.repeats) for arm in arms)
    named = [", ".join(map(str, some)) for some in seeds if some]
    if not named:
        return []
    title = "seed" if all(len(some) <= 1 for some in seeds) and len(named) == 1 else "seeds"
    return [f"{title} {' or '.join(named)}"]
