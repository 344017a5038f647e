"""Values from a JSON document as the types that a dataclass declares, checked field by field."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from microbench.results.values import Json

LARGEST = 2**63  # integers from here on are no sizes, and overflow what is computed from them


def as_object(data: object, where: str) -> Json:
    """The data, when it is a JSON object; else ValueError."""
    if not isinstance(data, dict):
        raise ValueError(f"{where} is no object")
    return cast(Json, data)


def as_float(value: object, where: str) -> float:
    """The value, when it is a finite number; else ValueError or OverflowError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} is {type(value).__name__}, not a number")
    number = float(value)  # OverflowError for an integer of hundreds of digits
    if not math.isfinite(number):
        raise ValueError(f"{where} is {number}")
    return number


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def decode(kind: Any, value: object, where: str) -> Any:
    """The value as the declared type, dataclasses included; ValueError names the field."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _decode_fields(cast(type, kind), as_object(value, where or "the file"), where)
    if origin in (Union, types.UnionType):
        return _decode_union(arguments, value, where)
    if origin is tuple:
        return _decode_tuple(arguments, value, where)
    if origin in (dict, Mapping):
        items = as_object(value, where).items()
        return {name: decode(arguments[1], item, f"{where}.{name}") for name, item in items}
    if kind is float:
        return as_float(value, where)
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
