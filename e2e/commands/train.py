"""`python -m e2e NETWORK`: check the options, plan, train, report."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from e2e.case import TrainCase, TrainRequest
from e2e.commands.child import DataFacts
from e2e.commands.plan import Comparison, Work, check_device, notes, plan
from e2e.commands.progress import OPENING, StageTimes, TrainProgress
from e2e.commands.requests import gpus_of
from e2e.commands.worker import TrainWorker
from e2e.networks.table import facts_of
from e2e.prediction import Prediction
from e2e.results.baselines import baselines
from e2e.results.types import PREDICTED, Training
from e2e.training.distributed import place_of
from microbench.command_line import kept
from microbench.errors import NothingMeasured, UserError
from microbench.results.types import Run
from microbench.run_output import Done, check_goes_on, new_run, run_console, run_file, say_stopped
from microbench.stopping import last_words
from microbench.worker import Greeting, WorkerDied, greet

if TYPE_CHECKING:
    from e2e.commands.scheduler import Job

RATES = ("lr", "warmup")  # of a training, which older files have for the whole run

Procedure = Callable[["Job", Run], Run]  # adds to the run


def compare_recipes(job: Job, run: Run, comparisons: Sequence[Comparison] = ()) -> Run:
    """The usual procedure: comparisons timed and trained or, as requested, predicted.

    They are those that the request plans, where none are given.
    """
    request = job.work.request
    comparisons = comparisons or job.work.comparisons
    if not request.train:
        return predict_steps(job, run, comparisons)
    steps = _steps_wanted(request, job.work.facts)
    job.progress.expect(
        sum(1 + request.repeats * len(c.arms) * bool(steps(c)) for c in comparisons)
    )
    return job.run(run, comparisons, steps)


def run_training(request: TrainRequest, *, here: bool = False) -> Done:
    """Train and time, or predict, as requested; in this process if `here`.

    UserError for wrong options, data or networks.
    """
    word = "train" if request.train else "predict"
    return run_requests([request], f"{word}-{file_name(request.settings.network)}", here=here)


def check_known(done: Done) -> None:
    """Raise NothingMeasured if the run has no step, neither predicted nor measured."""
    if not any(training.predicted or training.steps for training in done.run.of(Training)):
        raise NothingMeasured


def file_name(network: str) -> str:
    """A network's name as part of a file's."""
    return re.sub(r"[^\w.-]+", "-", network)


def run_requests(
    requests: Sequence[TrainRequest],
    name: str,
    procedure: Procedure = compare_recipes,
    *,
    here: bool = False,
) -> Done:
    """One run of all requests, saved as the first one says; `name` is for its file.

    UserError for wrong options, data or networks.
    """
    outputs, console = requests[0].outputs, run_console(requests[0].outputs)
    with run_file(outputs, name) as (path, run):
        for request in requests:
            whole = request is requests[-1]
            run = _carry_out(request, run, path, console, procedure, here=here, whole=whole)
    assert run is not None
    return Done(run, path, outputs)


def _carry_out(
    request: TrainRequest, before: Run | None, path: Path, console: Console, procedure: Procedure,
    *, here: bool, whole: bool,
) -> Run:  # fmt: skip
    """The run with what the request asks for added to it, and on disk at `path`.

    It is `whole` then, unless another request is going to add to it.
    """
    stages, asked = StageTimes(), request.settings
    # Mistakes in words are said before anything loads.
    plan(facts_of(asked.network, asked.input), request.arms, "cuda", None)
    gpus = gpus_of(request.arms)[0] if request.train else 1  # one predicts for several
    worker = TrainWorker(asked, here=here, gpus=gpus)
    try:
        with last_words(lambda: say_stopped("e2e", path)):
            from e2e.commands.scheduler import Job

            work = _opened(request, worker, path, console, stages)
            run = _begin(request, work.greeting, work.facts, before)
            for note in [*notes(request.arms, work.kind), *work.facts.notes]:
                console.print(note)
            quiet = request.outputs.quiet
            with TrainProgress(console, 0, quiet=quiet, stages=stages) as progress:
                job = Job(work, worker, progress)
                try:
                    run = procedure(job, run)
                    run = job.finished(run, whole=whole)
                except UserError as error:
                    where = "" if str(path) in str(error) else _so_far(path)
                    raise UserError(f"{error}{where}") from None
    except WorkerDied as death:
        raise UserError(f"{death.reason}{_so_far(path)}") from None
    finally:
        worker.close()
    return run


def _opened(
    request: TrainRequest, worker: TrainWorker, path: Path, console: Console, stages: StageTimes
) -> Work:
    """The work of a run, after opening network, device and data. UserError if one fails."""
    if request.settings.data == "made":
        from e2e.commands.make_data import make_usual

        make_usual(console)
    greeting = greet(worker)
    device = greeting.target.kind, greeting.device.get("memory_bytes")
    check_device(request.arms.base, *device)
    stages.enter(OPENING)
    facts = worker.open_data()
    comparisons = plan(facts.network, request.arms, *device)
    _steps_wanted(request, facts)
    _check_held_out(request.arms.base.held_out, facts)
    if request.train:
        _check_gpus(max(gpus_of(request.arms)), facts.devices)
    return Work(request, path, greeting, facts, comparisons)


def _check_held_out(count: int, facts: DataFacts) -> None:
    if count and facts.held_out is None:
        raise UserError(f"--data {facts.name} has no held-out samples; leave out --held-out")
    if count and facts.held_out is not None and count > facts.held_out:
        raise UserError(
            f"--held-out {count}: --data {facts.name} has {facts.held_out} held-out samples"
        )


def _check_gpus(count: int, devices: int | None) -> None:
    if count > 1 and devices is not None and count > devices and place_of(os.environ) is None:
        raise UserError(
            f"--gpus {count}: this machine has {devices}; start torchrun on each host for more"
        )


def _so_far(path: Path) -> str:
    """Where to find what was measured before a run broke off."""
    return f"; results so far are in {path}; go on with --resume {path}" if path.exists() else ""


def _steps_wanted(request: TrainRequest, facts: DataFacts) -> Callable[[Comparison], int]:
    """Steps of a training for a comparison: 0 when none was asked for."""
    if request.epochs is not None and facts.train_samples is None:
        raise UserError(f"--data {facts.name} has no epochs; use --iterations")

    def steps(comparison: Comparison) -> int:
        if request.epochs is None:
            return request.iterations or 0
        case = comparison.arms[0].case
        assert facts.train_samples is not None
        step = case.batch * case.accumulate * case.gpus
        return request.epochs * math.ceil(facts.train_samples / step)

    return steps


def _begin(request: TrainRequest, greeting: Greeting, facts: DataFacts, before: Run | None) -> Run:
    """A new run, or the one to go on with."""
    chosen: dict[str, Any] = {
        **kept(request.settings, request),
        "data": facts.name,
        "train_samples": facts.train_samples,
        "held_out_samples": facts.held_out,
    }
    if before is None:
        return new_run("e2e", greeting, {"training": chosen})
    path = request.outputs.resume
    if not before.of(Training) and before.results:
        raise UserError(f"--resume {path} is not a run of e2e; start a new run")
    check_goes_on(path, before, greeting)
    before = _with_rates_in_cases(before)
    known = before.settings.get("training", {})
    for name, value in chosen.items():
        if known.get(name, value) != value:
            then, now = ("unset" if v is None else v for v in (known[name], value))
            raise UserError(
                f"--resume {path} was measured with {name} {then}, not {now}; give the same value"
            )
    return replace(before, finished_at=None)


def _with_rates_in_cases(run: Run) -> Run:
    """The run with learning rate and warm-up in its cases; older files have them as settings."""
    known = dict(run.settings.get("training", {}))
    rates = {name: known.pop(name) for name in RATES if name in known}
    if not rates:
        return run
    changes = {name: value for name, value in rates.items() if value}
    found = [replace(one, case=replace(one.case, **changes)) for one in run.of(Training)]
    return replace(run.with_all(Training, found), settings={**run.settings, "training": known})


# ---------------------------------------------------------------- predict


def predict_steps(job: Job, run: Run, comparisons: Sequence[Comparison]) -> Run:
    """The run with the cases of these comparisons predicted, but for those that it has already."""
    job.progress.expect(len(comparisons))
    for comparison in comparisons:
        known = [run.find(Training, case.key) for case in comparison.cases]
        if all(one is not None and one.status != "failed" for one in known):
            continue
        job.progress.about(comparison.cases)
        found = {case: _predicted(job, case) for case in comparison.cases}
        trainings = _trainings(job, found)
        measured = {t.case.key for t in run.of(Training) if t.steps is not None}
        run = job.saved(run, *(t for t in trainings if t.case.key not in measured))
        job.progress.timed(trainings)
    return run


def _predicted(job: Job, case: TrainCase) -> Prediction:
    """A case's step; where predicting kills the process, the reason."""
    try:
        return job.worker.predict(case, job.progress.stage)
    except WorkerDied as death:
        job.worker.restart()
        return Prediction(reason=death.reason, broke=True)


def _trainings(job: Job, predictions: Mapping[TrainCase, Prediction]) -> list[Training]:
    """A training for each prediction of a comparison, with its speed-ups."""
    known = {case: one.predicted for case, one in predictions.items() if one.predicted}
    network = job.work.network
    found: list[Training] = []
    for case, one in predictions.items():
        predicted = one.predicted
        if predicted:
            others = baselines(case, list(known)).items()
            ratios = {name: known[other].step_s / predicted.step_s for name, other in others}
            predicted = replace(predicted, speedup=ratios)
        status = PREDICTED if predicted else "failed" if one.broke else "skipped"
        units = network.units_per_sample * case.batch * case.accumulate
        found.append(Training(case, status, one.reason, network.unit, units, predicted=predicted))
    return found
