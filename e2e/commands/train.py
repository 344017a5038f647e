"""`python -m e2e NETWORK`: the run file and the screen of a job, and what a dead process costs."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from e2e.case import is_own
from e2e.commands.job import (
    Begun,
    Ended,
    Job,
    Left,
    Measured,
    More,
    Opened,
    Procedure,
    Result,
    Stage,
    can_step,
    carry_out,
    untraced,
    with_what_was,
)
from e2e.commands.progress import TrainProgress, make_usual
from e2e.commands.worker import JobProcess
from e2e.data.loaders import check_name
from e2e.networks.table import facts_of
from e2e.options import TrainOptions
from e2e.plan import plan
from e2e.results.loader_types import Loading
from e2e.results.types import Training
from e2e.training.launch import dist_env
from e2e.training.speedups import timed_by
from microbench.command_line import PLACES, check_there, kept
from microbench.device.host import LoadMeter
from microbench.errors import UserError
from microbench.results.types import Run
from microbench.run_output import (
    Done,
    check_goes_on,
    new_run,
    now,
    run_console,
    run_file,
    save,
    say_stopped,
)
from microbench.stopping import on_interrupt
from microbench.worker import Greeting, WorkerDied


def compare_recipes(session: Any, run: Run) -> Run:
    """The usual procedure: what was asked for is timed and trained."""
    return session.compare(run, session.comparisons)


def predict_steps(session: Any, run: Run) -> Run:
    """What was asked for is predicted."""
    return session.predict(run, session.comparisons)


def run_training(
    options: TrainOptions, procedure: Procedure | None = None, name: str = "", *, here: bool = False
) -> Done:
    """Do what the options ask for, in this process if `here`; `name` is for the run file.

    UserError for wrong options, data or networks.
    """
    outputs = options.outputs
    name = name or f"{'train' if options.train else 'predict'}-{file_name(options.network)}"
    with run_file(outputs, name) as (path, run):
        # Mistakes in words are said before anything loads.
        check_there(options.network)
        check_there(options.loss or "")
        if is_own(options.data) or options.data.startswith(PLACES["data"]):
            check_there(options.data, "data")
        check_name(str(options.of_case["loader"]))
        plan(options, facts_of(options.network, options.shape), "cuda", None)
        procedure = procedure or (compare_recipes if options.train else predict_steps)
        with on_interrupt(lambda: say_stopped("e2e", path)):
            run = Keeper(options, procedure, path, run).carry_out(here=here)
    return Done(run, path, outputs)


def file_name(network: str) -> str:
    """A network's name as part of a file's."""
    return re.sub(r"[^\w.-]+", "-", network)


class Here:
    """In the place of a pipe where the job runs in this process."""

    def __init__(self, take: Callable[[Any], None], on_stage: Callable[[str, str], None]) -> None:
        self._take, self._on_stage = take, on_stage

    def send(self, message: tuple[Any, ...], /) -> None:
        """Take what is said."""
        kind, *rest = message
        if kind == "stage":
            self._on_stage(*rest)
        else:
            self._take(rest[0])


class Keeper:
    """Keeps what training processes find: each result is saved before it is shown.

    Where a process dies, what was at stake has failed, and another goes on with the rest.
    """

    def __init__(
        self, options: TrainOptions, procedure: Procedure, path: Path, before: Run | None
    ) -> None:
        self._options, self._procedure, self._path = options, procedure, path
        self._before = before
        self._run: Run | None = None
        self._console = run_console(options.outputs)
        self._load = LoadMeter()
        self._progress = TrainProgress(self._console, quiet=options.outputs.quiet)
        self._greeting: Greeting | None = None
        self._begun, self._ended = Begun(Stage.OPENING), Ended()
        self._tried: frozenset[str] = frozenset()
        # Results stand as their cases began: one that has killed a process is not the first.
        self._order = dict.fromkeys(result.case.key for result in (before.others if before else ()))

    def carry_out(self, *, here: bool) -> Run:
        """The run with all that was asked for. UserError says where it is so far."""
        options = self._options
        if options.data == "made":
            make_usual(self._console)
        try:
            with self._progress:
                for number in range(options.processes):
                    self._tried = frozenset()
                    for gpus in options.all_gpus if options.train else [1]:
                        if not number or self._lacks(number, gpus):
                            self._until_done(Job(options, self._procedure, gpus, number), here)
                return self._finished()
        except UserError as error:
            path = self._path
            if not path.exists() or str(path) in str(error):
                raise
            raise UserError(
                f"{error}; results so far are in {path}; go on with --resume {path}"
            ) from None

    def _lacks(self, number: int, gpus: int) -> bool:
        """Whether something that can be timed has the times of fewer processes."""
        trainings = self._known.of(Training)
        todo = any(can_step(t) and timed_by(t) <= number for t in trainings if t.case.gpus == gpus)
        if todo:
            self._progress.next_process(number + 1, self._options.processes)
        return todo

    # ------------------------------------------------------------ processes

    def _until_done(self, job: Job, here: bool) -> None:
        while True:
            known = self._run or self._before
            job = replace(job, known=known.others if known else (), tried=self._tried)
            self._begun = Begun(Stage.OPENING)
            try:
                if here:
                    carry_out(Here(self._take, self._progress.stage), job)
                    return
                with closing(JobProcess(job)) as process:
                    while not process.ended:
                        self._take(process.next(self._begun, self._progress.stage))
                return
            except WorkerDied as death:
                if self._begun.what == Stage.ENDING:
                    return  # all is saved
                if self._begun.what == Stage.OPENING:
                    raise UserError(death.reason) from None
                if dist_env():
                    raise UserError(f"{death.reason}: torchrun's ranks end together") from None
                self._blame(job, death)

    def _blame(self, job: Job, death: WorkerDied) -> None:
        """Save what the death of a process costs: what it was at."""
        run, begun, cases = self._known, self._begun, self._begun.cases
        blamed: Any = next((case for case in cases if case.key == death.key), cases[0])
        self._tried |= {blamed.key}
        known = run.find(Training, blamed.key)
        if begun.what == Stage.LOADING:
            self._keep(Loading(blamed, "failed", death.reason))
        elif begun.what == Stage.RECORDING:
            trainings = [t for case in cases if (t := run.find(Training, case.key))]
            self._tried |= {case.key for case in cases}
            self._keep(*(untraced(training, death.reason) for training in trainings))
        elif begun.what in (Stage.HOLDING, Stage.TRAINING):
            assert known
            at = "setting up its training"
            if begun.what == Stage.TRAINING:
                at = f"training from seed {begun.seed}"
            reason = f"{at}: {death.reason}"
            self._save(replace(known, status="failed", reason=reason))
        elif not job.number and not (begun.what == Stage.PREDICTING and known and known.steps):
            failed = with_what_was(known, Training(blamed, "failed", death.reason))
            self._save(failed)
            if all(case.key in self._tried for case in cases):
                self._progress.timed([failed])  # else it is shown with the others

    # ------------------------------------------------------------ what they say

    def _take(self, event: Any) -> None:
        match event:
            case Greeting():
                self._greeting = event
            case Opened():
                if self._run is None:
                    self._run = self._begin(event)
                    for note in event.notes:
                        self._console.print(note)
                self._progress.restarted()
            case Begun():
                self._begun = event
                self._order |= dict.fromkeys(case.key for case in event.cases)
                self._progress.begins(event)
            case Measured():
                self._save(*event.results)
                if event.whole:
                    self._show(event.results)
            case More():
                self._progress.expect(event.kind, event.results)
            case Left():
                self._progress.time_left.ends_in(event.seconds, event.after_s)
            case _:
                assert isinstance(event, Ended)
                self._ended = event

    def _save(self, *results: Result) -> None:
        run = self._known
        for result in results:
            run = run.with_other(result)
        self._tried |= {result.case.key for result in results}
        self._order |= dict.fromkeys(result.case.key for result in results)
        places = {key: place for place, key in enumerate(self._order)}
        others = sorted(run.others, key=lambda result: places[result.case.key])
        self._run = replace(run, others=tuple(others))
        save(self._run, self._path)

    def _show(self, results: Any) -> None:
        last = results[-1]
        if isinstance(last, Loading):
            self._progress.loaded(last)
        elif self._begun.what == Stage.TRAINING:
            self._progress.trained(last.case, last.repeats[-1])
        else:
            self._progress.timed(list(results))

    def _keep(self, *results: Result) -> None:
        self._save(*results)
        self._show(results)

    @property
    def _known(self) -> Run:
        assert self._run
        return self._run

    # ------------------------------------------------------------ the run

    def _begin(self, opened: Opened) -> Run:
        """A new run, or the one to go on with."""
        assert self._greeting
        chosen: dict[str, Any] = {
            **kept(self._options),
            "data": opened.data,
            "train_samples": opened.train_samples,
            "held_out_samples": opened.held_out,
        }
        before, path = self._before, self._options.outputs.resume
        if before is None:
            return new_run("e2e", self._greeting, {"training": chosen})
        if not before.of(Training) and before.results:
            raise UserError(f"--resume {path} is not a run of e2e; start a new run")
        check_goes_on(path, before, self._greeting)
        known = before.settings.get("training", {})
        for name, value in chosen.items():
            if known.get(name, value) != value:
                then, now = ("unset" if v is None else v for v in (known[name], value))
                raise UserError(
                    f"--resume {path} was measured with {name} {then}, not {now}; give the same "
                    "value"
                )
        return replace(before, finished_at=None)

    def _finished(self) -> Run:
        """The run with its notes on the data, saved and marked as finished."""
        run, settings = self._known, dict(self._known.settings)
        if self._ended.notes:
            settings["notes"] = list(self._ended.notes)
        settings = self._load.noted(settings, self._ended.others)
        self._run = replace(run, settings=settings, finished_at=now())
        self._save()
        return self._known
