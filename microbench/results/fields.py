"""Decodes JSON values into the types that a dataclass declares; every field is checked.

`where` is the name of the field in messages, as "results[3].case".
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from microbench.results.values import Json

Decoder = Callable[[object, str], Any]  # (value, the name of its field) -> as declared
LARGEST = 2**63  # integers from here on are no sizes, and overflow what is computed from them


def as_object(data: object, where: str) -> Json:
    """The data, if it is a JSON object; else ValueError."""
    if not isinstance(data, dict):
        raise ValueError(f"{where} is no object")
    return cast(Json, data)


def as_float(value: object, where: str) -> float:
    """The value as a finite float.

    ValueError for anything else; OverflowError for a huge integer.
    """
    if not isinstance(value, float):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{where} is {type(value).__name__}, not a number")
        value = float(value)  # OverflowError for an integer of hundreds of digits
    if not math.isfinite(value):
        raise ValueError(f"{where} is {value}")
    return value


def decode(kind: Any, value: object, where: str) -> Any:
    """The value as the type `kind`, dataclasses included.

    ValueError names the field that is missing or of another type; OverflowError as in `as_float`.
    """
    return _decoder(kind)(value, where)


@cache
def _decoder(kind: Any) -> Decoder:
    """What decodes values of a declared type; made once for each type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value, where: value
    if kind is float:
        return as_float
    if is_dataclass(kind):
        return _dataclass_decoder(cast(type, kind))
    if origin in (Union, types.UnionType):
        return _union_decoder(arguments)
    if origin is tuple:
        return _tuple_decoder(arguments)
    if origin in (dict, Mapping):
        return _mapping_decoder(arguments[1])
    return _plain_decoder(kind)


def _plain_decoder(kind: type) -> Decoder:
    def decoded(value: object, where: str) -> object:
        if isinstance(value, int) and abs(value) >= LARGEST:
            raise ValueError(f"{where} is too large")
        if type(value) is not kind:
            raise ValueError(f"{where} is {type(value).__name__}, not {kind.__name__}")
        return value

    return decoded


def _dataclass_decoder(kind: type) -> Decoder:
    hints = get_type_hints(kind)
    declared = [
        (f.name, _decoder(hints[f.name]), f.default is MISSING and f.default_factory is MISSING)
        for f in fields(kind)
    ]

    def decoded(value: object, where: str) -> object:
        data = as_object(value, where or "the file")
        values: Json = {}
        for name, item, required in declared:
            place = f"{where}.{name}" if where else name
            if name in data:
                values[name] = item(data[name], place)
            elif required:
                raise ValueError(f"{place} is missing")
        return kind(**values)

    return decoded


def _union_decoder(kinds: Sequence[Any]) -> Decoder:
    optional = type(None) in kinds
    choices = [_decoder(kind) for kind in kinds]

    def decoded(value: object, where: str) -> object:
        if value is None and optional:
            return None
        first: ValueError | None = None
        for choice in choices:
            try:
                return choice(value, where)
            except ValueError as error:
                first = first or error
        assert first
        raise first

    return decoded


def _tuple_decoder(kinds: Sequence[Any]) -> Decoder:
    any_length = kinds[-1] is Ellipsis
    choices = [_decoder(kind) for kind in kinds if kind is not Ellipsis]

    def decoded(value: object, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError(f"{where} is no list")
        values = cast("list[object]", value)
        items = choices * len(values) if any_length else choices
        if len(items) != len(values):
            raise ValueError(f"{where} has {len(values)} items, not {len(items)}")
        pairs = zip(items, values, strict=True)
        return tuple([item(value, f"{where}[{i}]") for i, (item, value) in enumerate(pairs)])

    return decoded


def _mapping_decoder(kind: Any) -> Decoder:
    item = _decoder(kind)

    def decoded(value: object, where: str) -> Json:
        found = as_object(value, where).items()
        return {name: item(value, f"{where}.{name}") for name, value in found}

    return decoded
