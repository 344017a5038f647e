"""The operator of a recorded call, and the call's arguments by the names of its schema."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from kernels.aten.call import Argument, Call, CannotReplay, TensorSpec

NAME = re.compile(r"\w+\.\w+\.\w+")

# Arguments that are written though the schema does not say so: running statistics in training.
_SILENTLY_WRITTEN: Mapping[str, tuple[str, ...]] = {
    "native_batch_norm": ("running_mean", "running_var"),
    "cudnn_batch_norm": ("running_mean", "running_var"),
    "miopen_batch_norm": ("running_mean", "running_var"),
    "batch_norm_gather_stats_with_counts": ("running_mean", "running_var"),
    "batch_norm_update_stats": ("running_mean", "running_var"),
}


def resolve(name: str) -> OpOverload:
    """The overload with this name; CannotReplay if torch has none, or its library is not loaded."""
    found: Any = None
    if NAME.fullmatch(name):
        found = torch.ops
        for part in name.split("."):
            found = getattr(found, part, None)
    if not isinstance(found, OpOverload):
        raise CannotReplay(f"{name}: this torch has no such operator, or its library is not loaded")
    return found


@dataclass(frozen=True)
class Slot:
    """One tensor argument. `position` is its place in a list of tensors, None outside one."""

    name: str
    position: int | None
    spec: TensorSpec
    written: bool


def named_arguments(call: Call, func: OpOverload | None = None) -> dict[str, Argument]:
    """Arguments by the schema's names, those left to their defaults left out.

    CannotReplay if the operator does not take them.
    """
    schema = (func or resolve(call.name))._schema
    names = [argument.name for argument in schema.arguments if not argument.kwarg_only]
    if len(call.args) > len(names):
        raise CannotReplay(f"{call.name}: this torch's operator takes fewer arguments")
    known = {argument.name for argument in schema.arguments}
    if not known.issuperset(name for name, _ in call.kwargs):
        raise CannotReplay(f"{call.name}: this torch's operator has other arguments")
    return dict(zip(names, call.args, strict=False)) | dict(call.kwargs)


def slots_of(call: Call) -> list[Slot]:
    """Every tensor argument, those in lists one by one, in the order of the schema."""
    func = resolve(call.name)
    arguments = named_arguments(call, func)
    written = _written(call, func, arguments)
    return [
        Slot(name, position, spec, name in written)
        for name, value in arguments.items()
        for position, spec in _tensors(value)
    ]


def _written(call: Call, func: OpOverload, arguments: Mapping[str, Argument]) -> set[str]:
    schema: Any = func._schema
    marked = {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write}
    if arguments.get("training", True):
        marked.update(_SILENTLY_WRITTEN.get(call.operator, ()))
    return marked


def _tensors(value: Argument) -> Iterator[tuple[int | None, TensorSpec]]:
    if isinstance(value, TensorSpec):
        yield None, value
    elif isinstance(value, tuple):
        for position, item in enumerate(value):
            if isinstance(item, TensorSpec):
                yield position, item
