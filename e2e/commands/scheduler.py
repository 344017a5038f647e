"""Runs comparisons one after another; each result is saved before the next begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from e2e.case import TrainCase
from e2e.commands.from_scratch import trained
from e2e.commands.plan import Comparison, Work
from e2e.commands.progress import TrainProgress
from e2e.commands.verify import is_verified, verified
from e2e.commands.worker import TrainWorker
from e2e.report.costs import STAGES
from e2e.results.ledger import explained, without_waits
from e2e.results.loader_types import LoadCase, Loading
from e2e.results.terms import TracedStep
from e2e.results.types import PREDICTED, Training
from e2e.training.processes import merged, newest, timed_by
from e2e.training.speedups import with_speedups
from microbench.device.load import LoadMeter
from microbench.results.types import Run, Warning
from microbench.run_output import now, save
from microbench.worker import WorkerDied

# Seconds of timing an arm gets when the user gives no --budget; fed ones wait for bursts.
ARM_BUDGET_S, FED_ARM_BUDGET_S = 5.0, 10.0
EXCHANGE_ARMS = 3  # of a step over several GPUs: it, it without the exchange, the exchange alone
CPU_BUDGET_S = 40.0  # for all arms of a comparison
# About what an arm takes beside its timing: setting up, closer looks, recording. It is shown only.
ARM_BESIDE_S = {"cuda": 8.0, "cpu": 2.0}


class Job:
    """Comparisons one after another; each result is saved before the next begins."""

    def __init__(self, work: Work, worker: TrainWorker, progress: TrainProgress) -> None:
        self.work, self.worker, self.progress = work, worker, progress
        self.load = LoadMeter()

    def run(
        self, run: Run, comparisons: Sequence[Comparison], steps: Callable[[Comparison], int]
    ) -> Run:
        """The run with every comparison timed, and trained for `steps(comparison)` steps.

        0 steps: timed only.
        """
        for comparison in comparisons:
            run = self._compared(run, comparison)
            if steps(comparison):
                run = trained(self, run, comparison, steps(comparison))
        for number in range(1, self.work.request.processes):
            run = self._again(run, comparisons, number)
        return run

    def _compared(self, run: Run, comparison: Comparison) -> Run:
        """The run with a comparison timed and, as was asked, what its causes propose measured."""
        gpus = comparison.cases[0].gpus
        if not self._is_done(run, comparison):
            self.progress.begins(comparison.cases)
            self.worker.use(gpus)
            run = self._timed(run, comparison)
        verifies = self.work.request.verify and gpus == 1
        return verified(self, run, comparison) if verifies else run

    def finished(self, run: Run, *, whole: bool) -> Run:
        """The run with its notes on the data, saved; marked as finished if it is `whole`."""
        notes = list(self.worker.notes())
        if notes:
            run = replace(run, settings={**run.settings, "notes": notes})
        run = replace(run, settings=self.load.noted(run.settings, self.worker.others()))
        took_s = self.progress.stages.so_far(run.settings.get(STAGES, {}))
        run = replace(run, settings={**run.settings, STAGES: took_s})
        return self.saved(replace(run, finished_at=now() if whole else None))

    def loaded(self, run: Run, case: LoadCase, budget_s: float) -> Run:
        """The run with a loader measured alone for `budget_s` seconds, unless it has that."""
        known = run.find(Loading, case.key)
        if known is not None and known.status != "failed":
            return run
        self.progress.loading(case)
        try:
            found = self.worker.load(case, budget_s)
        except WorkerDied as death:
            self.worker.restart()
            found = Loading(case, "failed", death.reason)
        run = self.saved(run, found)
        self.progress.loaded(found)
        return run

    def saved(self, run: Run, *results: Training | Loading) -> Run:
        """The run with these results, after saving it."""
        for result in results:
            run = run.with_other(result)
        save(run, self.work.path)
        return run

    # ------------------------------------------------------------ timing

    def _is_done(self, run: Run, comparison: Comparison) -> bool:
        found = [run.find(Training, case.key) for case in comparison.cases]
        return all(t is not None and t.status not in ("failed", PREDICTED) for t in found)

    def _timed(self, run: Run, comparison: Comparison) -> Run:
        rungs = {arm.case.key: arm.rung for arm in comparison.arms}
        found = with_speedups(self._recorded(self.time(comparison.cases)), rungs)
        found = [with_what_was(run.find(Training, t.case.key), t) for t in explained(found)]
        run = self.saved(run, *found)
        self.progress.timed(found)
        return run

    def _recorded(self, trainings: Sequence[Training]) -> list[Training]:
        """The trainings, which the child holds, with steps of them as the profiler recorded them.

        Where that kills the process, they are as they were timed.
        """
        if not self.work.request.record or not any(t.steps for t in trainings):
            return list(trainings)
        try:
            found = self.worker.trace(self.progress.stage)
        except WorkerDied as death:
            self.worker.restart()
            found = {t.case.key: death.reason for t in trainings}
        return [_with_trace(t, found.get(t.case.key)) for t in trainings]

    def _again(self, run: Run, comparisons: Sequence[Comparison], number: int) -> Run:
        """The run with what a fresh process times of comparisons that fewer than `number` + 1 have.

        An arm that has no times, or fails there, stays as it is.
        """
        todo = [found for found in comparisons if few_processes(run, found, number)]
        if not todo:
            return run
        self.progress.expect(len(todo))
        self.progress.next_process(number + 1, self.work.request.processes)
        self.worker.restart()
        for comparison in todo:
            self.progress.about(comparison.cases)
            self.worker.use(comparison.cases[0].gpus)
            arms = [t for case in comparison.cases if (t := run.find(Training, case.key))]
            fresh = 1 + max(map(newest, arms))
            more = self.time([training.case for training in arms if _can_step(training)])
            run = self._merged(run, comparison, merged(arms, more, fresh))
        return run

    def _merged(self, run: Run, comparison: Comparison, trainings: Sequence[Training]) -> Run:
        """The run with arms that one more process timed, and all that follows from their times."""
        rungs = {arm.case.key: arm.rung for arm in comparison.arms}
        found: list[Training] = []
        for training in explained(with_speedups(trainings, rungs)):
            before = run.find(Training, training.case.key)
            if before is not None and before.steps == training.steps:  # no more than it was
                training = replace(before, speedup=training.speedup)
            elif before is not None:
                training = with_what_was(before, training)
                if is_verified(before):
                    training = replace(training, causes=before.causes)
            found.append(training)
        run = self.saved(run, *found)
        self.progress.timed(found)
        return run

    def time(self, cases: Sequence[TrainCase]) -> list[Training]:
        """A Training for each case, in order; one that kills the process fails, alone."""
        failed: dict[str, Training] = {}
        while left := [case for case in cases if case.key not in failed]:
            try:
                found = self.worker.set_up(left, self.progress.stage)
                arms = sum(t.status == "ok" for t in found)
                if arms:
                    budget_s = self._budget_s([t.case for t in found if t.status == "ok"])
                    self.progress.timing(budget_s + self._beside_s(arms) / 2)
                    timed = self.worker.time(budget_s, self.progress.stage)
                    dated = [replace(t, measured_at=now()) for t in timed]
                    found = [*found, *dated]  # timed results replace those of set-up
                by_key = {t.case.key: t for t in found} | failed
                return [by_key[case.key] for case in cases]
            except WorkerDied as death:
                self.worker.restart()
                blamed = next((case for case in left if case.key == death.key), left[0])
                failed[blamed.key] = Training(blamed, "failed", death.reason)
        return [failed[case.key] for case in cases]

    def _budget_s(self, cases: Sequence[TrainCase]) -> float:
        """Seconds of timing for these arms."""
        each_s = FED_ARM_BUDGET_S if any(case.fed for case in cases) else ARM_BUDGET_S
        if any(case.gpus > 1 for case in cases):
            each_s *= EXCHANGE_ARMS
        usual_s = CPU_BUDGET_S if self.work.kind == "cpu" else each_s * len(cases)
        return self.work.request.budget or usual_s

    def _beside_s(self, arms: int) -> float:
        return ARM_BESIDE_S[self.work.kind] * arms


def _with_trace(training: Training, found: TracedStep | str | None) -> Training:
    """The training with its recorded steps, or with the reason why there are none."""
    if isinstance(found, TracedStep):
        exchange = training.exchange
        return replace(training, traced=without_waits(found, exchange) if exchange else found)
    if training.steps is None or found is None:
        return training
    warning = Warning(
        f"{training.case.recipe}: no steps were recorded, so it has no ledger",
        found,
        "nothing to do: the step times are complete",
    )
    return replace(training, warnings=(*training.warnings, warning))


def _can_step(training: Training) -> bool:
    """Whether it was timed, and has not failed since."""
    return training.status == "ok" and training.steps is not None


def few_processes(run: Run, comparison: Comparison, number: int) -> bool:
    """Whether an arm that can be timed has the times of fewer than `number` + 1 processes."""
    arms = (run.find(Training, case.key) for case in comparison.cases)
    return any(timed_by(arm) <= number for arm in arms if arm and _can_step(arm))


def with_what_was(before: Training | None, training: Training) -> Training:
    """An arm that is timed again, with earlier results that the new timing does not replace."""
    if before is None:
        return training
    predicted = training.predicted or before.predicted
    return replace(
        training,
        repeats=before.repeats,
        predicted=predicted and predicted.beside(training.step_s),
        causes=training.causes or before.causes,
    )
