"""Convergence: accuracy and loss on held-out data, one row per arm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from statistics import fmean

from e2e.report.arms import View, grouped, is_generated
from e2e.report.figures import spread
from e2e.report.table import JOIN, arms_table, raw, raw_pair
from e2e.results.types import Training
from microbench import fmt
from microbench.report.table import Column, Part, Value


def learning_part(view: View) -> Part:
    """The arms that were trained for accuracy, with seeds and reasons."""
    trained = view.only(lambda arm: bool(arm.repeats) or arm.converged is not None)
    generated = {is_generated(arm.case) for arm in trained.arms}
    title = "Convergence"
    if generated != {False}:
        title += f", {'in part ' if len(generated) > 1 else ''}on generated data"
    table = arms_table(view, trained, learning_columns(view), title=view.first_title)
    notes = [*_reasons(view, trained.arms), *_legend(trained.arms)]
    return Part(title, table, notes=notes)


def learning_columns(view: View) -> list[Column[Training]]:
    """Results of the repeats, accuracy in per cent; in Markdown beside those of speed."""
    generated = " (generated data)" * any(is_generated(arm.case) for arm in view.arms)

    def means(**columns: str) -> dict[str, Callable[[Training], Value]]:
        return {name: partial(_mean_of, of=of) for name, of in columns.items()}

    def deviation(name: str, arm: Training) -> float | None:
        return arm.population_deviations[name]

    def training_loss(arm: Training) -> str:
        mean = _mean_of(arm, "train_loss")
        return "" if mean is None else spread((mean, 0.0), several=False)

    def each(name: str, arm: Training) -> list[int]:
        return [getattr(repeat, name) for repeat in arm.repeats]

    def joined(name: str) -> Callable[[Training], Value]:
        return lambda arm: JOIN.join(map(str, each(name, arm)))

    def skipped(arm: Training) -> str:
        found = each("skipped_steps", arm)
        return _range(found) if any(found) else ""

    return [
        Column(
            "accuracy\n%", accuracy, right=True, always=True,
            markdown=lambda arm: f"{accuracy(arm)} %" if arm.accuracy else "",
            markdown_title=f"accuracy{generated}",
            csv={
                **raw_pair("accuracy_mean", "accuracy_std", attrgetter("accuracy")),
                **{f"{name}_population_std": partial(deviation, name)
                   for name in ("accuracy", "loss", "train_s")},
            },
        ),
        Column("held-out\nloss", loss, right=True, drop=2,
               always=True, markdown_title=f"held-out loss{generated}",
               csv=raw_pair("loss_mean", "loss_std", attrgetter("loss"))),
        Column("training\nloss", training_loss, right=True, drop=5, always=True, csv=means(
            train_loss_mean="train_loss", last_loss_mean="last_loss",
            all_steps_loss_mean="mean_loss", zero_gradients_mean="zero_gradients",
            infinite_gradients_mean="infinite_gradients",
        )),
        Column("training\ns", lambda arm: spread(arm.train_s, len(arm.repeats) > 1), right=True,
               drop=1, always=True,
               csv=raw_pair("train_mean_s", "train_std_s", attrgetter("train_s"))),
        Column("steps", lambda arm: _range(each("steps", arm)), right=True, drop=6, always=True,
               markdown_title="training steps", csv={"train_steps": joined("steps")}),
        Column("skipped\nsteps", skipped, right=True, drop=3, always=True,
               csv={"train_skipped_steps": joined("skipped_steps")}),
        Column("repeats", _repeats, right=True, drop=4, always=True, csv={
            "repeats": lambda arm: len(arm.repeats), "seeds": joined("seed"), **raw("", "chance"),
        }),
        Column("result", _verdict, always=True, markdown=_judged,
               csv=raw("", "converged", "convergence")),
    ]  # fmt: skip


def accuracy(arm: Training) -> str:
    """Held-out accuracy in per cent, with the deviation of several repeats."""
    return spread(arm.accuracy, len(arm.repeats) > 1, 100)


def loss(arm: Training) -> str:
    """Held-out loss, with the deviation of several repeats."""
    return spread(arm.loss, len(arm.repeats) > 1)


def _repeats(arm: Training) -> str:
    """How many, and how many of them ended with a finite loss where not all did."""
    finite = sum(repeat.train_loss is not None for repeat in arm.repeats)
    count = len(arm.repeats)
    return f"{finite} of {count}" if finite < count else str(count or "")


def _verdict(arm: Training) -> str:
    return {True: "converged", False: "NOT CONVERGED", None: "not judged"}[arm.converged]


def _judged(arm: Training) -> str:
    why = f": {fmt.clean(arm.convergence)}" if arm.convergence else ""
    return {True: "converged", False: f"not converged{why}", None: ""}[arm.converged]


def _mean_of(arm: Training, of: str) -> float | None:
    """The mean of a number over the repeats, when every one has it and it is finite."""
    losses = [loss for repeat in arm.repeats if (loss := getattr(repeat, of)) is not None]
    return fmean(losses) if losses and len(losses) == len(arm.repeats) else None


def _range(values: Sequence[int]) -> str:
    """ "4", "0-4"."""
    return "-".join(map(str, sorted({min(values), max(values)}))) if values else ""


def _reasons(view: View, arms: Sequence[Training]) -> list[str]:
    """Each reason once, with the arms it is about."""
    seen = grouped(
        (fmt.clean(arm.convergence or "no reason given"), view.full_label(arm))
        for arm in arms
        if arm.converged is False or (arm.converged is None and arm.convergence)
    )
    return [f"{fmt.listed(names)}: {why}" for why, names in seen.items()]


def _legend(arms: Sequence[Training]) -> list[str]:
    parts = ["±: standard deviation of the repeats"] * any(len(arm.repeats) > 1 for arm in arms)
    chances = {arm.chance for arm in arms if arm.chance is not None}
    if len(chances) == 1:
        parts.append(f"chance level {100 * chances.pop():.3g} %")
    seeds = dict.fromkeys(", ".join(str(r.seed) for r in arm.repeats) for arm in arms)
    named = " or ".join(filter(None, seeds))  # once, when all arms had the same
    if named:
        parts.append(f"seed{'s' * (',' in named or ' or ' in named)} {named}")
    return ["; ".join(parts)] if parts else []
