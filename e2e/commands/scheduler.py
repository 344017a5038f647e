"""Runs comparisons one after another; each result is saved before the next begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from e2e.case import TrainCase
from e2e.commands.from_scratch import trained
from e2e.commands.plan import Comparison, Work
from e2e.commands.predictions import Predictions
from e2e.commands.progress import EXPLAINING, TrainProgress
from e2e.commands.worker import TrainWorker
from e2e.explain.annotate import to_verify, verified
from e2e.explain.in_place import without_waits
from e2e.prediction.prediction import Prediction
from e2e.report.costs import STAGES
from e2e.results.loader_types import LoadCase, Loading, load_case
from e2e.results.terms import TracedStep
from e2e.results.types import PREDICTED, Training
from e2e.training.processes import merged, newest, timed_by
from e2e.training.speedups import with_speedups
from e2e.validation_sets import PREDICTING_S
from microbench.device.load import LoadMeter
from microbench.errors import UserError
from microbench.results.types import Run
from microbench.results.values import Warning
from microbench.run_output import save
from microbench.worker import WorkerDied

# Seconds of timing an arm gets when the user gives no --budget; fed ones wait for bursts.
ARM_BUDGET_S, FED_ARM_BUDGET_S = 5.0, 10.0
EXCHANGE_ARMS = 3  # of a step over several GPUs: it, it without the exchange, the exchange alone
CPU_BUDGET_S = 40.0  # for all arms of a comparison
ONE_GPU = "Predictions are for one GPU: none is made for several"
NO_FIXES = "--fixes also predicts what would make each recipe faster"
# About what an arm takes beside its timing: setting up, closer looks, recording. It is shown only.
ARM_BESIDE_S = {"cuda": 8.0, "cpu": 2.0}


class Job:
    """Comparisons one after another; each result is saved before the next begins."""

    def __init__(self, work: Work, worker: TrainWorker, progress: TrainProgress) -> None:
        self.work, self.worker, self.progress = work, worker, progress
        self.predictions = Predictions(work, worker, progress)
        self.load = LoadMeter()

    def run(
        self, run: Run, comparisons: Sequence[Comparison], steps: Callable[[Comparison], int]
    ) -> Run:
        """The run with every comparison timed, and trained for `steps(comparison)` steps.

        0 steps: timed only.
        """
        known = {found.case.key: found for found in run.of(Loading) if found.status == "ok"}
        self.predictions.loadings = known | self.predictions.loadings
        for comparison in comparisons:
            run = self._compared(run, comparison)
            if self.work.request.train and steps(comparison):
                run = trained(self, run, comparison, steps(comparison))
        if self.work.request.train:
            for number in range(1, self.work.request.processes):
                run = self._again(run, comparisons, number)
        elif not self.work.proposes:
            self.progress.say(NO_FIXES)
        return run

    def _compared(self, run: Run, comparison: Comparison) -> Run:
        """The run with a comparison predicted, timed and explained, as was asked."""
        is_done = self._is_done(run, comparison)
        if not is_done:
            self.progress.begins(comparison.cases, self._expected_s(comparison))
        self.progress.about(comparison.cases)
        gpus = comparison.cases[0].gpus
        if self.work.request.train and not is_done:
            self.worker.use(gpus)
        known = gpus == 1 or self.work.request.exchange is not None
        if self.work.predicts and not known:
            self.progress.say(ONE_GPU)
        predicts = self.work.predicts and not is_done and known
        predicted = self.predictions.of(comparison) if predicts else {}
        if is_done and self.work.proposes and gpus == 1:
            run = self._proposed(run, comparison)
        if not self.work.request.train:
            return self._untrained(run, predicted) if predicted else run
        self.progress.about(comparison.cases)
        if not is_done:
            run = self._timed(run, comparison, predicted)
        verifies = self.work.request.verify and gpus == 1
        return self._verified(run, comparison) if verifies else run

    def finished(self, run: Run, *, whole: bool) -> Run:
        """The run with its notes on the data, saved; marked as finished if it is `whole`."""
        notes = list(self.worker.notes())
        if notes:
            run = replace(run, settings={**run.settings, "notes": notes})
        run = replace(run, settings=self.load.noted(run.settings, self.worker.others()))
        took_s = self.progress.stages.so_far(run.settings.get(STAGES, {}))
        run = replace(run, settings={**run.settings, STAGES: took_s})
        return self.saved(replace(run, finished_at=_now() if whole else None))

    def loaded(self, run: Run, case: LoadCase, budget_s: float) -> Run:
        """The run with a loader measured alone for `budget_s` seconds, unless it has that."""
        known = run.find(Loading, case.key)
        if known is not None and known.status != "failed":
            return run
        found = self.predictions.loading(case, budget_s)
        run = self.saved(run, found)
        self.progress.loaded(found)
        return run

    def saved(self, run: Run, *results: Training | Loading) -> Run:
        """The run with these results, after saving it."""
        for result in results:
            run = run.with_other(result)
        save(run, self.work.path)
        return run

    # ------------------------------------------------------------ predictions without timing

    def _untrained(self, run: Run, predicted: Mapping[str, Prediction]) -> Run:
        """The run with the arms of a comparison that is only predicted; those that have been timed
        stay as they are.
        """
        found = [self._blank(prediction) for prediction in predicted.values()]
        explained = self._explained(found, predicted)
        measured = {t.case.key for t in run.of(Training) if t.steps is not None}
        run = self.saved(run, *(t for t in explained if t.case.key not in measured))
        self.progress.timed(found)
        return run

    def _blank(self, prediction: Prediction) -> Training:
        case, network = prediction.case, self.work.network
        status = PREDICTED if prediction.predicted else "failed" if prediction.broke else "skipped"
        units = network.units_per_sample * case.batch * case.accumulate * case.gpus
        return Training(case, status, prediction.reason, network.unit, units)

    def _proposed(self, run: Run, comparison: Comparison) -> Run:
        """The run with fixes for arms that are known without them; nothing else changes."""
        found = [t for case in comparison.cases if (t := run.find(Training, case.key)) is not None]
        if any(map(to_verify, found)) or not any(t.steps or t.predicted for t in found):
            return run
        unpredicted = [replace(training, predicted=None) for training in found]
        predicted = self.predictions.of(comparison)
        again = self._explained(unpredicted, predicted)
        pairs = zip(found, again, strict=True)
        merged = [replace(old, causes=new.causes or old.causes) for old, new in pairs]
        return self.saved(run, *merged, *self.predictions.loadings.values())

    # ------------------------------------------------------------ timing

    def _is_done(self, run: Run, comparison: Comparison) -> bool:
        undone = {"failed"}
        if self.work.request.train:
            undone.add(PREDICTED)
        elif self.work.request.settings.allow_run:
            undone.add("skipped")  # for want of that, perhaps
        found = [run.find(Training, case.key) for case in comparison.cases]
        return all(t is not None and t.status not in undone and not self._lacks(t) for t in found)

    def _lacks(self, training: Training) -> bool:
        """Whether an earlier prediction misses calls that a real step could time now."""
        predicted = None if training.steps else training.predicted
        return self.work.request.settings.allow_run and bool(predicted and predicted.uncovered)

    def _timed(self, run: Run, comparison: Comparison, predicted: Mapping[str, Prediction]) -> Run:
        rungs = {arm.case.key: arm.rung for arm in comparison.arms}
        trainings = with_speedups(self._recorded(self._time(comparison.cases)), rungs)
        found = self._explained(trainings, predicted)
        merged = [with_what_was(run.find(Training, t.case.key), t) for t in found]
        run = self.saved(run, *merged, *self.predictions.loadings.values())
        self.progress.timed(found)
        return run

    def _explained(
        self, trainings: Sequence[Training], predicted: Mapping[str, Prediction]
    ) -> list[Training]:
        self.progress.doing(EXPLAINING)
        return self.predictions.explainer.explained(trainings, predicted)

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
            gpus = comparison.cases[0].gpus
            self.worker.use(gpus)
            predicted = self.predictions.of(comparison) if self.work.predicts and gpus == 1 else {}
            arms = [t for case in comparison.cases if (t := run.find(Training, case.key))]
            fresh = 1 + max(map(newest, arms))
            more = self._time([training.case for training in arms if _can_step(training)])
            run = self._merged(run, comparison, merged(arms, more, fresh), predicted)
        return run

    def _merged(
        self,
        run: Run,
        comparison: Comparison,
        trainings: Sequence[Training],
        predicted: Mapping[str, Prediction],
    ) -> Run:
        """The run with arms that one more process timed, and all that follows from their times."""
        rungs = {arm.case.key: arm.rung for arm in comparison.arms}
        again = self._explained(with_speedups(trainings, rungs), predicted)
        found: list[Training] = []
        for training in again:
            before = run.find(Training, training.case.key)
            if before is not None and before.steps == training.steps:  # no more than it was
                training = replace(before, speedup=training.speedup)
            elif before is not None:
                training = with_what_was(before, training)
                if _is_verified(before):
                    training = replace(training, causes=before.causes)
            found.append(training)
        run = self.saved(run, *found)
        self.progress.timed(found)
        return run

    def _time(self, cases: Sequence[TrainCase]) -> list[Training]:
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
                    dated = [replace(t, measured_at=_now()) for t in timed]
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

    def _expected_s(self, comparison: Comparison) -> float:
        """About the seconds that a comparison takes, its fixes and trainings apart."""
        arms = len(comparison.arms)
        predicting_s = PREDICTING_S * arms if self.work.predicts else 0.0
        if not self.work.request.train:
            return predicting_s
        return predicting_s + self._beside_s(arms) + self._budget_s(comparison.cases)

    def _verified(self, run: Run, comparison: Comparison) -> Run:
        """The best fixes of each arm, measured interleaved with the arm itself."""
        for case in comparison.cases:
            training = run.find(Training, case.key)
            fixes = to_verify(training) if training and training.steps else []
            if training is None or not fixes or _is_verified(training):
                continue
            again, *tried = self._tried(case, [fixed for _, fixed in fixes])
            causes = [cause for cause, _ in fixes]
            measured = verified(training, again, list(zip(causes, tried, strict=True)))
            run = self.saved(run, measured, *tried)
        return run

    def _tried(self, case: TrainCase, fixed: Sequence[TrainCase]) -> list[Training]:
        """A case and some that differ from it, timed: interleaved, but for those that load
        otherwise, whose loaders would work in each other's turns.
        """
        alike = [case, *(one for one in fixed if load_case(one) == load_case(case))]
        found = self._timed_by_key(alike)
        for one in fixed:
            if one.key not in found:
                try:
                    found |= self._timed_by_key([one])
                except UserError as error:  # a loader that the user did not ask for
                    found[one.key] = Training(one, "failed", str(error))
        return [found[one.key] for one in (case, *fixed)]

    def _timed_by_key(self, cases: Sequence[TrainCase]) -> dict[str, Training]:
        self.progress.about(tuple(cases))
        return {t.case.key: t for t in with_speedups(self._time(cases), {})}


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
        "the step times are complete; --predict makes a ledger of predicted steps",
    )
    return replace(training, warnings=(*training.warnings, warning))


def _can_step(training: Training) -> bool:
    """Whether it was timed, and has not failed since."""
    return training.status == "ok" and training.steps is not None


def few_processes(run: Run, comparison: Comparison, number: int) -> bool:
    """Whether an arm that can be timed has the times of fewer than `number` + 1 processes."""
    arms = (run.find(Training, case.key) for case in comparison.cases)
    return any(timed_by(arm) <= number for arm in arms if arm and _can_step(arm))


def _is_verified(training: Training) -> bool:
    return any(cause.measured_gain_pct is not None for cause in training.causes)


def with_what_was(before: Training | None, training: Training) -> Training:
    """An arm that is timed again, with earlier results that the new timing does not replace."""
    if before is None:
        return training
    predicted = training.predicted or before.predicted
    return replace(
        training,
        repeats=before.repeats,
        predicted=predicted and predicted.beside(training.measured_s),
        causes=training.causes or before.causes,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
