"""A training as an object of the run file's `results`, and back.

Flat, like kernels' results: the fields of the steps and of the device's state are in the result
itself. What follows from them is written too, for readers; reading ignores it, like any other field
that is not declared. The types say what a field may be; here is checked how fields fit together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from itertools import chain
from typing import Any, cast

from e2e.case import LEAST, OP, USUAL_LOADER, TrainCase
from e2e.results.terms import TracedStep
from e2e.results.types import PREDICTED, DeviceState, LedgerLine, StepTimes, Training
from microbench.results.codec import decode
from microbench.results.types import (
    PROCESSES,
    TIME_DECIMALS,
    Interval,
    Json,
    check_processes,
    processes_json,
)

STATE = tuple(field.name for field in fields(DeviceState))
RAW_TIMES = ("times_s", "wall_times_s")
LISTS = ("ledger", "causes")  # null in older files where they are empty
OPTIONAL = ("layer", "dtype", "misaligned", "within", "cause")  # of a part or a cost
LEDGER_TOLERANCE = 1e-3  # of its longer step: by so much a ledger's lines may miss their sum


def to_json(training: Training) -> Json:
    """The training as the schema has it. Step times are seconds, rounded to TIME_DECIMALS."""
    data = asdict(training)
    steps, state = data.pop("steps"), data.pop("state")
    steps = steps or dict.fromkeys(field.name for field in fields(StepTimes))
    steps["step_s"] = steps.pop("median_s")
    for name in RAW_TIMES:
        times: list[float] | None = steps[name]
        steps[name] = times and [round(seconds, TIME_DECIMALS) for seconds in times]
    traced, exchange = training.traced, training.exchange
    later = {
        "traced": traced and _traced_to_json(traced),
        "exchange": exchange and {
            **data["exchange"], "overlapped": exchange.overlapped,
            "bus_bytes_per_s": exchange.bus_bytes_per_s,
        },
        "fp8_gains": data["fp8_gains"],
        **processes_json(training.steps.processes if training.steps else ()),
    }  # fmt: skip
    return _finite({
        "op": OP,
        **{name: value for name, value in data.items() if name not in later},
        **{name: value for name, value in steps.items() if name != PROCESSES},
        **state,
        **{name: value for name, value in later.items() if value},
        "case": {**data["case"], "image_size": _image_size(training.case)},
        "images_per_s": training.per_s,
        "images_per_j": training.per_j,
        "data_wait_s": training.data_wait_s,
        **{name: _mean_and_deviation(training, name) for name in ("loss", "accuracy")},
    })  # fmt: skip


def _traced_to_json(traced: TracedStep) -> Json:
    """Without texts that are empty: most parts have a term and a time."""
    data = asdict(traced)
    for name in ("parts", "costs"):
        data[name] = [
            {n: v for n, v in item.items() if v != "" or n not in OPTIONAL} for item in data[name]
        ]
    return data


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: a number that is none is written as null, anywhere below."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in cast(Json, value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast("Sequence[object]", value)]
    return value


def _image_size(case: TrainCase) -> int | None:
    """Height and width of an image, where they are one number."""
    sizes = case.input.split("x")
    square = len(sizes) == 3 and sizes[1] == sizes[2] and sizes[2].isdecimal()
    return int(sizes[2]) if square else None


def _mean_and_deviation(training: Training, name: str) -> Json | None:
    pair: tuple[float, float] | None = getattr(training, name)
    population = training.population_deviations[name]
    return pair and {"mean": pair[0], "std": pair[1], "population_std": population}


def from_json(data: Json, where: str) -> Training:
    """The inverse of `to_json`. ValueError names the field that is wrong."""
    state = decode(DeviceState, data, where)
    empty: Json = {name: [] for name in LISTS if data.get(name) is None}
    whole = {**data, "case": _case(data, where), "steps": None, "state": {}, **empty}
    training = replace(decode(Training, whole, where), state=state)
    if data.get("times_s") is not None:
        flat: Json = {**data, "median_s": data.get("step_s"), PROCESSES: data.get(PROCESSES) or []}
        training = replace(training, steps=decode(StepTimes, flat, where))
    wrong = next(_misfits(training), "")
    if wrong:
        raise ValueError(f"{where}.{wrong}")
    if training.steps:
        check_processes(training.steps.processes, len(training.steps.blocks), where)
    return training


def _case(data: Json, where: str) -> Json:
    """The case; older files have the kind of data where newer ones have its loader."""
    case = decode(Json, data.get("case"), f"{where}.case")
    kind = case.get("loader")
    if "data" in case or not isinstance(kind, str):
        return case
    return {**case, "data": kind, "loader": USUAL_LOADER.get(kind, kind)}


def _misfits(training: Training) -> Iterator[str]:
    """Fields that do not fit together, and why."""
    steps, predicted, traced = training.steps, training.predicted, training.traced
    for name, least in LEAST.items():
        if getattr(training.case, name) < least:
            yield f"case.{name} is {getattr(training.case, name)}"
    if (steps or predicted) and training.step_units < 1:
        yield f"step_units: has steps of {training.step_units} {training.unit}"
    if training.status == PREDICTED and (steps or not predicted):
        yield f"status is {PREDICTED!r}, with steps or without a prediction"
    if steps and sum(steps.blocks) != len(steps.times_s):
        yield f"blocks is no division of {len(steps.times_s)} times"
    if traced and not traced.window_ns:
        yield "traced has no steps, or nothing in them"
    for i, repeat in enumerate(training.repeats):
        if len(repeat.curve) > repeat.steps:
            points = f"{len(repeat.curve)} points, of {repeat.steps} steps"
            yield f"repeats[{i}].curve has {points}"
    yield from chain(_odd_intervals(training), _odd_ledger(training.ledger))


def _odd_intervals(training: Training) -> Iterator[str]:
    if training.steps and not _is_interval(training.steps.ci95_s):
        yield "ci95_s is no interval of times"
    if training.predicted and not _is_interval(training.predicted.interval_s):
        yield "predicted.interval_s is no interval of times"
    ratios = {f"speedup.{name}": ratio for name, ratio in training.speedup.items()}
    for i, part in enumerate(training.fp8_gains):
        ratios |= {
            f"fp8_gains[{i}].layers[{j}].gain": layer.gain for j, layer in enumerate(part.layers)
        }
        ratios |= {f"fp8_gains[{i}].gain": part.gain} if part.gain else {}
    for name, ratio in ratios.items():
        if ratio.ratio <= 0 or not _is_interval(ratio.ci95):
            yield f"{name} is no ratio above zero"


def _is_interval(ends: Interval | None) -> bool:
    """Whether it is one above zero, or none."""
    return not ends or 0 < ends[0] <= ends[1]


def _odd_ledger(ledger: Sequence[LedgerLine]) -> Iterator[str]:
    if not ledger:
        return
    first, last = ledger[0], ledger[-1]
    if len(ledger) < 2 or min(first.ms, last.ms) <= 0:
        yield "ledger does not begin and end with a step's time"
    total = math.fsum(line.ms for line in ledger[:-1])
    if abs(total - last.ms) > LEDGER_TOLERANCE * max(first.ms, last.ms):
        yield f"ledger adds up to {total:.6g} ms, not {last.ms:.6g}"
