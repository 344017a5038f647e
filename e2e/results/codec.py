"""A training as an object of the run file's `results`, and back; reading checks the values.

Flat, like kernels' results: the fields of the steps and of the device's state are in the result
itself. Derived values for readers are written too; reading ignores them, like any other field that
is not declared.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, cast

from e2e.case import LEAST, OP, USUAL_LOADER, TrainCase
from e2e.results.terms import TracedStep
from e2e.results.types import (
    BORDER,
    LIMITS,
    PREDICTED,
    LedgerLine,
    Predicted,
    Repeat,
    State,
    StepTimes,
    Training,
)
from microbench.results.codec import decode
from microbench.results.types import (
    PROCESSES,
    STATUSES,
    TIME_DECIMALS,
    Interval,
    Json,
    check_processes,
    processes_json,
)

STATE = tuple(field.name for field in fields(State))
# As they stand in the file; `median_s` is `step_s` there, and one process has no field of its own.
STEPS = tuple(one.name for one in fields(StepTimes) if one.name not in ("median_s", PROCESSES))
RAW_TIMES = ("times_s", "wall_times_s")
PLAIN = (
    "status", "reason", "unit", "step_units", "setup_s", "compile_s", "memory_peak_bytes",
    "fits_batch", "skipped_steps", "chance", "converged", "convergence", "limit", "why", "rung",
    "ledger_base",
)  # fmt: skip
# Which older files do not have; written where they are known.
LATER = (
    "memory_reserved_bytes", "memory_process_bytes", "model_bytes", "checkpoint_bytes",
    "first_step_s", "float8_layers", "linear_layers",
)  # fmt: skip
SHARES = ("zero_gradients", "infinite_gradients")
LATER_OF_PREDICTED = ("terms_ms", "exchange_s", "launches")
OF_EXCHANGE = ("overlapped", "bus_bytes_per_s")  # what follows from it
LATER_OF_REPEAT = ("curve", "last_loss", "mean_loss", "evaluations", *SHARES)
LONGEST_MS = 1e15  # thirty thousand years: more is an error
LEDGER_TOLERANCE = 1e-3  # of its longer step: by so much a ledger's lines may miss their sum
GAINS = ("predicted_gain_pct", "measured_gain_pct")
LISTS = ("ledger", "causes")  # null where they are empty
OPTIONAL = ("layer", "dtype", "misaligned", "within", "cause")  # of a part or a cost: not written


def to_json(training: Training) -> Json:
    """The training as the schema has it. Step times are seconds, rounded to TIME_DECIMALS."""
    steps, state, exchange = training.steps, training.state, training.exchange
    measured: Json = {name: getattr(steps, name) if steps else None for name in STEPS}
    for name in RAW_TIMES if steps else ():
        measured[name] = [round(seconds, TIME_DECIMALS) for seconds in measured[name]]
    return {
        "op": OP,
        "case": {**asdict(training.case), "image_size": _image_size(training.case)},
        **{name: getattr(training, name) for name in PLAIN},
        **{n: value for n in LATER if (value := getattr(training, n)) is not None},
        "step_s": steps.median_s if steps else None,
        **measured,
        **processes_json(steps.processes if steps else ()),
        "images_per_s": _finite(training.per_s),
        "images_per_j": _finite(training.per_j),
        "data_wait_s": training.data_wait_s,
        "phases": [asdict(phase) for phase in training.phases],
        **{name: getattr(state, name) for name in STATE},
        "gpu_util_pct": asdict(state.gpu_util_pct) if state.gpu_util_pct else None,
        "speedup": {name: asdict(ratio) for name, ratio in training.speedup.items()},
        "repeats": [_known(repeat, LATER_OF_REPEAT) for repeat in training.repeats],
        **{name: _mean_and_deviation(training, name) for name in ("loss", "accuracy")},
        "warnings": [asdict(warning) for warning in training.warnings],
        "predicted": _known(training.predicted, LATER_OF_PREDICTED) if training.predicted else None,
        "ledger": [asdict(line) for line in training.ledger] or None,
        "bound": _finite(training.bound),
        "causes": [_finite(asdict(cause)) for cause in training.causes] or None,
        **({"measured_at": training.measured_at} if training.measured_at else {}),
        **({"traced": _traced_to_json(training.traced)} if training.traced else {}),
        **({"exchange": asdict(exchange) | {n: getattr(exchange, n) for n in OF_EXCHANGE}}
           if exchange else {}),
    }  # fmt: skip


def _traced_to_json(traced: TracedStep) -> Json:
    """Without what is empty or unknown: most parts have a term and a time."""
    data = _known(traced, ("of_card",))
    for name in ("parts", "costs"):
        data[name] = [
            {n: v for n, v in one.items() if v != "" or n not in OPTIONAL} for one in data[name]
        ]
    return data


def _known(value: Any, later: Collection[str]) -> Json:
    """Its fields, but those of `later` only where they are known, as older files have them."""
    data = _finite(asdict(value))
    return {n: one for n, one in data.items() if n not in later or one not in (None, [], {})}


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: a number that is none is written as null, anywhere below."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in cast(Json, value).items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in cast("Sequence[object]", value)]
    return value


def _image_size(case: TrainCase) -> int | None:
    """Height and width of an image, where they are one number."""
    sizes = case.input.split("x")
    square = len(sizes) == 3 and sizes[1] == sizes[2] and sizes[2].isdecimal()
    return int(sizes[2]) if square else None


def _mean_and_deviation(training: Training, name: str) -> Json | None:
    pair: tuple[float, float] | None = getattr(training, name)
    if pair is None or not all(map(math.isfinite, pair)):
        return None
    population = training.population_deviations[name]
    return {"mean": pair[0], "std": pair[1], "population_std": population}


def from_json(data: Json, where: str) -> Training:
    """The inverse of `to_json`. ValueError names the field that is wrong."""
    state = decode(State, data, where)
    empty: Json = {name: [] for name in LISTS if data.get(name) is None}
    whole = {**data, "case": _case(data, where), "steps": None, "state": {}, **empty}
    training = replace(decode(Training, whole, where), state=state)
    if data.get("times_s") is not None:
        flat: Json = {**data, "median_s": data.get("step_s"), PROCESSES: data.get(PROCESSES) or []}
        training = replace(training, steps=decode(StepTimes, flat, where))
    for name, least in LEAST.items():
        if getattr(training.case, name) < least:
            raise ValueError(f"{where}.case.{name} is {getattr(training.case, name)}")
    _check_training(training, where)
    if training.steps:
        _check_steps(training.steps, where)
    for name, ratio in training.speedup.items():
        if ratio.ratio <= 0 or not _is_interval(ratio.ci95):
            raise ValueError(f"{where}.speedup.{name} is no ratio above zero")
    _check_predictions(training, where)
    for i, repeat in enumerate(training.repeats):
        _check_repeat(repeat, f"{where}.repeats[{i}]")
    return training


def _is_interval(ends: Interval | None) -> bool:
    """Whether it is one above zero, or none."""
    return not ends or 0 < ends[0] <= ends[1]


def _case(data: Json, where: str) -> Json:
    """The case; older files have the kind of data where newer ones have its loader."""
    case = decode(Json, data.get("case"), f"{where}.case")
    kind = case.get("loader")
    if "data" in case or not isinstance(kind, str):
        return case
    return {**case, "data": kind, "loader": USUAL_LOADER.get(kind, kind)}


def _check_training(training: Training, where: str) -> None:
    if training.status not in (*STATUSES, PREDICTED):
        raise ValueError(f"{where}.status is {training.status!r}")
    if training.limit is not None and training.limit not in LIMITS:
        raise ValueError(f"{where}.limit is {training.limit!r}")
    if (training.steps or training.predicted) and training.step_units < 1:
        raise ValueError(f"{where} has steps of {training.step_units} {training.unit}")
    if training.exchange:
        sizes = [point.bytes for point in training.exchange.curve]
        if sizes != sorted(set(sizes)):
            raise ValueError(f"{where}.exchange.curve has sizes that do not rise")


def _check_steps(steps: StepTimes, where: str) -> None:
    if sum(steps.blocks) != len(steps.times_s):
        raise ValueError(f"{where}.blocks is no division of {len(steps.times_s)} times")
    if not _is_interval(steps.ci95_s):
        raise ValueError(f"{where}.ci95_s is no interval of times")
    check_processes(steps.processes, len(steps.blocks), where)


def _check_repeat(repeat: Repeat, where: str) -> None:
    if any(one.steps > repeat.steps for one in repeat.evaluations):
        raise ValueError(f"{where}.evaluations has more steps than the training")
    if len(repeat.curve) > repeat.steps:
        raise ValueError(f"{where}.curve has {len(repeat.curve)} points, of {repeat.steps} steps")


def _check_predictions(training: Training, where: str) -> None:
    if training.status == PREDICTED and (training.steps or not training.predicted):
        raise ValueError(f"{where}.status is {PREDICTED!r}, with steps or without a prediction")
    if training.predicted:
        _check_predicted(training.predicted, f"{where}.predicted")
    if training.ledger:
        _check_ledger(training.ledger, f"{where}.ledger")
    if training.traced and not training.traced.window_ns:
        raise ValueError(f"{where}.traced has no steps, or nothing in them")
    for i, cause in enumerate(training.causes):
        for name in GAINS:
            gain_pct = getattr(cause, name)
            if gain_pct is not None and gain_pct < -100:
                raise ValueError(f"{where}.causes[{i}].{name} is {gain_pct}, less than -100")


def _check_predicted(predicted: Predicted, where: str) -> None:
    if not _is_interval(predicted.interval_s):
        raise ValueError(f"{where}.interval_s is no interval of times")
    if predicted.limit not in (None, *LIMITS, BORDER):
        raise ValueError(f"{where}.limit is {predicted.limit!r}")


def _check_ledger(ledger: tuple[LedgerLine, ...], where: str) -> None:
    first, last = ledger[0], ledger[-1]
    if len(ledger) < 2 or min(first.ms, last.ms) <= 0:
        raise ValueError(f"{where} does not begin and end with a step's time")
    if max(abs(line.ms) for line in ledger) > LONGEST_MS:
        raise ValueError(f"{where} has a time of more than {LONGEST_MS:g} ms")
    total = math.fsum(line.ms for line in ledger[:-1])
    if abs(total - last.ms) > LEDGER_TOLERANCE * max(first.ms, last.ms):
        raise ValueError(f"{where} adds up to {total:.6g} ms, not {last.ms:.6g}")
