"""`--verify`: what the causes of a training propose as options, measured interleaved with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from e2e.case import ON_CPU, TrainCase
from e2e.commands.job import Stage
from e2e.plan import Cases
from e2e.results.ledger import COMPETING, LOADING
from e2e.results.loader_types import load_case
from e2e.results.types import Training
from e2e.training.speedups import with_speedups
from microbench.device.host import usable_cores
from microbench.errors import UserError
from microbench.results.types import Run

if TYPE_CHECKING:
    from e2e.commands.session import Session

VERIFIED = 3  # causes of a training whose options are measured, the costliest first
# Of a cause by its name in a trace: the fields of a case that may remove it.
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "layout": {"layout": "nhwc"},
    "optimizer": {"fused": True},
    "launch": {"graph": True},
    "casts": {"compile": True},
    "bf16": {"recipe": "amp"},
    "tf32": {"recipe": "tf32"},
    "float32": {"recipe": "amp"},
}


def verified(session: Session, run: Run, cases: Cases) -> Run:
    """The run with what the costliest causes of each variant propose measured: gains in %."""
    for case in cases:
        training = run.find(Training, case.key)
        if training is None or not training.steps or training.ruined_pct:
            continue
        todo = list(_changes(training, session.kind))[:VERIFIED]
        measured = any(cause.case_change for cause in training.causes)
        if not todo or measured or session.was_tried(Stage.VERIFYING + case.key):
            continue
        fixed = [replace(case, **change) for _, change in todo]
        session.begin(Stage.VERIFYING, [case, *fixed])
        again, *tried = _tried(session, run, case, fixed)
        causes = list(training.causes)
        for (i, change), trial in zip(todo, tried, strict=True):
            gain = 100 * (trial.per_s / again.per_s - 1) if trial.per_s and again.per_s else None
            given = (f"--{k}" if v is True else f"--{k} {v}" for k, v in change.items())
            causes[i] = replace(
                causes[i], fix=" ".join(given), case_change=change, measured_gain_pct=gain
            )
        run = session.saved(run, replace(training, causes=tuple(causes)), *tried, whole=False)
    return run


def _changes(training: Training, kind: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The causes that an option may remove, by their place, and what it changes of the case."""
    case = training.case
    names = {COMPETING: "launch"}
    names |= {cost.title: cost.cause for cost in training.traced.costs} if training.traced else {}
    for i, cause in enumerate(training.causes):
        change = dict(OPTIONS.get(names.get(cause.title, ""), {}))
        if kind == "cpu" and "recipe" in change:
            change = {"recipe": ON_CPU.get(change["recipe"], change["recipe"])}
        if "graph" in change and (kind == "cpu" or case.accumulate > 1 or not case.fused):
            change = {"compile": True}
        if cause.title == LOADING:
            change = {"workers": min(case.cpus or usable_cores(), max(1, 2 * case.workers))}
        if any(getattr(case, name) != value for name, value in change.items()):
            yield i, change


def _tried(
    session: Session, run: Run, case: TrainCase, fixed: Sequence[TrainCase]
) -> list[Training]:
    """A case and some that differ from it, timed: interleaved, but for those that load otherwise,
    whose loaders would work in each other's turns.
    """

    def timed(cases: Cases) -> dict[str, Training]:
        trainings = session.time(run, cases, verifies=True)
        return {t.case.key: t for t in with_speedups(trainings, {})}

    alike = [variant for variant in fixed if load_case(variant) == load_case(case)]
    by_key = timed([case, *dict.fromkeys(alike)])
    for variant in fixed:
        if variant.key not in by_key:
            try:
                by_key |= timed([variant])
            except UserError as error:  # what the user did not ask for
                by_key[variant.key] = Training(variant, "failed", str(error))
    return [by_key[variant.key] for variant in (case, *fixed)]
