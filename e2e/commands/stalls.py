"""`python -m e2e stalls` and `loader`: recipes and loaders measured apart, then together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from e2e.case import OWN, TrainCase, is_own
from e2e.commands.job import Stage
from e2e.commands.train import file_name, run_training
from e2e.data.loaders import LOADERS, check_name
from e2e.data.loaders.cpus import cores
from e2e.input_stalls import Alone, busy_points, measured_points, predict_together
from e2e.options import TrainOptions
from e2e.plan import Cases
from e2e.results.baselines import baselines
from e2e.results.loader_types import LoadCase, Loading, load_case
from e2e.results.types import PREDICTED, Predicted, Training
from microbench.device.host import usable_cores
from microbench.errors import UserError
from microbench.results.types import Run
from microbench.run_output import Done
from microbench.sweep import parse_names, parse_numbers

if TYPE_CHECKING:
    from e2e.commands.session import Session

LOAD_BUDGET_S = 6.0  # seconds of loading, for each loader
# The same of `stalls`, and its seconds of timing for each comparison: with what is set up in
# between, ResNet-50 takes 100 seconds on a GPU with 16 cores.
STALLS_LOAD_S, COMPARISON_S = 1.5, 5.0
MEASURED = ("some", "all", "none")
OF_FILES = ("folder", "made")  # data that is read from a disk
SMALL = ("generated", "cifar10")  # data of 3x32x32


def run_stalls(network: str, workers: str | None, measure: str, values: dict[str, Any]) -> Done:
    """Measure recipes and loader apart, predict them together, and measure some of that.

    `workers` are numbers or "1..16". UserError for options that contradict each other.
    """
    if measure not in MEASURED:
        raise UserError(f"--measure takes one of {', '.join(MEASURED)}, not {measure!r}")
    own = is_own(str(values["data"]))
    loader = values["loader"] or (OWN if own else "torchvision")
    budget = values["budget"] or COMPARISON_S
    options = _options(network, {**values, "loader": loader, "budget": budget})
    check_name(loader)
    fitting = [name for name, entry in LOADERS.items() if entry.trains and entry.processes]
    if loader not in fitting:
        fit = ", ".join(fitting)
        raise UserError(f"--loader {loader} has no workers to compare; choose from {fit}")
    counts = _counts(workers, options)
    budget_s = min(STALLS_LOAD_S, options.budget or COMPARISON_S)
    procedure = partial(measure_stalls, workers=counts, measure=measure, load_budget_s=budget_s)
    return run_training(options, procedure, f"stalls-{file_name(network)}")


def run_loaders(backend: str, workers: str | None, values: dict[str, Any]) -> Done:
    """Measure loaders alone, in images per second. UserError for options that do not fit."""
    own = is_own(str(values["data"]))
    data = str(values["data"]).partition(":")[0]
    source = "own" if own else "arrays" if data in SMALL else "files"
    names = [name for name, entry in LOADERS.items() if source in entry.sources]
    if backend != "all":
        for name in filter(None, backend.split(",")):
            check_name(name.strip(), "--backend")
        known = [name for name, entry in LOADERS.items() if ("own" in entry.sources) == own]
        names = parse_names(backend, known, "--backend")
    if data == "synthetic":
        raise UserError("--data synthetic is one batch: there is nothing to load; try --data made")
    # No network is trained: a small one will do, at the size of the images.
    size = None if data in SMALL else "3x224x224"
    network = "e2e.data.datasets.own:AnyInput" if own else "cnn-cifar"
    options = _options(network, {**values, "input": values["input"] or size, "recipe": "fp32"})
    counts = _counts(workers, options)
    budget_s = options.budget or LOAD_BUDGET_S
    procedure = partial(measure_loaders, names=names, workers=counts, load_budget_s=budget_s)
    return run_training(options, procedure, "loader")


def _counts(workers: str | None, options: TrainOptions) -> list[int]:
    """The numbers of workers; unless they are given, doubled from one to one a core."""
    return parse_numbers(workers or f"1..{options.cpus or usable_cores()}", "--workers")


def _options(network: str, values: dict[str, Any]) -> TrainOptions:
    """What is asked, but for the workers, which vary: what is held out is loaded without."""
    return TrainOptions.of(network, values, workers=0, record=False)


def measure_stalls(
    job: Session, run: Run, *, workers: Sequence[int], measure: str, load_budget_s: float
) -> Run:
    """Loaders alone, recipes alone, what busy workers cost them, and points of recipe and workers.

    `measure` is one of MEASURED; `load_budget_s` is seconds per loader.
    """
    loader = str(job.options.loader)
    run = measure_loaders(
        job, run, names=[loader], workers=workers, load_budget_s=load_budget_s, ends=True
    )
    for cases in job.comparisons:
        plain = _changed(cases, loader="synthetic", workers=0)
        pinned = _changed(plain, loader="pinned")
        joint = {count: _changed(plain, loader=loader, workers=count) for count in workers}
        busy = {
            count: _changed(plain, loader=loader, workers=count, cached=True)
            for count in busy_points(workers)
        }
        run = job.compare(run, [plain, pinned, *busy.values()])
        predicted = _predicted(job, run, pinned, busy, joint)
        run = _with_predictions(job, run, predicted)
        points = {"none": [], "all": sorted(joint)}.get(measure)
        if points is None:
            points = _points(joint, predicted)
        run = job.compare(run, [joint[count] for count in points])
        run = _with_predictions(job, run, predicted)
    return run


def _points(joint: dict[int, Cases], predicted: dict[TrainCase, Predicted]) -> list[int]:
    """The numbers of workers to measure, of all recipes."""
    chosen: set[int] = set()
    for recipe in zip(*joint.values(), strict=True):
        known = {
            count: max(prediction.speedup.values(), default=1.0)
            for count, case in zip(joint, recipe, strict=True)
            if (prediction := predicted.get(case)) is not None
        }
        chosen.update(measured_points(known))
    return sorted(chosen)


def measure_loaders(
    job: Session, run: Run, *, names: Sequence[str], workers: Sequence[int], load_budget_s: float,
    ends: bool = False,
) -> Run:  # fmt: skip
    """Each loader alone with each number of workers, one without processes once; one that cannot
    run here is a result with its reason.

    `ends` adds, for the most workers, cold files and reading without decoding.
    """
    loads: list[LoadCase] = []
    for cases in job.comparisons:
        case = cases[0]
        for name in names:
            counts = workers if LOADERS[name].processes else [0]
            alone = load_case(replace(case, loader=name))
            loads += [replace(alone, workers=count) for count in counts]
        last = loads[-1]
        if ends and "files" in LOADERS[last.loader].sources and case.data in OF_FILES:
            read = replace(last, loader="read")
            loads += [replace(last, cold=True), read, replace(read, cold=True)]
    job.expect(Stage.LOADING, len(loads))
    for load in loads:
        run = job.loaded(run, load, load_budget_s)
    return run


def _changed(cases: Cases, **fields: Any) -> Cases:
    """The cases with these fields changed."""
    return [replace(case, **fields) for case in cases]


def _predicted(
    job: Session, run: Run, pinned: Cases, busy: dict[int, Cases], joint: dict[int, Cases]
) -> dict[TrainCase, Predicted]:
    """Predictions of each recipe with each number of workers, where its parts are known."""
    predictions: dict[TrainCase, Predicted] = {}
    there = job.options.cpus or cores()
    for i, case in enumerate(pinned):
        training = run.find(Training, case.key)
        if training is None:
            continue
        beside = {
            count: t
            for count, comparison in busy.items()
            if (t := run.find(Training, comparison[i].key)) is not None
        }
        loadings = {
            count: loading
            for count, comparison in joint.items()
            if (loading := run.find(Loading, load_case(comparison[i]).key)) is not None
        }
        alone = Alone(training, beside, _host_s(training, job.kind, there), loadings)
        for count, loading in loadings.items():
            together = predict_together(alone, loading, there)
            if together is not None:
                predictions[joint[count][i]] = together
    return {
        case: replace(prediction, speedup=_speedups(case, predictions))
        for case, prediction in predictions.items()
    }


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
    bases = baselines(case, alike).items()
    return {name: predicted[base].step_s / predicted[case].step_s for name, base in bases}


def _with_predictions(job: Session, run: Run, predictions: dict[TrainCase, Predicted]) -> Run:
    """The run with each prediction, beside its measurement where there is one."""
    network, trainings = job.network, list[Training]()
    for case, predicted in predictions.items():
        units = network.units_per_sample * case.batch * case.accumulate
        known = run.find(Training, case.key)
        training = known or Training(case, PREDICTED, unit=network.unit, step_units=units)
        trainings.append(replace(training, predicted=predicted.beside(training.step_s)))
    return job.saved(run, *trainings, whole=False)
