"""Reports of trainings and loaders: what `microbench.results.kinds.Report` needs of a kind.

Pure functions of the run: the answer, the parts, and the rows of CSV.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import partial

from e2e.case import DATA_WORDS, OP, TrainCase
from e2e.report import trainings
from e2e.report.answer import answer, warnings_of
from e2e.report.figures import interval
from e2e.report.ledger import explained_parts, gains, title_words
from e2e.report.loading import (
    loader_sweeps,
    loaders_answer,
    loaders_part,
    loaders_raw,
    sweep_answer,
    sweep_part,
)
from e2e.report.pictures import loading_chart, training_chart
from e2e.report.predictions import error_pct, of_operations, predicted_answer, prediction_parts
from e2e.report.variants import OPTIONS, View, in_words, view_of, what_was_trained
from e2e.results import loader_types
from e2e.results.loader_types import LoadCase, Loading
from e2e.results.types import Cause, Training
from microbench import fmt
from microbench.report.parts import (
    DEFAULT,
    VERBOSE,
    Part,
    Raw,
    Report,
    Value,
    value,
    warnings_part,
)
from microbench.results.types import Ratio, Run

MOST_LINES = 8  # of an answer on several networks fed by loaders
FIRST: Mapping[str, str] = {OP: "recipe", loader_types.OP: "loader"}


def cells(case: TrainCase | LoadCase) -> tuple[str, str, str]:
    """Of a training: recipe, subject, options; of a loader: name, data, settings."""
    if isinstance(case, TrainCase):
        names = ["network", "batch"]
        names += [] if case.data == "synthetic" else ["data", "loader", "workers", "prefetch"]
        return (fmt.clean(case.recipe), ", ".join(in_words(case, names)),
                " ".join(in_words(case, OPTIONS)))  # fmt: skip
    how = [fmt.count(case.workers, "worker"), *["cold files"] * case.cold]
    how += [f"prefetch {case.prefetch}"] if case.prefetch else []
    what = f"{fmt.clean(DATA_WORDS.get(case.data, case.data))} data, batch {case.batch}"
    return fmt.clean(case.loader), what, ", ".join(how)


def ratio(op: str, value: Ratio) -> str:
    """A ratio with its interval; more digits for steps, whose intervals are narrower."""
    return interval(value) if op == OP else fmt.interval(value)


# ---------------------------------------------------------------- the report


def report(run: Run) -> Report:
    """Trainings; or recipes by number of workers, then other trainings; or loaders alone; or what
    was predicted.
    """
    view, device, trained = view_of(run), run.device_name, run.of(Training)
    if sweeps := loader_sweeps(run):
        lines = [line for sweep in sweeps for line in sweep_answer(sweep, device)][:MOST_LINES]
        parts = [
            sweep_part(sweeps[0], DEFAULT),
            *(sweep_part(sweep, VERBOSE) for sweep in sweeps[1:]),
            loaders_part(run, VERBOSE),
            *_parts(run, view, predicts=False)[1:],
        ]
    elif trained:
        predicts = run.kind in ("predict", "") and any(map(of_operations, view.variants))
        lines = predicted_answer(run, view, device) if predicts else answer(run, view)
        parts = [*_parts(run, view, predicts=predicts), loaders_part(run, VERBOSE)]
    else:
        lines, parts = loaders_answer(run, device), [loaders_part(run, DEFAULT)]
    return Report(
        answer=lines,
        parts=parts,
        about=what_was_trained(run) if trained else (),
        raw=raw(run),
        chart=partial(training_chart if trained and not sweeps else loading_chart, run),
    )


def _parts(run: Run, view: View, *, predicts: bool) -> list[Part]:
    """The parts of trainings."""
    return [
        *([] if predicts else [trainings.recipes_part(view)]),
        *prediction_parts(view, screen=predicts),
        trainings.every_recipe_part(view),
        trainings.convergence_part(view),
        trainings.exchange_part(view),
        trainings.gains_part(view),
        *explained_parts(view),
        trainings.phases_part(view),
        warnings_part(warnings_of(view)),
    ]


# ---------------------------------------------------------------- CSV

OTHER_PHASES = "other_phases"  # the place of their columns
BASELINES = ("fp32", "tf32", "previous", "first")  # whose speed-ups CSV has
PHASES = ("data", "copy", "forward", "backward", "optimizer")  # always in CSV
ENDS = ("", "_low", "_high")


def _paths(text: str) -> dict[str, str]:
    """Names of CSV, each with its path in a training where it is called otherwise there."""
    pairs = (pair.partition("=") for pair in text.split())
    return {name: path if sign else name for name, sign, path in pairs}


# The names of CSV, in an order that does not change; new ones follow. `_raw_training` makes those
# without a path.
FIRST_NAMES: Mapping[str, str] = {
    "op": "",
    **{field.name: f"case.{field.name}" for field in fields(TrainCase)},
    **_paths("""
        rung status reason unit step_units images_per_s=per_s step_s=steps.median_s
        ci95_low_s=steps.ci95_s.0 ci95_high_s=steps.ci95_s.1 samples= wall_per_s
        busy_s=steps.busy_s host_s=steps.host_s launches=steps.launches
    """),
    **{f"{phase}_{clock}_s": "" for phase in PHASES for clock in ("host", "gpu")},
    **_paths("""
        memory_peak_bytes fits_batch gpu_util_mean_pct=state.gpu_util_pct.mean
        gpu_util_min_pct=state.gpu_util_pct.min gpu_util_max_pct=state.gpu_util_pct.max
        sm_clock_mhz=state.sm_clock_mhz power_w=state.power_w images_per_j=per_j
        temperature_c=state.temperature_c throttle= setup_s compile_s skipped_steps
        accuracy_mean=accuracy.0 accuracy_std=accuracy.1 loss_mean=loss.0 loss_std=loss.1
        train_mean_s=train_s.0 train_std_s=train_s.1 repeats= seeds= chance converged convergence
        limit why
    """),
    **{f"speedup_{name}{end}": "" for name in BASELINES for end in ENDS},
    **_paths("predicted_step_s=predicted.step_s predicted_error_pct="),
}
LATER_NAMES: Mapping[str, str] = _paths(f"""
    memory_reserved_bytes memory_process_bytes model_bytes checkpoint_bytes first_step_s
    float8_layers linear_layers step_min_s=step_range_s.0 step_max_s=step_range_s.1
    wait_s=steps.wait_s {OTHER_PHASES}= accuracy_population_std=population_deviations.accuracy
    loss_population_std=population_deviations.loss
    train_s_population_std=population_deviations.train_s
    train_loss_mean= last_loss_mean= all_steps_loss_mean= zero_gradients_mean=
    infinite_gradients_mean= train_steps= train_skipped_steps= predicted_per_s
    predicted_low_s=predicted.interval_s.0 predicted_high_s=predicted.interval_s.1
    predicted_at_host_speed_s=predicted.paced_s predicted_limit=predicted.limit
    predicted_memory_peak_bytes=predicted.memory_bytes
    {" ".join(f"predicted_speedup_{name}=predicted.speedup.{name}" for name in BASELINES)}
    ledger_base ledger_bound=bound ledger_ms= fixes= findings= exchange_bytes=exchange.bytes
    exchange_exposed_s=exchange.exposed_s exchange_exposed_low_s=exchange.exposed_ci95_s.0
    exchange_exposed_high_s=exchange.exposed_ci95_s.1 exchange_copies_s=exchange.copies_s
    exchange_alone_s=exchange.alone_s exchange_overlapped=exchange.overlapped
    bus_bytes_per_s=exchange.bus_bytes_per_s rank_local_s=
""")
MEANS = {
    "train_loss_mean": "train_loss", "last_loss_mean": "last_loss",
    "all_steps_loss_mean": "mean_loss", "zero_gradients_mean": "zero_gradients",
    "infinite_gradients_mean": "infinite_gradients",
}  # fmt: skip


def raw(run: Run) -> list[Raw]:
    """CSV of trainings, then of loaders. Names of loaders precede those that came later."""
    variants, loaders = run.of(Training), loaders_raw(run)
    if not variants:
        return [loaders]
    timed = dict.fromkeys(phase.name for t in variants for phase in t.phases)
    phases = [f"{name}_{clock}_s" for name in timed for clock in ("host", "gpu")]
    later = [col for name in LATER_NAMES for col in (phases if name == OTHER_PHASES else [name])]
    rows = [*map(_raw_training, variants)]
    return [(list(FIRST_NAMES), rows), *[loaders] * bool(run.of(Loading)), (later, [])]


def _raw_training(variant: Training) -> Mapping[str, Value]:
    named = {**FIRST_NAMES, **LATER_NAMES}
    row: dict[str, Value] = {name: value(variant, path) for name, path in named.items() if path}
    for name, ratio in variant.speedup.items():
        values = (ratio.ratio, *(ratio.ci95 or (None, None)))
        row |= {f"speedup_{name}{end}": figure for end, figure in zip(ENDS, values, strict=True)}
    for phase in variant.phases:
        row |= {f"{phase.name}_host_s": phase.host_s, f"{phase.name}_gpu_s": phase.gpu_s}
    for name in ("steps", "skipped_steps"):
        row[f"train_{name}"] = _joined(getattr(repeat, name) for repeat in variant.repeats)
    fixes = [cause for cause in variant.causes if fmt.clean(cause.fix)]
    fixes.sort(key=lambda cause: -_predicted_pct(cause))
    local_s = variant.exchange.rank_local_s if variant.exchange else ()
    return {
        **row,
        "op": OP,
        "throttle": _joined(variant.state.throttle),
        "samples": len(variant.steps.times_s) if variant.steps else None,
        **{name: trainings.mean_of(variant, of) for name, of in MEANS.items()},
        "repeats": len(variant.repeats),
        "seeds": _joined(repeat.seed for repeat in variant.repeats),
        "predicted_error_pct": error_pct(variant),
        "ledger_ms": _joined(f"{line.term}: {line.ms:.9g}" for line in variant.ledger),
        "fixes": _joined(
            f"{fmt.clean(cause.fix)}: {gains(cause) or 'gain not predicted'}" for cause in fixes
        ),
        "findings": _joined(
            title_words(cause) for cause in variant.causes if not fmt.clean(cause.fix)
        ),
        "rank_local_s": _joined(f"{seconds:.6g}" for seconds in local_s),
    }


def _joined(values: Iterable[object]) -> str:
    return "; ".join(map(str, values))


def _predicted_pct(cause: Cause) -> float:
    """To a decimal, as it is shown; below any gain where it is not known."""
    pct = cause.predicted_gain_pct
    return -math.inf if pct is None or not math.isfinite(pct) else round(pct, 1)
