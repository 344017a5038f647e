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
from e2e.input_stalls import Fed, predict_together
from e2e.options import TrainOptions
from e2e.plan import Cases
from e2e.results.baselines import baselines
from e2e.results.loader_types import LoadCase, Loading, load_case
from e2e.results.types import FEWEST_FED_ROUNDS, PREDICTED, Predicted, Training
from microbench.errors import UserError
from microbench.results.types import Run
from microbench.run_output import Done
from microbench.sweep import parse_names, parse_numbers

if TYPE_CHECKING:
    from e2e.commands.session import Session

LOAD_BUDGET_S = 6.0  # seconds of loading, for each loader
# The same of `stalls`, and its seconds of timing for each comparison: with what is set up in
# between, ResNet-50 takes about 100 seconds on a GPU with 16 cores.
STALLS_LOAD_S, COMPARISON_S = 1.5, 5.0
# Said before it is known: seconds of a loader alone, of a training beside its timing, and of that
# what comes afterwards.
ABOUT_LOAD_S, ABOUT_SET_UP_S, ABOUT_LOOKED_S = 6.0, 6.0, 2.0
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
    there = options.cpus or cores()
    few = f"{there},{max(1, there // 4)}"
    counts = sorted(set(parse_numbers(workers or few, "--workers")), reverse=True)
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
    counts = parse_numbers(workers or f"1..{options.cpus or cores()}", "--workers")
    budget_s = options.budget or LOAD_BUDGET_S
    procedure = partial(measure_loaders, names=names, workers=counts, load_budget_s=budget_s)
    return run_training(options, procedure, "loader")


def _options(network: str, values: dict[str, Any]) -> TrainOptions:
    """What is asked, but for the workers, which vary: what is held out is loaded without."""
    return TrainOptions.of(network, values, workers=0, record=False)


def measure_stalls(
    job: Session, run: Run, *, workers: Sequence[int], measure: str, load_budget_s: float
) -> Run:
    """Loaders alone, recipes alone, and both together with the most workers, which come first.

    Other numbers of workers are predicted; `measure`, one of MEASURED, says if they are measured
    too. `load_budget_s` is seconds per loader.
    """
    name, together = str(job.options.loader), {"none": 0, "some": 1}.get(measure, len(workers))
    loads: list[LoadCase] = []
    timed: list[tuple[Cases, Cases, list[Cases]]] = []  # each with its pinned and its fed cases
    for asked in job.comparisons:
        pinned = _changed(_compared(job, asked), loader="pinned", workers=0)
        fed = [_changed(pinned, loader=name, workers=count) for count in workers]
        timed += [(cases, pinned, fed) for cases in (pinned, *fed[:together])]
        loads += [load_case(cases[0]) for cases in fed]
        most = load_case(fed[0][0])
        if "files" in LOADERS[name].sources and most.data in OF_FILES:
            read = replace(most, loader="read")
            loads += [replace(most, cold=True), read, replace(read, cold=True)]
    job.expect(Stage.LOADING, len(loads))
    for place, load in enumerate(loads):
        loads_s = [_load_s(run, one) for one in loads[place:]]
        job.ahead(*loads_s, *(_comparison_s(job, run, cases) for cases, _, _ in timed))
        run = job.loaded(run, load, load_budget_s)
    for place, (cases, pinned, fed) in enumerate(timed):
        job.ahead(*(_comparison_s(job, run, later) for later, _, _ in timed[place:]))
        run = _predicted(job, job.compare(run, [cases]), pinned, fed)
    return run


def _compared(job: Session, cases: Cases) -> Cases:
    """The recipes asked for; else AMP, and TF32, or FP32 where the device has no TF32."""
    if job.options.recipe is not None:
        return cases
    has_tf32 = any(case.recipe == "tf32" and job.can_run(case) for case in cases)
    return [case for case in cases if case.recipe != ("fp32" if has_tf32 else "tf32")]


def _load_s(run: Run, load: LoadCase) -> float:
    """About how many seconds a loader alone takes: as with the nearest number of workers."""
    alike = [one for one in run.of(Loading) if one.case.loader == load.loader and one.first_s]
    if not alike:
        return ABOUT_LOAD_S
    nearest = min(alike, key=lambda one: abs(one.case.workers - load.workers))
    return 2 * (nearest.first_s or 0.0) + nearest.wall_s


def _comparison_s(job: Session, run: Run, cases: Cases) -> float:
    """About how many seconds a comparison takes: its budget, or a few rounds of the workers.

    In a turn one leads and one is timed. Where training waits for data, about one is thrown away
    before, and two come afterwards, until the workers rest.
    """
    turns_s = others_s = 0.0
    for case in cases:
        loading = run.find(Loading, load_case(case).key)
        alone = run.find(Training, replace(case, loader="pinned", workers=0).key)
        loads_s = case.batch * case.accumulate / loading.per_s if loading and loading.per_s else 0.0
        trains_s = (alone and alone.step_s) or 0.0
        round_s = max(1, case.workers) * max(loads_s, trains_s)
        waits = loads_s > trains_s
        turns_s += FEWEST_FED_ROUNDS * (2 + waits) * round_s
        set_up_s = alone.setup_s + ABOUT_LOOKED_S if alone and alone.setup_s else ABOUT_SET_UP_S
        first_s = (loading and loading.first_s) or 0.0  # its workers start
        others_s += (1 + 2 * waits) * round_s + set_up_s + first_s
    return max(job.options.budget or COMPARISON_S, turns_s) + others_s


def measure_loaders(
    job: Session, run: Run, *, names: Sequence[str], workers: Sequence[int], load_budget_s: float
) -> Run:
    """Each loader alone with each number of workers, one without processes once; one that cannot
    run here is a result with its reason.
    """
    loads: list[LoadCase] = []
    for cases in job.comparisons:
        for name in names:
            alone = load_case(replace(cases[0], loader=name))
            counts = workers if LOADERS[name].processes else [0]
            loads += [replace(alone, workers=count) for count in counts]
    job.expect(Stage.LOADING, len(loads))
    for load in loads:
        run = job.loaded(run, load, load_budget_s)
    return run


def _changed(cases: Cases, **fields: Any) -> Cases:
    """The cases with these fields changed."""
    return [replace(case, **fields) for case in cases]


def _predicted(job: Session, run: Run, pinned: Cases, fed: Sequence[Cases]) -> Run:
    """The run with each recipe predicted with each number of workers, beside its measurement.

    The most workers, which come first, are predicted from the parts alone; the others also from
    what was measured with those.
    """
    there = job.options.cpus or cores()
    predictions: dict[TrainCase, Predicted] = {}
    for place, case in enumerate(pinned):
        alone, known = run.find(Training, case.key), None
        for cases in fed:
            loading = run.find(Loading, load_case(cases[place]).key)
            if alone is None or loading is None:
                continue
            host_s = _host_s(alone, job.kind, there)
            together = predict_together(alone, loading, host_s, there, known)
            if together is not None:
                predictions[cases[place]] = together
            if cases is fed[0] and (training := run.find(Training, cases[place].key)):
                known = Fed(training, loading)
    trainings: list[Training] = []
    for case, predicted in predictions.items():
        alike = [other for other in predictions if other.workers == case.workers]
        gains = {name: predictions[base].step_s / predicted.step_s
                 for name, base in baselines(case, alike).items()}  # fmt: skip
        predicted = replace(predicted, speedup=gains)
        units = job.network.units_per_sample * case.batch * case.accumulate
        blank = Training(case, PREDICTED, unit=job.network.unit, step_units=units)
        training = run.find(Training, case.key) or blank
        trainings.append(replace(training, predicted=predicted.beside(training.step_s)))
    return job.saved(run, *trainings, whole=False)


def _host_s(training: Training, kind: str, there: int) -> float:
    """CPU seconds of a step itself: of all cores on a CPU, of the launching one beside a GPU."""
    if training.steps is None:
        return 0.0
    if kind == "cpu":
        return training.steps.median_s * there
    # A step that waits for the device has no launching of its own: it holds its core all along.
    return training.steps.host_s or training.steps.median_s
