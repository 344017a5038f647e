"""What `python -m e2e NETWORK` does, straight through: check the words, plan, train, report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from e2e.converge import judged
from e2e.gains import with_gains
from e2e.networks import Network, find
from e2e.plans import Comparison, Options, notes, plan
from e2e.progress import TrainProgress
from e2e.worker import DataFacts, TrainSettings, TrainWorker
from microbench.errors import UserError
from microbench.results import Run
from microbench.run_output import (
    Outputs,
    check_goes_on,
    check_numbers,
    check_outputs,
    command_line,
    report,
    run_path,
    save,
    say_stopped,
    watched_environment,
)  # fmt: skip
from microbench.runfile import read_run
from microbench.train_results import TrainCase, Training
from microbench.worker import Greeting, WorkerDied

ARM_BUDGET_S = 10.0  # seconds of timing an arm gets when the user gives no --budget
CPU_BUDGET_S = 40.0  # for all arms of a comparison


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """The command's options."""

    network: str
    options: Options
    settings: TrainSettings
    iterations: int | None
    epochs: int | None
    repeats: int
    budget: float | None
    outputs: Outputs


def run_training(request: TrainRequest) -> None:
    """Train, time and report; UserError for what the user can mend."""
    from microbench.report.screen import make_console

    network = _check_words(request)
    before = read_run(request.outputs.resume) if request.outputs.resume else None
    path = run_path(request.outputs, f"train-{network.name.replace(':', '-')}")
    console = make_console(quiet=request.outputs.quiet)
    worker = TrainWorker(request.settings)
    try:
        greeting = _greet(worker)
        memory = greeting.device.get("memory_bytes")
        kind = greeting.target.kind
        comparisons = plan(network, request.options, kind, memory)
        facts = worker.open_data()
        steps = _steps_wanted(request, facts)
        for note in [*notes(request.options, kind), *facts.notes]:
            console.print(note)
        run = _begin(request, greeting, facts, before)
        total = sum(1 + request.repeats * len(c.arms) * bool(steps(c)) for c in comparisons)
        with TrainProgress(console, total, quiet=request.outputs.quiet) as progress:
            job = _Job(request, path, worker, progress, facts, kind)
            try:
                run = job.run(run, comparisons, steps)
            finally:
                worker = job.worker
    except KeyboardInterrupt:
        say_stopped("e2e", path)
        raise
    except WorkerDied as death:
        raise UserError(f"the device cannot be used: {death.reason}; so far: {path}") from None
    finally:
        worker.close()
    report(run, path, request.outputs, console)


def _check_words(request: TrainRequest) -> Network:
    """Everything that can be found wrong before a device is touched."""
    settings = request.settings
    check_numbers(request.budget, settings.seed)
    check_outputs(request.outputs)
    if request.iterations is not None and request.epochs is not None:
        raise UserError("--iterations and --epochs say the same thing: give one of them")
    for name, value in (
        ("--iterations", request.iterations), ("--epochs", request.epochs),
        ("--repeats", request.repeats),
    ):  # fmt: skip
        if value is not None and value < 1:
            raise UserError(f"{name} starts at 1, not {value}")
    if settings.lr is not None and not 0 < settings.lr < math.inf:
        raise UserError(f"--lr takes a rate above 0, not {settings.lr:g}")
    for name, value in (("--warmup", settings.warmup), ("--workers", settings.workers)):
        if value < 0:
            raise UserError(f"{name} starts at 0, not {value}")
    network = find(request.network, input=settings.input, loss=settings.loss)
    plan(network, request.options, "cuda", None)
    return network


def _greet(worker: TrainWorker) -> Greeting:
    try:
        return worker.greet()
    except WorkerDied as death:
        raise UserError(f"the device cannot be used: {death.reason}") from None


def _steps_wanted(request: TrainRequest, facts: DataFacts) -> Any:
    """Steps of a training for a comparison: 0 when none was asked for."""
    if request.epochs is not None and facts.train_samples is None:
        raise UserError(f"{facts.name} data has no epochs; use --iterations")

    def steps(comparison: Comparison) -> int:
        if request.epochs is None:
            return request.iterations or 0
        case = comparison.arms[0].case
        assert facts.train_samples is not None
        return request.epochs * math.ceil(facts.train_samples / (case.batch * case.accumulate))

    return steps


def _begin(request: TrainRequest, greeting: Greeting, facts: DataFacts, before: Run | None) -> Run:
    """A new run, or the one to go on with."""
    settings = request.settings
    chosen: dict[str, Any] = {
        "seed": settings.seed,
        "lr": settings.lr,
        "warmup": settings.warmup,
        "iterations": request.iterations,
        "epochs": request.epochs,
        "data": facts.name,
        "train_samples": facts.train_samples,
        "held_out_samples": facts.held_out,
    }
    if before is None:
        return Run(
            command=command_line("e2e"),
            started_at=datetime.now(UTC).isoformat(timespec="seconds"),
            device=greeting.device,
            software=greeting.software,
            settings={"training": chosen, "environment": watched_environment()},
        )
    path = request.outputs.resume
    if not before.trainings and before.results:
        raise UserError(f"--resume {path} is no run of e2e; start a new run")
    check_goes_on(path, before, greeting)
    known = before.settings.get("training", {})
    for name, value in chosen.items():
        if known.get(name, value) != value:
            raise UserError(
                f"--resume {path} was taken with {name} {known[name]}, not {value}; give the same"
            )
    return replace(before, finished_at=None)


class _Job:
    """Comparisons one after another; each result is on disk before the next begins."""

    def __init__(
        self,
        request: TrainRequest,
        path: Path,
        worker: TrainWorker,
        progress: TrainProgress,
        facts: DataFacts,
        kind: str,
    ) -> None:
        self.request, self.path, self.worker = request, path, worker
        self.progress, self.facts, self.kind = progress, facts, kind

    def run(self, run: Run, comparisons: Sequence[Comparison], steps: Any) -> Run:
        """The run with every comparison timed and trained."""
        for comparison in comparisons:
            self.progress.about(comparison.cases)
            run = self._timed(run, comparison)
            if steps(comparison):
                run = self._trained(run, comparison, steps(comparison))
        notes = list(self.worker.notes())
        if notes:
            run = replace(run, settings={**run.settings, "notes": notes})
        return self._saved(
            replace(run, finished_at=datetime.now(UTC).isoformat(timespec="seconds"))
        )

    def _saved(self, run: Run) -> Run:
        save(run, self.path)
        return run

    # ------------------------------------------------------------ timing

    def _timed(self, run: Run, comparison: Comparison) -> Run:
        done = [run.training(case.key) for case in comparison.cases]
        if all(t is not None and t.status != "failed" for t in done):
            return run
        trainings = self._time(comparison.cases)
        repeats = {t.case.key: t.repeats for t in done if t is not None}
        rungs = {arm.case.key: arm.rung for arm in comparison.arms}
        found = with_gains(trainings, rungs)
        for training in found:
            kept = repeats.get(training.case.key, ())
            run = run.with_training(replace(training, repeats=kept))
        self.progress.timed(found)
        return self._saved(run)

    def _time(self, cases: Sequence[TrainCase]) -> list[Training]:
        """A Training for each case, in order; one that kills the process fails, alone."""
        failed: dict[str, Training] = {}
        while left := [case for case in cases if case.key not in failed]:
            try:
                found = self.worker.set_up(left, self.progress.stage)
                arms = sum(t.status == "ok" for t in found)
                if arms:
                    budget_s = self.request.budget or self._budget_s(arms)
                    timed = self.worker.time(budget_s, self.progress.stage)
                    found = [*found, *timed]  # what was timed takes the place of what was set up
                by_key = {t.case.key: t for t in found} | failed
                return [by_key[case.key] for case in cases]
            except WorkerDied as death:
                self._restart()
                blamed = next((case for case in left if case.key == death.key), left[0])
                failed[blamed.key] = Training(blamed, "failed", death.reason)
        return [failed[case.key] for case in cases]

    def _budget_s(self, arms: int) -> float:
        return CPU_BUDGET_S if self.kind == "cpu" else ARM_BUDGET_S * arms

    def _restart(self) -> None:
        self.worker.close()
        self.worker = TrainWorker(self.request.settings)
        self.worker.greet()
        self.worker.open_data()

    # ------------------------------------------------------------ training

    def _trained(self, run: Run, comparison: Comparison, steps: int) -> Run:
        """Each arm trained from each seed; the arms take turns seed by seed."""
        first = self.request.settings.seed
        seeds = range(first, first + self.request.repeats)
        todo = [
            (case, seed)
            for seed in seeds
            for case in comparison.cases
            if self._wanted(run.training(case.key), seed)
        ]
        if todo:
            self._hold(run, [case for case, _ in todo])
        for case, seed in todo:
            run = self._train(run, comparison, case, seed, steps)
        return run

    def _wanted(self, training: Training | None, seed: int) -> bool:
        return (
            training is not None
            and training.status == "ok"
            and seed not in {repeat.seed for repeat in training.repeats}
        )

    def _hold(self, run: Run, cases: Sequence[TrainCase]) -> None:
        """Have the child hold these arms: after timing it does, after --resume or a fault not."""
        self.worker.set_up(list(dict.fromkeys(cases)), self.progress.stage)

    def _train(
        self, run: Run, comparison: Comparison, case: TrainCase, seed: int, steps: int
    ) -> Run:
        training = run.training(case.key)
        assert training is not None
        if training.status != "ok":
            return run  # it broke with an earlier seed
        try:
            repeat = self.worker.train(case.key, seed, steps, self.progress.stage)
        except WorkerDied as death:
            self._restart()
            others = [c for c in comparison.cases if c != case and _ok(run.training(c.key))]
            self._hold(run, others)
            reason = f"training from seed {seed}: {death.reason}"
            return self._saved(run.with_training(replace(training, status="failed", reason=reason)))
        chance = 1 / self.facts.classes if repeat.accuracy is not None else None
        training = replace(training, repeats=(*training.repeats, repeat), chance=chance)
        run = run.with_training(training)
        found = [t for c in comparison.cases if (t := run.training(c.key)) is not None]
        for one in judged(found, self.facts.held_out):
            run = run.with_training(one)
        self.progress.trained(case, repeat)
        return self._saved(run)


def _ok(training: Training | None) -> bool:
    return training is not None and training.status == "ok"
