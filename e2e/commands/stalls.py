"""`python -m e2e stalls` and `loader`: recipes and loaders measured apart, then together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from e2e.case import TrainCase, TrainRequest
from e2e.commands.plan import Comparison
from e2e.commands.requests import request_of
from e2e.commands.scheduler import Job
from e2e.commands.train import file_name, run_requests
from e2e.data.loaders import LOADERS, check_name
from e2e.data.loaders.cpus import cores
from e2e.input_stalls import Alone, busy_points, measured_points, predict_together
from e2e.results.baselines import baselines
from e2e.results.loader_types import LoadCase, Loading, load_case
from e2e.results.types import PREDICTED, Predicted, Training
from microbench.device.host import usable_cores
from microbench.errors import UserError
from microbench.results.types import Run
from microbench.run_output import Done
from microbench.sweep import parse_names, parse_numbers

LOAD_BUDGET_S = 6.0  # seconds of loading, for each loader
MEASURED = ("some", "all", "none")
OF_FILES = ("folder", "made")  # data that is read from a disk
SMALL = ("generated", "cifar10")  # data of 3x32x32


def run_stalls(network: str, workers: str | None, measure: str, words: dict[str, Any]) -> Done:
    """Measure recipes and loader apart, predict them together, and measure some of that.

    `workers` are numbers or "1..16". UserError for options that contradict each other.
    """
    if measure not in MEASURED:
        raise UserError(f"--measure takes one of {', '.join(MEASURED)}, not {measure!r}")
    request = _request(network, {**words, "loader": words["loader"] or "torchvision"})
    loader = request.arms.base.loader
    check_name(loader)
    fitting = [name for name, one in LOADERS.items() if one.trains and one.processes]
    if loader not in fitting:
        fit = ", ".join(fitting)
        raise UserError(f"--loader {loader} has no workers to compare; choose from {fit}")
    counts = _counts(workers, request)
    budget_s = min(LOAD_BUDGET_S, request.budget or LOAD_BUDGET_S)
    procedure = Stalls(counts, words["prefetch"] or 0, measure, budget_s)
    return run_requests([request], f"stalls-{file_name(network)}", procedure)


def run_loaders(backend: str, workers: str | None, cold: bool, words: dict[str, Any]) -> Done:
    """Measure loaders alone, in images per second. UserError for options that do not fit."""
    names = list(LOADERS)
    if backend != "all":
        for name in filter(None, backend.split(",")):
            check_name(name.strip(), "--backend")
        names = parse_names(backend, list(LOADERS), "--backend")
    data = str(words["data"]).partition(":")[0]
    if data == "synthetic":
        raise UserError("--data synthetic is one batch: there is nothing to load; try --data made")
    # No network is trained: a small one will do, at the size of the images.
    size = None if data in SMALL else "3x224x224"
    request = _request("cnn-cifar", {**words, "input": words["input"] or size})
    counts = _counts(workers, request)
    budget_s = request.budget or LOAD_BUDGET_S
    procedure = Loaders(names, counts, words["prefetch"] or 0, cold, budget_s)
    return run_requests([request], "loader", procedure)


def _counts(workers: str | None, request: TrainRequest) -> list[int]:
    """The numbers of workers; unless they are given, doubled from one to one a core."""
    return parse_numbers(workers or f"1..{request.arms.base.cpus or usable_cores()}", "--workers")


def _request(network: str, words: dict[str, Any]) -> TrainRequest:
    """What is asked, but for the workers, which vary: what is held out is loaded without."""
    return request_of(network, words, workers=0, record=False)


@dataclass(frozen=True)
class Stalls:
    """Measures recipes x `workers`; each worker is `prefetch` batches ahead (0: as usual).

    `measure` is one of MEASURED; `load_budget_s` is seconds per loader.
    """

    workers: Sequence[int]
    prefetch: int
    measure: str
    load_budget_s: float

    def __call__(self, job: Job, run: Run) -> Run:
        """Loaders alone, recipes alone, what busy workers cost them, and the points together."""
        loader = job.work.request.arms.base.loader
        for case in load_cases(job, [loader], self.workers, self.prefetch, ends=True):
            job.progress.expect(1)
            run = job.loaded(run, case, self.load_budget_s)
        for comparison in job.work.comparisons:
            plain = _changed(comparison, loader="synthetic", workers=0)
            run = self._at_batch(job, run, plain)
        return run

    def _at_batch(self, job: Job, run: Run, plain: Comparison) -> Run:
        pinned = _changed(plain, loader="pinned")
        busy = {w: self._fed(job, plain, w, cached=True) for w in busy_points(self.workers)}
        run = _timed(job, run, [plain, pinned, *busy.values()])
        joint = {count: self._fed(job, plain, count) for count in self.workers}
        predicted = _predicted(job, run, pinned, busy, joint)
        run = _with_predictions(job, run, predicted)
        points = self._points(plain.cases, joint, predicted)
        return _with_predictions(job, _timed(job, run, [joint[w] for w in points]), predicted)

    def _fed(
        self, job: Job, plain: Comparison, workers: int, *, cached: bool = False
    ) -> Comparison:
        loader, ahead = job.work.request.arms.base.loader, self.prefetch if workers else 0
        return _changed(plain, loader=loader, workers=workers, prefetch=ahead, cached=cached)

    def _points(
        self,
        cases: Sequence[TrainCase],
        joint: dict[int, Comparison],
        predicted: dict[TrainCase, Predicted],
    ) -> list[int]:
        if self.measure == "none":
            return []
        if self.measure == "all":
            return sorted(joint)
        chosen: set[int] = set()
        for i in range(len(cases)):
            known = {
                count: max(one.speedup.values(), default=1.0)
                for count, comparison in joint.items()
                if (one := predicted.get(comparison.cases[i])) is not None
            }
            chosen.update(measured_points(known))
        return sorted(chosen)


@dataclass(frozen=True)
class Loaders:
    """Measures these back ends alone, with these numbers of workers, `load_budget_s` seconds each.

    Each worker is `prefetch` batches ahead (0: as usual).
    """

    names: Sequence[str]
    workers: Sequence[int]
    prefetch: int
    cold: bool
    load_budget_s: float

    def __call__(self, job: Job, run: Run) -> Run:
        """One after another; a back end that cannot run here is a result with its reason."""
        cases = load_cases(job, self.names, self.workers, self.prefetch)
        if self.cold:
            cases += [replace(c, cold=True) for c in cases if LOADERS[c.loader].processes]
        job.progress.expect(len(cases))
        for case in cases:
            run = job.loaded(run, case, self.load_budget_s)
        return run


def load_cases(
    job: Job, names: Sequence[str], workers: Sequence[int], prefetch: int, *, ends: bool = False
) -> list[LoadCase]:
    """Each loader with each number of workers; one without processes once.

    `ends` adds, for the most workers, cold files and reading without decoding.
    """
    base = job.work.request.arms.base
    found: list[LoadCase] = []
    for comparison in job.work.comparisons:
        case = comparison.cases[0]
        for name in names:
            counts = workers if LOADERS[name].processes else [0]
            found += [
                LoadCase(
                    base.data, name, case.batch, case.input, count,
                    prefetch=prefetch if count else 0, cpus=base.cpus,
                )
                for count in counts
            ]  # fmt: skip
        last = found[-1]
        if ends and "files" in LOADERS[last.loader].sources and base.data in OF_FILES:
            read = replace(last, loader="read")
            found += [replace(last, cold=True), read, replace(read, cold=True)]
    return found


def _changed(comparison: Comparison, **fields: object) -> Comparison:
    """The comparison with these fields of its cases changed."""
    return Comparison(
        tuple(replace(arm, case=replace(arm.case, **fields)) for arm in comparison.arms)
    )


def _timed(job: Job, run: Run, comparisons: Sequence[Comparison]) -> Run:
    job.progress.expect(len(comparisons))
    return job.run(run, comparisons, lambda _: 0)


def _predicted(
    job: Job,
    run: Run,
    pinned: Comparison,
    busy: dict[int, Comparison],
    joint: dict[int, Comparison],
) -> dict[TrainCase, Predicted]:
    """Predictions of each recipe with each number of workers, where its parts are known."""
    found: dict[TrainCase, Predicted] = {}
    there = job.work.request.arms.base.cpus or cores()
    for i, case in enumerate(pinned.cases):
        training = run.find(Training, case.key)
        if training is None:
            continue
        beside = {
            count: one
            for count, comparison in busy.items()
            if (one := run.find(Training, comparison.cases[i].key)) is not None
        }
        loadings = {
            count: loading
            for count, comparison in joint.items()
            if (loading := run.find(Loading, load_case(comparison.cases[i]).key)) is not None
        }
        alone = Alone(training, beside, _host_s(training, job.work.kind, there), loadings)
        for count, loading in loadings.items():
            together = predict_together(alone, loading, there)
            if together is not None:
                found[joint[count].cases[i]] = together
    return {case: replace(one, speedup=_speedups(case, found)) for case, one in found.items()}


def _host_s(training: Training, kind: str, there: int) -> float:
    """CPU seconds of a step itself: of all cores on a CPU, of the launching one beside a GPU."""
    if training.steps is None:
        return 0.0
    if kind == "cpu":
        return training.steps.median_s * there
    # A step that waits for the device has no launching of its own: it holds its core all along.
    return training.steps.host_s or training.steps.median_s


def _speedups(case: TrainCase, predicted: dict[TrainCase, Predicted]) -> dict[str, float]:
    alike = [other for other in predicted if other.workers == case.workers]
    found = baselines(case, alike).items()
    return {name: predicted[base].step_s / predicted[case].step_s for name, base in found}


def _with_predictions(job: Job, run: Run, predictions: dict[TrainCase, Predicted]) -> Run:
    """The run with each prediction, beside its measurement where there is one."""
    network = job.work.network
    for case, predicted in predictions.items():
        units = network.units_per_sample * case.batch * case.accumulate
        known = run.find(Training, case.key)
        training = known or Training(case, PREDICTED, unit=network.unit, step_units=units)
        run = run.with_other(replace(training, predicted=predicted.beside(training.step_s)))
    return job.saved(run)
