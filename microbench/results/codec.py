"""A `Run` as a JSON document, and back; every field that is read is checked.

The document is flat where the schema says so: a measurement's fields are in its result, a case's
layout and data among its dimensions. Results of other kinds are in the same list (see
`microbench.results.kinds`). Unknown fields are ignored, so that a file of a later version still
reads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TypeVar, cast

import msgspec

from kernels.precision import precision
from kernels.problem import Problem
from kernels.tune import HOW
from microbench.results import types
from microbench.results.kinds import Kind, kinds

REQUIRED = ("method_version", "finished_at", "ceilings", "results")  # beside those with no default
PLAIN = (  # fields of a result that are written as they are, in this order
    "flops", "min_bytes", "ceiling_pct", "efficiency_pct", "rel_error", "total_error", "variant",
    "kernels", "kernels_s", "tile", "tiles", "tensor_core",
)  # fmt: skip
COMMANDS_OF_E2E = ("train", "predict", "stalls", "loader", "study", "validate")  # of schema 1
RETIRED = ("ceiling",)  # the kinds of results that older files have, and that are passed over
TUNED, CHOICE = "tuned", "choice"  # which older files lack, and results of which nothing is known
CLOCKS = "clocks_mhz"
MEASURED = tuple(
    f.name for f in fields(types.Measurement) if f.name not in (types.PROCESSES, CLOCKS)
)


@dataclass(frozen=True)
class _Device:
    """The facts of a device that anything is computed from; a file may lack all but the name."""

    name: str
    kind: str | None = None
    capability: str | None = None
    sm_count: int | None = None
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    power_limit_w: float | None = None
    sm_clock_max_mhz: float | None = None


@dataclass(frozen=True)
class _Settings:
    """The settings that reports read."""

    load: dict[str, float | None] | None = None  # see `microbench.device.host`
    notes: tuple[str, ...] = ()
    training: types.Json | None = None


def result_to_json(result: types.Result) -> types.Json:
    """A kernel's result as the schema has it: raw values in SI units, also TFLOP/s and GB/s."""
    case, measured = result.case, result.measurement
    rates = {"tflops": (result.flop_per_s, 1e12), "gb_per_s": (result.byte_per_s, 1e9)}
    return {
        "op": case.op,
        "case": {**case.problem.dims, "layout": case.problem.layout, "data": case.data},
        "precision": case.precision_name,
        "backend": case.backend,
        "status": result.status,
        "reason": result.reason,
        **{name: getattr(measured, name) if measured else None for name in MEASURED},
        **types.processes_json(measured.processes if measured else ()),
        **({CLOCKS: measured.clocks_mhz} if measured and measured.clocks_mhz else {}),
        **{name: value / unit if value else None for name, (value, unit) in rates.items()},
        **{name: getattr(result, name) for name in PLAIN},
        **({TUNED: result.tuned} if result.tuned is not None else {}),
        **({CHOICE: vars(result.choice)} if result.choice is not None else {}),
        "speedup": {name: vars(ratio) for name, ratio in result.speedup.items()},
        "vs_backend": {name: vars(ratio) for name, ratio in result.vs_backend.items()},
        "bound": result.bound,
        "why": result.why,
        "warnings": [vars(warning) for warning in result.warnings],
    }


def run_to_json(run: types.Run) -> types.Json:
    """The whole run file as one JSON object. KeyError for a result whose kind is not known."""
    plain = ("schema_version", "method_version", "kind", "options", "command", "started_at",
             "finished_at", "device", "software", "settings")  # fmt: skip
    return {
        **{name: getattr(run, name) for name in plain},
        **({"network": asdict(run.network)} if run.network else {}),
        "ceilings": [
            {name: value for name, value in vars(c).items() if value is not None}
            for c in run.ceilings
        ],
        "results": [
            *(result_to_json(result) for result in run.results),
            *(kinds()[entry.case.op].to_json(entry) for entry in run.others),
        ],
    }


def run_from_json(data: types.Json) -> types.Run:
    """The inverse of `run_to_json`. ValueError names the field that is missing or invalid."""
    for name in REQUIRED:
        if name not in data:
            raise ValueError(f"{name} is missing")
    results = data["results"]
    if not isinstance(results, list):
        raise ValueError("results is no list")
    found = {
        f"results[{i}]": decode(types.Json, result, f"results[{i}]")
        for i, result in enumerate(cast("list[object]", results))
    }
    found = {where: item for where, item in found.items() if item.get("op") not in RETIRED}
    kind_of = {where: _kind(item) for where, item in found.items()}
    kernels = [_result_from_json(i, where) for where, i in found.items() if not kind_of[where]]
    run = decode(types.Run, {**data, "results": [], "others": []}, "")
    if run.schema_version == 1:
        run = replace(run, schema_version=types.SCHEMA_VERSION, kind=_kind_of(run.command))
    decode(_Device, run.device, "device")
    decode(_Settings, run.settings, "settings")
    others = [kind.from_json(found[where], where) for where, kind in kind_of.items() if kind]
    unique = {entry.case.key: entry for entry in others}
    return replace(run, others=tuple(unique.values())).with_results(kernels)


def _kind_of(command: Sequence[str]) -> str:
    """What a run of schema 1 is, by its words: "train" where they begin with a network."""
    words = command[3:] if "-m" in command[:2] else command[1:]
    first = words[0] if words else ""
    return first if "e2e" not in command[:3] or first in COMMANDS_OF_E2E else "train"


def _kind(item: types.Json) -> Kind | None:
    """How to read a result; None for a kernel's."""
    from kernels import OPS

    op = item.get("op")
    return kinds().get(op) if isinstance(op, str) and op not in OPS else None


def _result_from_json(data: types.Json, where: str) -> types.Result:
    dims = decode(types.Json, data.get("case"), f"{where}.case")
    case = {
        "problem": _problem(data.get("op"), dims, where),
        "precision_name": data.get("precision"),
        "backend": data.get("backend"),
        "data": dims.get("data", "normal"),
    }
    result = decode(types.Result, {**data, "case": case, "measurement": None}, where)
    if data.get("times_s") is not None:
        result = replace(result, measurement=decode(types.Measurement, data, where))
    precision(result.case.precision_name)  # ValueError for one that this version does not know
    if result.status not in types.STATUSES:
        raise ValueError(f"{where}.status is {result.status!r}")
    if result.choice is not None and result.choice.how not in HOW:
        raise ValueError(f"{where}.choice.how is {result.choice.how!r}")
    check_measurement(result.measurement, where)
    return result


def _problem(op: object, dims: types.Json, where: str) -> Problem:
    from kernels import OPS

    if not isinstance(op, str) or op not in OPS:
        raise ValueError(f"{where}.op is {op!r}, which this version does not know")
    kind = OPS[op].problem
    return decode(kind, kind.fields_of(dims), f"{where}.case")


def check_measurement(measurement: types.Measurement | None, where: str) -> None:
    """ValueError for times, an interval or processes that none can be."""
    if measurement is None:
        return
    types.check_processes(measurement.processes, len(measurement.blocks), where)
    if len(measurement.clocks_mhz) not in (0, len(measurement.blocks)):
        raise ValueError(f"{where}.clocks_mhz are not one a round")
    interval = measurement.ci95_s
    if interval is not None and not 0 < interval[0] <= interval[1]:
        raise ValueError(f"{where}.ci95_s is no interval of times")


T = TypeVar("T")


def decode(kind: type[T], value: object, where: str) -> T:
    """The value as the type `kind`, dataclasses included; fields that it does not have are ignored.

    ValueError names the field that is missing or invalid.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(_named(str(error), where)) from None


def _named(message: str, where: str) -> str:
    """msgspec's message with the whole name of the field before it."""
    said, _, place = message.replace("`", "").partition(" - at $")
    place = (where + place).removeprefix(".")
    missing = re.fullmatch(r"Object missing required field (.+)", said)
    if missing:
        return f"{place}.{missing[1]} is missing".removeprefix(".")
    return f"{place or 'the file'}: {said[0].lower()}{said[1:]}"
