"""A `Run` as a JSON document, and back; what comes back is checked field by field.

The document is flat where the schema says so: a measurement's fields stand in its result, a case's
layout and data among its dimensions. Unknown fields are passed over, so that a file with more than
this version knows still reads.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import cache
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from kernels import OPS
from kernels.case import Case
from kernels.precision import precision
from microbench.results import STATUSES, Json, Measurement, Result, Run

REQUIRED = ("method_version", "finished_at", "ceilings", "results")  # beside those with no default
LARGEST = 2**63  # integers from here on are no sizes, and overflow what is computed from them
MEASURED = tuple(field.name for field in fields(Measurement))


def result_to_json(result: Result) -> Json:
    """The result as the schema writes it: raw values and the derived ones readers want."""
    case, measured = result.case, result.measurement
    rates = {"tflops": (result.flop_per_s, 1e12), "gb_per_s": (result.byte_per_s, 1e9)}
    return {
        "op": case.op,
        "case": {**case.dims, "layout": case.layout, "data": case.data},
        "precision": case.precision_name,
        "backend": case.backend,
        "status": result.status,
        "reason": result.reason,
        **{name: getattr(measured, name) if measured else None for name in MEASURED},
        **{name: value / unit if value else None for name, (value, unit) in rates.items()},
        "flops": result.flops,
        "min_bytes": result.min_bytes,
        "ceiling_pct": result.ceiling_pct,
        "efficiency_pct": dict(result.efficiency_pct),
        "rel_error": result.rel_error,
        "total_error": result.total_error,
        "variant": result.variant,
        "kernels": result.kernels,
        "kernels_s": result.kernels_s,
        "tile": result.tile,
        "tensor_core": result.tensor_core,
        "speedup": {name: vars(ratio) for name, ratio in result.speedup.items()},
        "vs_backend": {name: vars(ratio) for name, ratio in result.vs_backend.items()},
        "bound": result.bound,
        "why": result.why,
        "warnings": [vars(warning) for warning in result.warnings],
    }


def run_to_json(run: Run) -> Json:
    """The whole document."""
    plain = ("schema_version", "method_version", "command", "started_at", "finished_at", "device",
             "software", "settings")  # fmt: skip
    network = {"network": asdict(run.network)} if run.network else {}
    return {
        **{name: getattr(run, name) for name in plain},
        **network,
        "ceilings": [
            {name: value for name, value in vars(c).items() if value is not None}
            for c in run.ceilings
        ],
        "results": [result_to_json(result) for result in run.results],
    }


def run_from_json(data: Json) -> Run:
    """The inverse of `run_to_json`; ValueError says which field is not what it should be."""
    for name in REQUIRED:
        if name not in data:
            raise ValueError(f"{name} is missing")
    results = data["results"]
    if not isinstance(results, list):
        raise ValueError("results is no list")
    found = [
        _result_from_json(_object(result, f"results[{i}]"), f"results[{i}]")
        for i, result in enumerate(cast("list[object]", results))
    ]
    run = decode(Run, {**data, "results": []}, "")
    if not isinstance(run.device.get("name"), str):
        raise ValueError("device has no name")
    for name, value in run.device.items():
        if isinstance(value, int | float):
            _decode_float(value, f"device.{name}")
    return run.with_results(found)


def _object(data: object, where: str) -> Json:
    if not isinstance(data, dict):
        raise ValueError(f"{where} is no object")
    return cast(Json, data)


def _result_from_json(data: Json, where: str) -> Result:
    dims = dict(_object(data.get("case"), f"{where}.case"))
    names = {
        "op": data.get("op"),
        "precision_name": data.get("precision"),
        "backend": data.get("backend"),
        "layout": dims.pop("layout", "nt"),
        "data": dims.pop("data", "normal"),
        "dims": dims,
    }
    measured = data.get("times_s") is not None
    measurement = {name: data.get(name) for name in MEASURED} if measured else None
    body = {**data, "case": names, "measurement": measurement}
    result = decode(Result, body, where)
    _check_case(result.case, where)
    if result.status not in STATUSES:
        raise ValueError(f"{where}.status is {result.status!r}")
    _check_measurement(result.measurement, where)
    return result


def _check_case(case: Case, where: str) -> None:
    precision(case.precision_name)  # ValueError for one that this version does not know
    op = OPS.get(case.op)
    if op is None:
        raise ValueError(f"{where}.op is {case.op!r}, which this version does not know")
    for name in op.dims:
        if not isinstance(case.dims.get(name), int):
            raise ValueError(f"{where}.case has no {name}")
    try:
        op.validate(case)
    except ValueError as error:
        raise ValueError(f"{where}.case: {error}") from None


def _check_measurement(measurement: Measurement | None, where: str) -> None:
    if measurement is None:
        return
    if measurement.median_s <= 0 or not measurement.times_s:
        raise ValueError(f"{where} has no time above zero")
    interval = measurement.ci95_s
    if interval is not None and not 0 < interval[0] <= interval[1]:
        raise ValueError(f"{where}.ci95_s is no interval of times")


# ---------------------------------------------------------------- values of a declared type


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def decode(kind: Any, value: object, where: str) -> Any:
    """The value as the declared type, dataclasses included; ValueError names the field."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _decode_fields(cast(type, kind), _object(value, where or "the file"), where)
    if origin in (Union, types.UnionType):
        return _decode_union(arguments, value, where)
    if origin is tuple:
        return _decode_tuple(arguments, value, where)
    if origin in (dict, Mapping):
        items = _object(value, where).items()
        return {name: decode(arguments[1], item, f"{where}.{name}") for name, item in items}
    if kind is float:
        return _decode_float(value, where)
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise ValueError(f"{where} is too large")
    if type(value) is not kind:
        raise ValueError(f"{where} is {type(value).__name__}, not {kind.__name__}")
    return value


def _decode_fields(kind: type, data: Json, where: str) -> Any:
    values: Json = {}
    for field in fields(kind):
        place = f"{where}.{field.name}" if where else field.name
        if field.name in data:
            values[field.name] = decode(_hints(kind)[field.name], data[field.name], place)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{place} is missing")
    return kind(**values)


def _decode_union(choices: tuple[Any, ...], value: object, where: str) -> Any:
    if value is None and type(None) in choices:
        return None
    problems: list[str] = []
    for choice in choices:
        try:
            return decode(choice, value, where)
        except ValueError as error:
            problems.append(str(error))
    raise ValueError(problems[0])


def _decode_tuple(arguments: tuple[Any, ...], value: object, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is no list")
    items = cast("list[object]", value)
    kinds = [arguments[0]] * len(items) if arguments[-1] is Ellipsis else list(arguments)
    if len(kinds) != len(items):
        raise ValueError(f"{where} has {len(items)} items, not {len(kinds)}")
    pairs = zip(kinds, items, strict=True)
    return tuple(decode(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(pairs))


def _decode_float(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} is {type(value).__name__}, not a number")
    number = float(value)  # OverflowError for an integer of hundreds of digits
    if not math.isfinite(number):
        raise ValueError(f"{where} is {number}")
    return number
