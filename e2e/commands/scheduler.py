"""The work of a run: comparisons timed and trained, each result on disk before the next begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from e2e.case import RESIDENT, USUAL_LOADER, TrainCase, TrainRequest
from e2e.commands.plan import Comparison, plan
from e2e.commands.progress import TrainProgress
from e2e.commands.worker import DataFacts, TrainWorker
from e2e.data.loaders import LOADERS
from e2e.data.loaders.crop_sizes import kept_bytes, no_room
from e2e.explain.annotate import Explainer, to_verify, verified
from e2e.networks import Network
from e2e.predict.prediction import Prediction, with_loader
from e2e.results.loader_types import LoadCase, Loading, load_case
from e2e.results.types import PREDICTED, Training
from e2e.train.convergence import judged
from e2e.train.speed_readings import SlowdownRange, slowdown_range
from e2e.train.speedups import with_speedups
from microbench.device.host import usable_cores
from microbench.errors import UserError
from microbench.results.types import Run
from microbench.run_output import save
from microbench.worker import Greeting, WorkerDied

ARM_BUDGET_S = 10.0  # seconds of timing an arm gets when the user gives no --budget
CPU_BUDGET_S = 40.0  # for all arms of a comparison
LOAD_BUDGET_S = 4.0  # of loading alone, where a prediction needs to know it


@dataclass(frozen=True)
class Work:
    """What all comparisons share: what was asked, and what device and data turned out to be."""

    request: TrainRequest
    path: Path
    network: Network
    greeting: Greeting
    facts: DataFacts

    @property
    def kind(self) -> str:
        """The device's kind."""
        return self.greeting.target.kind

    @property
    def memory_bytes(self) -> int | None:
        """The device's memory, where it is known."""
        return self.greeting.device.get("memory_bytes")

    @property
    def predicts(self) -> bool:
        """Whether steps are predicted before they are timed."""
        asked = self.request
        if asked.verify or not asked.train:
            return True
        return self.kind == "cuda" if asked.predict is None else asked.predict

    def plan(self, **changes: object) -> list[Comparison]:
        """The comparisons that are asked for, with these fields of their cases changed."""
        arms = self.request.arms
        arms = replace(arms, base=replace(arms.base, **changes))
        return plan(self.network, arms, self.kind, self.memory_bytes)


class Job:
    """Comparisons one after another; each result is on disk before the next begins."""

    def __init__(self, work: Work, worker: TrainWorker, progress: TrainProgress) -> None:
        self.work, self.worker, self.progress = work, worker, progress
        self._told: dict[str, Prediction] = {}
        self._pace: SlowdownRange | None = (
            None  # of the comparison's arms, and of what they might be
        )
        self._loadings: dict[str, Loading] = {}
        asked = work.request
        self.explainer = Explainer(
            self._ask, work.kind, work.memory_bytes, fixes=asked.verify or not asked.train,
            cores=asked.settings.case.cpus or usable_cores(),
        )  # fmt: skip

    def run(
        self, run: Run, comparisons: Sequence[Comparison], steps: Callable[[Comparison], int]
    ) -> Run:
        """The run with every comparison timed and trained."""
        known = {found.case.key: found for found in run.of(Loading) if found.status == "ok"}
        self._loadings = known | self._loadings
        for comparison in comparisons:
            self.progress.about(comparison.cases)
            was_done = self._is_done(run, comparison)
            foretold = {} if was_done else self._foretold(comparison)
            if not self.work.request.train:
                if foretold:
                    run = self._saved_all(run, self._untrained(run, foretold))
                continue
            self.progress.about(comparison.cases)
            run = self._timed(run, comparison, foretold)
            if self.work.request.verify:
                run = self._proposed(run, comparison) if was_done else run
                run = self._verified(run, comparison)
            if steps(comparison):
                run = self._trained(run, comparison, steps(comparison))
        return run

    def finished(self, run: Run, *, whole: bool) -> Run:
        """The run with what there is to say of its data; marked as finished if it is `whole`."""
        notes = list(self.worker.notes())
        if notes:
            run = replace(run, settings={**run.settings, "notes": notes})
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return self.saved(replace(run, finished_at=now if whole else None))

    def loaded(self, run: Run, case: LoadCase, budget_s: float) -> Run:
        """The run with a loader measured alone, unless it has been."""
        known = run.find(Loading, case.key)
        if known is not None and known.status != "failed":
            return run
        found = self._loading(case, budget_s)
        self.progress.loaded(found)
        return self.saved(run.with_other(found))

    def _loading(self, case: LoadCase, budget_s: float) -> Loading:
        """A loader measured alone, once."""
        if case.key not in self._loadings:
            self.progress.loading(case)
            try:
                self._loadings[case.key] = self.worker.load(case, budget_s)
            except WorkerDied as death:
                self._restart()
                self._loadings[case.key] = Loading(case, "failed", death.reason)
        return self._loadings[case.key]

    def saved(self, run: Run) -> Run:
        """The run, once it is on disk."""
        save(run, self.work.path)
        return run

    def _saved_all(self, run: Run, trainings: Sequence[Training]) -> Run:
        for training in trainings:
            run = run.with_other(training)
        return self.saved(run)

    # ------------------------------------------------------------ predicting

    def _foretold(self, comparison: Comparison) -> dict[str, Prediction]:
        """All cases for one pace of the host: as seen while any of them was measured."""
        if not self.work.predicts:
            return {}
        self._pace = None
        first = self.explainer.predictions(comparison.cases)
        self._pace = slowdown_range(
            {seen for told in first.values() for seen in told.speed_readings}
        )
        return self.explainer.predictions(comparison.cases)

    def _proposed(self, run: Run, comparison: Comparison) -> Run:
        """With fixes for arms that were timed without --verify, all else as it was then."""
        found = [t for case in comparison.cases if (t := run.find(Training, case.key)) is not None]
        if any(map(to_verify, found)):
            return run
        untold = [replace(training, predicted=None) for training in found]
        again = self.explainer.explained(untold, self._foretold(comparison))
        for old, new in zip(found, again, strict=True):
            run = run.with_other(replace(old, causes=new.causes or old.causes))
        return self.saved(self._with_loadings(run))

    def _with_loadings(self, run: Run) -> Run:
        """With the loaders that predictions asked for."""
        for loading in self._loadings.values():
            run = run.with_other(loading)
        return run

    def _ask(self, case: TrainCase) -> Prediction:
        """What cannot be told, or kills the process, has a reason instead of a time."""
        at_hand = {"loader": "synthetic", "workers": 0, "prefetch": 0}
        plain = replace(case, cached=False, cold=False, **at_hand)
        if plain.key not in self._told:
            self.progress.about((plain,))
            try:
                self._told[plain.key] = self.worker.predict(plain, self.progress.stage)
            except WorkerDied as death:
                self._restart()
                self._told[plain.key] = Prediction(plain, reason=death.reason, broke=True)
        told = replace(self._told[plain.key], case=case)
        told = told.predicted_for(self._pace) if self._pace else told
        if case.loader == RESIDENT and USUAL_LOADER.get(case.data) != RESIDENT:
            return self._kept(told)
        if not case.fed or told.predicted is None:
            return told
        loading = self._loading(load_case(case), LOAD_BUDGET_S)
        if loading.status != "ok":
            return Prediction(case, reason=loading.reason, runs=False)
        on_gpu = LOADERS[case.loader].on_gpu
        return with_loader(told, loading, case.batch * case.accumulate, on_gpu=on_gpu)

    def _kept(self, told: Prediction) -> Prediction:
        """What is foretold where files are decoded once and kept beside the step."""
        count, predicted = self.work.facts.train_samples or 0, told.predicted
        _, height, width = (int(side) for side in told.case.input.split("x"))
        too_large = no_room(count, (height, width), self.work.memory_bytes)
        if too_large:
            return Prediction(told.case, reason=too_large, runs=False)
        if predicted is None or predicted.memory_bytes is None:
            return told
        memory_bytes = predicted.memory_bytes + kept_bytes(count, (height, width))
        return replace(told, predicted=replace(predicted, memory_bytes=memory_bytes))

    def _untrained(self, run: Run, foretold: Mapping[str, Prediction]) -> list[Training]:
        """The arms of a comparison that nobody runs; those that the run has measured stay so."""
        found = [self._blank(told) for told in foretold.values()]
        self.progress.foretold(found)
        told = self.explainer.explained(found, foretold)
        measured = {t.case.key for t in run.of(Training) if t.steps is not None}
        return [training for training in told if training.case.key not in measured]

    def _blank(self, told: Prediction) -> Training:
        status = PREDICTED if told.predicted else "failed" if told.broke else "skipped"
        units = self.work.network.units_per_sample * told.case.batch * told.case.accumulate
        return Training(told.case, status, told.reason, self.work.network.unit, units)

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
        """Whether it was predicted without what a real step may tell now."""
        told = None if training.steps else training.predicted
        return self.work.request.settings.allow_run and told is not None and bool(told.uncovered)

    def _timed(self, run: Run, comparison: Comparison, foretold: Mapping[str, Prediction]) -> Run:
        if self._is_done(run, comparison):
            return run
        done = [run.find(Training, case.key) for case in comparison.cases]
        trainings = self._time(comparison.cases)
        known = {t.case.key: t for t in done if t is not None}
        rungs = {arm.case.key: arm.rung for arm in comparison.arms}
        found = self.explainer.explained(with_speedups(trainings, rungs), foretold)
        for training in found:
            run = run.with_other(_with_what_was(known.get(training.case.key), training))
        self.progress.timed(found)
        return self.saved(self._with_loadings(run))

    def _time(self, cases: Sequence[TrainCase]) -> list[Training]:
        """A Training for each case, in order; one that kills the process fails, alone."""
        failed: dict[str, Training] = {}
        while left := [case for case in cases if case.key not in failed]:
            try:
                found = self.worker.set_up(left, self.progress.stage)
                arms = sum(t.status == "ok" for t in found)
                if arms:
                    budget_s = self.work.request.budget or self._budget_s(arms)
                    self.progress.timing(budget_s)
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
        return CPU_BUDGET_S if self.work.kind == "cpu" else ARM_BUDGET_S * arms

    def _restart(self) -> None:
        self.worker.close()
        self.worker = TrainWorker(self.work.request.settings)
        self.worker.greet()
        self.worker.open_data()

    def _verified(self, run: Run, comparison: Comparison) -> Run:
        """The best fixes of each arm, measured in turns with the arm itself."""
        for case in comparison.cases:
            training = run.find(Training, case.key)
            fixes = to_verify(training) if training and training.steps else []
            if training is None or not fixes or _is_verified(training):
                continue
            again, *tried = self._tried(case, [fixed for _, fixed in fixes])
            causes = [cause for cause, _ in fixes]
            measured = verified(training, again, list(zip(causes, tried, strict=True)))
            run = self._saved_all(run, [measured, *tried])
        return run

    def _tried(self, case: TrainCase, fixed: Sequence[TrainCase]) -> list[Training]:
        """A case and some that differ from it, timed: in turns, but for those that load otherwise,
        whose loaders would work in each other's turns.
        """
        alike = [case, *(one for one in fixed if load_case(one) == load_case(case))]
        self.progress.about(tuple(alike))
        found = {t.case.key: t for t in with_speedups(self._time(alike), {})}
        for one in fixed:
            if one.key not in found:
                self.progress.about((one,))
                found |= {t.case.key: t for t in with_speedups(self._loaded_otherwise(one), {})}
        return [found[one.key] for one in (case, *fixed)]

    def _loaded_otherwise(self, case: TrainCase) -> list[Training]:
        """A case timed with a loader that the user did not ask for: it may not work here."""
        try:
            return self._time([case])
        except UserError as error:
            return [Training(case, "failed", str(error))]

    # ------------------------------------------------------------ training

    def _trained(self, run: Run, comparison: Comparison, steps: int) -> Run:
        """Each arm trained from each seed; the arms take turns seed by seed."""
        first = self.work.request.settings.seed
        seeds = range(first, first + self.work.request.repeats)
        todo = [
            (case, seed)
            for seed in seeds
            for case in comparison.cases
            if self._wanted(run.find(Training, case.key), seed)
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
        training = run.find(Training, case.key)
        assert training is not None
        if training.status != "ok":
            return run  # it broke with an earlier seed
        try:
            repeat = self.worker.train(case.key, seed, steps, self.progress.stage)
        except WorkerDied as death:
            self._restart()
            others = [c for c in comparison.cases if c != case and _ok(run.find(Training, c.key))]
            self._hold(run, others)
            reason = f"training from seed {seed}: {death.reason}"
            return self.saved(run.with_other(replace(training, status="failed", reason=reason)))
        chance = 1 / self.work.facts.classes if repeat.accuracy is not None else None
        training = replace(training, repeats=(*training.repeats, repeat), chance=chance)
        run = run.with_other(training)
        found = [t for c in comparison.cases if (t := run.find(Training, c.key)) is not None]
        for one in judged(found, self.work.facts.held_out):
            run = run.with_other(one)
        self.progress.trained(case, repeat)
        return self.saved(run)


def _ok(training: Training | None) -> bool:
    return training is not None and training.status == "ok"


def _is_verified(training: Training) -> bool:
    return any(cause.measured_gain_pct is not None for cause in training.causes)


def _with_what_was(before: Training | None, training: Training) -> Training:
    """An arm that is timed again, with what the run had of it and does not get anew."""
    if before is None:
        return training
    predicted = training.predicted or before.predicted
    return replace(
        training,
        repeats=before.repeats,
        predicted=predicted and predicted.beside(training.step_s),
        causes=training.causes or before.causes,
    )
