"""A recorded ATen call as plain data: its parts, its identity, and its JSON form."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch


class CannotReplay(Exception):
    """A call that cannot be described or run alone; the message says why, to a person."""


@dataclass(frozen=True)
class TensorSpec:
    """A strided tensor without its content: shape and stride in elements, a torch dtype's name.

    `device` is "cuda" or "cpu". Where in its storage a tensor begins is not kept.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str

    @property
    def numel(self) -> int:
        """Elements, those that share memory counted each."""
        return math.prod(self.shape)

    @property
    def span(self) -> int:
        """Elements of storage from the first to the last, gaps included."""
        if self.numel == 0:
            return 0
        return 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))

    @property
    def distinct(self) -> int:
        """Elements that do not share memory with another by a stride of 0."""
        if self.numel == 0:
            return 0
        return math.prod(n for n, step in zip(self.shape, self.stride, strict=True) if step)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.torch_dtype.itemsize

    @property
    def bytes(self) -> int:
        """Bytes of the storage it needs, from its first element to its last."""
        return self.span * self.itemsize

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch has it."""
        return getattr(torch, self.dtype)


NAMED_TYPES: Mapping[str, type] = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


@dataclass(frozen=True)
class Named:
    """A constant of torch: `kind` is "dtype", "layout", "memory_format" or "device"."""

    kind: str
    name: str


Argument = None | bool | int | float | complex | str | TensorSpec | Named | tuple["Argument", ...]


@dataclass(frozen=True, eq=False)
class Call:
    """One call of an operator: its overload's name ("aten.mm.default") and its arguments.

    `kwargs` are sorted by name. Two calls are equal if their keys are: 1, 1.0 and True differ.
    """

    name: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...] = ()

    @cached_property
    def key(self) -> str:
        """Its identity as a line of text, the same from run to run: canonical JSON."""
        return json.dumps(to_json(self), sort_keys=True, separators=(",", ":"))

    @cached_property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every tensor argument in order, those in lists included."""
        return tuple(tensors_in((self.args, tuple(value for _, value in self.kwargs))))

    @property
    def operator(self) -> str:
        """The operator's name without namespace and overload: "convolution_backward"."""
        return self.name.split(".")[1]

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, Call) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.key)


def tensors_in(value: Argument) -> Iterator[TensorSpec]:
    """The tensors in an argument, in order."""
    if isinstance(value, TensorSpec):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors_in(item)


# ------------------------------------------------------------ JSON

NAME = re.compile(r"\w+\.\w+\.\w+")


def to_json(call: Call) -> dict[str, Any]:
    """The call as plain JSON values; floats that JSON lacks are written as {"float": "inf"}."""
    return {
        "name": call.name,
        "args": [_to_json(value) for value in call.args],
        "kwargs": {name: _to_json(value) for name, value in call.kwargs},
    }


def from_json(value: Any) -> Call:
    """The call that `to_json` wrote. Nothing is looked up or run; ValueError when malformed."""
    if not isinstance(value, dict) or set(value) != {"name", "args", "kwargs"}:
        raise ValueError(f"a call has name, args and kwargs, not {_short(value)}")
    name, args, kwargs = value["name"], value["args"], value["kwargs"]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"an operator's name reads aten.mm.default, not {_short(name)}")
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise ValueError(f"{name}: args is a list, kwargs an object")
    named = tuple((str(key), _from_json(item)) for key, item in sorted(kwargs.items()))
    return Call(name, tuple(_from_json(item) for item in args), named)


def _to_json(value: Argument) -> Any:
    if isinstance(value, TensorSpec):
        return {
            "tensor": value.dtype,
            "shape": list(value.shape),
            "stride": list(value.stride),
            "device": value.device,
        }
    if isinstance(value, Named):
        return {value.kind: value.name}
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, complex):
        return {"complex": [_to_json(value.real), _to_json(value.imag)]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _from_json(value: Any) -> Argument:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return tuple(_from_json(item) for item in value)
    if isinstance(value, dict):
        if "tensor" in value:
            return _tensor_from(value)
        if len(value) == 1:
            ((kind, item),) = value.items()
            return _object_from(kind, item)
    raise ValueError(f"not an argument of a call: {_short(value)}")


def _tensor_from(value: dict[str, Any]) -> TensorSpec:
    if set(value) != {"tensor", "shape", "stride", "device"}:
        raise ValueError(f"a tensor has tensor, shape, stride and device, not {_short(value)}")
    shape, stride = value["shape"], value["stride"]
    for sizes in (shape, stride):
        if not isinstance(sizes, list) or not all(type(n) is int and n >= 0 for n in sizes):
            raise ValueError(f"sizes are whole numbers of 0 or more, not {_short(sizes)}")
    if len(shape) != len(stride) or value["device"] not in ("cuda", "cpu"):
        raise ValueError(f"not a tensor: {_short(value)}")
    dtype = _known("dtype", value["tensor"])
    return TensorSpec(tuple(shape), tuple(stride), dtype.name, value["device"])


def _object_from(kind: str, item: Any) -> Argument:
    if kind == "float" and item in ("inf", "-inf", "nan"):
        return float(item)
    if kind == "complex" and isinstance(item, list) and len(item) == 2:
        real, imaginary = (_from_json(part) for part in item)
        if isinstance(real, float) and isinstance(imaginary, float):
            return complex(real, imaginary)
    return _known(kind, item)


def _known(kind: str, name: Any) -> Named:
    if kind == "device" and isinstance(name, str) and re.fullmatch(r"[a-z]+", name):
        return Named(kind, name)
    of_torch = NAMED_TYPES.get(kind)
    if of_torch is None or not isinstance(name, str):
        raise ValueError(f"not an argument of a call: {_short({kind: name})}")
    if not isinstance(vars(torch).get(name), of_torch):  # getattr could import a module
        raise ValueError(f"torch has no {kind} {name!r}")
    return Named(kind, name)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
