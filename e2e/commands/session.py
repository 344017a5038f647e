"""The measuring of a job: comparisons one after another, each timed, recorded, and trained.

Over several GPUs every rank does the same; what rank 0 timed counts for all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from e2e.case import TrainCase
from e2e.commands.job import (
    Begun,
    Ended,
    Job,
    Left,
    Measured,
    More,
    Pipe,
    Result,
    Stage,
    can_step,
    untraced,
    with_what_was,
)
from e2e.data.loader_bench import LoadMeter
from e2e.plan import Cases, rungs_of
from e2e.recipes import cannot_run, recipe_of
from e2e.results.baselines import baselines
from e2e.results.ledger import explained, without_waits
from e2e.results.loader_types import LoadCase, Loading
from e2e.results.terms import TracedStep
from e2e.results.types import PREDICTED, PartGain, Repeat, Training
from e2e.training.host_speed import SmallStepSpeed
from e2e.training.once import train_once, with_convergence
from e2e.training.speedups import merged, timed_by, with_speedups
from e2e.training.store import Store
from e2e.training.variants import Task, Variants
from kernels.messages import one_line
from microbench import fmt
from microbench.device import device as devices
from microbench.device.host import others_now
from microbench.device.telemetry import Telemetry
from microbench.results.merging import newest
from microbench.results.types import Run
from microbench.worker import OnStage

# Seconds of timing a variant gets when the user gives no --budget; fed ones wait for bursts.
VARIANT_BUDGET_S, LOADER_BUDGET_S = 5.0, 10.0
EXCHANGE_PARTS = 3  # of a step over several GPUs: it, it without the exchange, the exchange alone
CPU_BUDGET_S = 40.0  # for all variants of a comparison
# Steps that are recorded; one on a CPU, where they are long.
TRACED_STEPS, CPU_TRACED_STEPS = 2, 1
RECORDINGS = 2  # at most: the profiler loses kernels now and then


class Session:
    """What a job has open. `comparisons` are all that were asked for, `run` what is known."""

    def __init__(
        self, job: Job, task: Task, info: devices.DeviceInfo, telemetry: Telemetry,
        comparisons: Sequence[Cases], pipe: Pipe, announce: OnStage,
    ) -> None:  # fmt: skip
        self.job, self.options = job, job.options
        self.task, self.network = task, task.network.facts
        self.kind, self.comparisons = info.kind, comparisons
        self.run = Run(("e2e",), "", {}, {}, others=job.known)
        self.announce = announce
        self._info, self._pipe = info, pipe
        chooses = any(recipe_of(case).auto for cases in comparisons for case in cases)
        gains = Store(info.as_dict(), devices.software(), "fp8", PartGain) if chooses else None
        self._variants = Variants(task, info.target(), telemetry, gains)
        self._ranks = self._variants.ranks
        self._meter = LoadMeter(task.data, self._variants.device, task.seed)
        self._predictor: Any = None
        self._tried = set(job.tried)
        # Read beside timed steps: what the CPU limits compares at one speed.
        reads = self._variants.cuda and self._ranks.is_rank0
        self._own_speed = SmallStepSpeed(self._variants.device) if reads else None

    # ------------------------------------------------------------ what is reported

    def _tell(self, event: object) -> None:
        self._pipe.send(("ok", event))

    def begin(self, what: str, cases: Sequence[Any], **more: Any) -> None:
        """Say what begins: the parent knows by it what to blame where this process dies."""
        self._tell(Begun(what, tuple(cases), **more))

    def expect(self, kind: str, more: int) -> None:
        """So many more results of a kind are to come."""
        self._tell(More(kind, more))

    def ahead(self, *seconds: float) -> None:
        """About how many seconds each result will take that is to come; the first one begins."""
        self._tell(Left(seconds[0], sum(seconds[1:])))

    def saved(self, run: Run, *results: Result, whole: bool = True) -> Run:
        """The run with these results, which the parent saves."""
        for result in results:
            run = run.with_other(result)
        if results:
            self._tried |= {result.case.key for result in results}
            self._tell(Measured(results, whole))
        return run

    def end(self) -> None:
        """All is done."""
        self.begin(Stage.ENDING, ())
        others = others_now(devices.gpu_state(self._info))
        self._tell(Ended(tuple(self.task.data.notes), others))

    def close(self) -> None:
        """Release what is held, and end the loaders."""
        self._variants.end_loading()
        # After a failed graph capture, freeing memory raises errors that say nothing new.
        with suppress(RuntimeError):
            self._variants.close()

    def can_run(self, case: TrainCase) -> bool:
        """Whether the device has the arithmetic of the case's recipe."""
        return cannot_run(recipe_of(case), self.kind, self._info.capability) is None

    # ------------------------------------------------------------ comparisons

    def compare(self, run: Run, comparisons: Sequence[Cases]) -> Run:
        """The run with these comparisons timed and, as was asked, trained from scratch.

        In a further process those of which fewer have times are timed once more.
        """
        mine = [cases for cases in comparisons if cases[0].gpus == self._ranks.world]
        number = self.job.number
        if number:
            again = [cases for cases in mine if self._lacks(run, cases, number)]
            self.expect(Stage.TIMING, len(again))
            for cases in again:
                run = self._again(run, cases)
            return run
        self.expect(Stage.TIMING, sum(not self.is_done(run, cases) for cases in mine))
        self.expect(Stage.TRAINING, sum(self._trainings_of(run, cases) for cases in mine))
        for cases in mine:
            if not self.is_done(run, cases):
                run = self._compared(run, cases)
            run = self._trained(run, cases)
        return run

    def is_done(self, run: Run, cases: Cases) -> bool:
        """Whether each has a result, which is not from before if it failed."""
        trainings = [run.find(Training, case.key) for case in cases]
        return all(
            t and t.status != PREDICTED and (t.status != "failed" or t.case.key in self._tried)
            for t in trainings
        )

    def _trainings_of(self, run: Run, cases: Cases) -> int:
        """How many trainings from scratch a comparison will have, beside those that it has."""
        if self.is_done(run, cases):
            return len(self._seeds(run, cases))
        able = sum(map(self.can_run, cases))
        return able * self.options.repeats if self._steps(cases) else 0

    def _compared(self, run: Run, cases: Cases) -> Run:
        expected = self._trainings_of(run, cases)
        before, timed = run, self.time(run, cases)
        results = self._whole(before, cases, timed)
        if self.options.record and any(t.steps for t in timed):
            run = self.saved(run, *results, whole=False)  # recording may end this process
            results = self._whole(before, cases, self._recorded(timed))
        for training in results:
            run = run.with_other(training)
        self._tried |= {case.key for case in cases}
        # Less those of what cannot be timed.
        self.expect(Stage.TRAINING, self._trainings_of(run, cases) - expected)
        return self.saved(run, *results)

    def _whole(self, before: Run, cases: Cases, timed: Sequence[Training]) -> list[Training]:
        """What was timed of a comparison, with what follows from it, and what was known before."""
        rungs = rungs_of(self.options, self.network, self.kind, cases)
        trainings = explained(with_speedups(timed, rungs))
        return [with_what_was(before.find(Training, t.case.key), t) for t in trainings]

    def time(self, run: Run, cases: Cases) -> list[Training]:
        """A Training for each case, in order; one that has broken a process is as it was."""
        known = {
            case.key: t
            for case in cases
            if case.key in self.job.tried and (t := run.find(Training, case.key))
            and t.status == "failed"
        }  # fmt: skip
        todo = [case for case in cases if case.key not in known]
        self.begin(Stage.SETTING_UP, todo, budget_s=self._budget_s(todo))
        trainings = self._ranks.from_rank0(self._variants.set_up(todo, self.announce))
        able = [t.case for t in trainings if t.status == "ok"]
        if able:
            budget_s = self._budget_s(able)
            self.begin(Stage.TIMING, able, budget_s=budget_s)
            timed = self._variants.time(
                budget_s, self.announce, self._own_speed, lambda rest_s: self._tell(Left(rest_s))
            )
            at = datetime.now(UTC).isoformat(timespec="seconds")
            # Timed results replace those of set-up.
            trainings = [
                *trainings,
                *(replace(t, measured_at=at) for t in self._ranks.from_rank0(timed)),
            ]
        by_key = known | {t.case.key: t for t in trainings}
        return [by_key[case.key] for case in cases]

    def _budget_s(self, cases: Cases) -> float:
        """Seconds of timing for these variants."""
        each_s = LOADER_BUDGET_S if any(case.loads_data for case in cases) else VARIANT_BUDGET_S
        if any(case.gpus > 1 for case in cases):
            each_s *= EXCHANGE_PARTS
        usual_s = CPU_BUDGET_S if self.kind == "cpu" else each_s * len(cases)
        return self.options.budget or usual_s

    # ------------------------------------------------------------ further processes

    def _lacks(self, run: Run, cases: Cases, number: int) -> bool:
        """Whether a variant that can be timed has the times of at most `number` processes."""
        return any(
            timed_by(t) <= number
            for case in cases
            if case.key not in self._tried and (t := run.find(Training, case.key))
            and can_step(t)
        )  # fmt: skip

    def _again(self, run: Run, cases: Cases) -> Run:
        """The run with variants that this process timed once more, and what follows from it.

        One that has no times, or fails here, stays as it is.
        """
        timed = [t for case in cases if (t := run.find(Training, case.key))]
        todo = [t.case for t in timed if can_step(t) and t.case.key not in self._tried]
        more = merged(timed, self.time(run, todo), 1 + newest(t.steps for t in timed))
        return self.saved(run, *self._whole(run, cases, more))

    # ------------------------------------------------------------ recorded steps

    def _recorded(self, trainings: Sequence[Training]) -> list[Training]:
        """The held trainings with steps of them as the profiler recorded them."""
        held = self._variants.held
        self.begin(Stage.RECORDING, [t.case for t in trainings if t.steps])
        traced = self._ranks.from_rank0({key: self._traced(key) for key in held})
        return [_with_trace(t, traced.get(t.case.key)) for t in trainings]

    def _traced(self, key: str) -> TracedStep | str:
        """Recorded steps of a variant, or why there are none.

        RuntimeError after a fault that the device does not survive.
        """
        from e2e.profile.step import NothingSeen
        from e2e.profile.training_steps import traced_step

        self.announce(key, "recording steps")
        trainer = self._variants.held[key].trainer
        why = ""
        recorded: TracedStep | None = None
        for _ in range(RECORDINGS):
            again = False
            try:
                recorded = traced_step(
                    self._variants.step_alone(key),
                    trainer.module,
                    TRACED_STEPS if self._variants.cuda else CPU_TRACED_STEPS,
                    # Hooks of modules would be compiled with them.
                    named=not trainer.case.compile,
                )
            except Exception as error:
                self._variants.raise_if_dead(error)
                why, again = one_line(error), isinstance(error, NothingSeen)
            if not self._ranks.from_rank0(again):  # every rank takes the same steps
                break
        return recorded or why

    # ------------------------------------------------------------ training from scratch

    def _steps(self, cases: Cases) -> int:
        """Steps of a training from scratch; 0 when none was asked for."""
        if self.options.epochs is None:
            return self.options.iterations or 0
        samples, case = self.task.data.train_samples, cases[0]
        assert samples is not None
        step = case.batch * case.accumulate * case.gpus
        return self.options.epochs * math.ceil(samples / step)

    def _seeds(self, run: Run, cases: Cases) -> list[tuple[TrainCase, int]]:
        """What is to be trained yet, and from which seed."""
        if not self._steps(cases):
            return []
        return [
            (case, self.options.seed + repeat)
            for repeat in range(self.options.repeats)
            for case in cases
            if (timed := run.find(Training, case.key)) and timed.status == "ok"
            and repeat >= len(timed.repeats)
        ]  # fmt: skip

    def _trained(self, run: Run, cases: Cases) -> Run:
        """The run with each variant trained from each seed, turn by turn."""
        todo = self._seeds(run, cases)
        if not todo:
            return run
        held = list(dict.fromkeys(case for case, _ in todo))
        self.begin(Stage.HOLDING, held)
        for training in self._ranks.from_rank0(self._variants.set_up(held, self.announce)):
            known = run.find(Training, training.case.key)
            if training.status != "ok" and known:
                reason = f"setting up its training: {training.reason}"
                run = self.saved(run, replace(known, status="failed", reason=reason), whole=False)
        self._variants.end_loading()
        for case, seed in todo:
            if case.key not in self._variants.held:
                continue
            self.begin(Stage.TRAINING, [case], seed=seed)
            repeat = self._train_once(case, seed, self._steps(cases))
            training = run.find(Training, case.key)
            assert training
            held_out = case.held_out or self.task.data.held_out_samples
            chance = 1 / self.task.data.classes if repeat.accuracy is not None else None
            training = replace(training, repeats=(*training.repeats, repeat), chance=chance)
            run = run.with_other(training)
            known = [t for c in cases if (t := run.find(Training, c.key))]
            # The one that was trained comes last: it is what is new.
            others = with_convergence(known, held_out)
            others.sort(key=lambda t: t.case.key == case.key)
            run = self.saved(run, *others)
        return run

    def _train_once(self, case: TrainCase, seed: int, steps: int) -> Repeat:
        began_s, key = time.perf_counter(), case.key

        def on_step(step: int) -> None:
            left_s = (time.perf_counter() - began_s) / max(1, step) * (steps - step)
            left = ""
            if step:
                left = f", about {fmt.rough_duration(left_s)} left"
                self._tell(Left(left_s))
            self.announce(key, f"training, seed {seed}, step {step} of {steps}{left}")

        on_step(0)
        repeat = train_once(self._variants.held[key], self.task.data, seed, steps, on_step)
        return self._ranks.from_rank0(repeat)

    # ------------------------------------------------------------ loaders, predictions

    def loaded(self, run: Run, case: LoadCase, budget_s: float) -> Run:
        """The run with a loader measured alone for `budget_s` seconds, unless it has that."""
        known = run.find(Loading, case.key)
        if known and (known.status != "failed" or case.key in self._tried):
            return run
        self.begin(Stage.LOADING, [case], budget_s=budget_s)
        self._variants.close()  # variants would be beside it
        return self.saved(run, self._meter.measure(case, budget_s))

    def predict(self, run: Run, comparisons: Sequence[Cases]) -> Run:
        """The run with these comparisons predicted, but for what it has already."""
        self.expect(Stage.PREDICTING, len(comparisons))
        for cases in comparisons:
            known = [run.find(Training, case.key) for case in cases]
            if all(t and (t.status != "failed" or t.case.key in self._tried) for t in known):
                continue
            self.begin(Stage.PREDICTING, cases)
            todo = [case for case in cases if case.key not in self.job.tried]
            trainings = self._predicted(todo)
            # What was measured says more.
            measured = {t.case.key for t in run.of(Training) if t.steps is not None}
            run = self.saved(run, *(t for t in trainings if t.case.key not in measured))
        return run

    def _predicted(self, cases: Cases) -> list[Training]:
        """A training for each case of a comparison, with what is predicted and its speed-ups."""
        if self._predictor is None:
            from e2e.prediction.predictor import Predictor
            from e2e.prediction.timer import CallTime

            store = Store(self._info.as_dict(), devices.software(), "calls", CallTime)
            self._predictor = Predictor(
                self.task.network, self._info.target(), self.task.data.classes, store,
                self._info.memory_bytes,
            )  # fmt: skip
        trainings: list[Training] = [self._predictor.predict(c, self.announce) for c in cases]
        known = {t.case: t.predicted for t in trainings if t.predicted}
        for place, training in enumerate(trainings):
            if predicted := training.predicted:
                others = baselines(training.case, list(known)).items()
                ratios = {name: known[other].step_s / predicted.step_s for name, other in others}
                trainings[place] = replace(training, predicted=replace(predicted, speedup=ratios))
        return trainings


def _with_trace(training: Training, traced: TracedStep | str | None) -> Training:
    """The training with its recorded steps, or with the reason why there are none."""
    if isinstance(traced, TracedStep):
        exchange = training.exchange
        return replace(training, traced=without_waits(traced, exchange) if exchange else traced)
    return training if training.steps is None or traced is None else untraced(training, traced)
