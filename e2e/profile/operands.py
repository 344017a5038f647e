"""What the profiler noted of an operator's inputs: sizes, strides, types, and plain values."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import cast

from e2e.aten import Argument, TensorSpec
from e2e.profile.reader import Span, listed

ALIGNED = 8  # elements of 16 bits in 16 bytes
HALF = frozenset({"c10::Half", "c10::BFloat16", "Half", "BFloat16", "half", "bfloat16"})
SINGLE = frozenset({"float", "Float"})
FLOAT8 = frozenset({"c10::Float8_e4m3fn", "c10::Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2"})
DTYPES = {  # C++ names of torch's types
    **dict.fromkeys(("c10::Half", "Half", "half"), "float16"),
    **dict.fromkeys(("c10::BFloat16", "BFloat16", "bfloat16"), "bfloat16"),
    **dict.fromkeys(("float", "Float"), "float32"),
    **dict.fromkeys(("double", "Double"), "float64"),
    "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
    "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2",
    "signed char": "int8", "unsigned char": "uint8", "int": "int32", "long int": "int64",
    "long": "int64", "bool": "bool",
}  # fmt: skip


def types_of(ops: Sequence[Span]) -> frozenset[str]:
    """The types of the first two inputs of the innermost operator that has some."""
    for op in reversed(ops):
        types = [str(name) for name in listed(op, "Input type") if name]
        tensors = [name for name in types if name in HALF | SINGLE or name.startswith("c10::")]
        if tensors:
            return frozenset(tensors[:2])
    return frozenset()


def shapes_of(op: Span) -> list[list[int]]:
    """The sizes of the operator's inputs of two dimensions or more."""
    return [shape for dims in listed(op, "Input Dims") if len(shape := sizes(dims)) >= 2]


def misaligned(ops: Sequence[Span]) -> str:
    """The shape of a factor that is misaligned for 16-bit types, "768x50257"; "" for none.

    Of matrices it is the distance between rows, as they lie in memory, and the columns of the
    result: the others may be odd. Of convolutions the channels, unless each has a group of its own;
    of attention the size of a head.
    """
    op = next((op for op in reversed(ops) if shapes_of(op)), None)
    if op is None:
        return ""
    if "conv" in op.name:
        found = _odd_channels(shapes_of(op), backward="backward" in op.name)
    elif "attention" in op.name:
        found = next((shape for shape in shapes_of(op)[:2] if shape[-1] % ALIGNED), None)
    else:
        found = _odd_factor(op)
    return shape_words(found) if found else ""


def _odd_channels(shapes: list[list[int]], *, backward: bool) -> list[int] | None:
    """Of the input's and the weight's shape the one with odd channels."""
    source, weight = shapes[1:3] if backward else shapes[:2] if len(shapes) > 1 else ([], [])
    if len(source) < 3 or len(weight) < 3 or (weight[1] == 1 and source[1] > 1):
        return None
    if source[1] % ALIGNED:
        return source
    dense = weight[1] == source[1]
    return weight if weight[0 if dense else 1] % ALIGNED else None


def _odd_factor(op: Span) -> list[int] | None:
    """Of two matrices the one that is misaligned; the second for the result's columns."""
    first = 1 if "addmm" in op.name or "baddbmm" in op.name else 0  # after the sum's other term
    dims, strides = listed(op, "Input Dims"), listed(op, "Input Strides")
    for place in range(first, min(first + 2, len(dims))):
        shape = sizes(dims[place])
        if len(shape) < 2:
            continue
        stride = sizes(strides[place]) if place < len(strides) else []
        if _row(shape, stride) % ALIGNED or (place > first and _columns(op, shape) % ALIGNED):
            return shape
    return None


def _columns(op: Span, shape: list[int]) -> int:
    return shape[-2] if op.name == "aten::linear" else shape[-1]


def _row(shape: list[int], stride: list[int]) -> int:
    """Elements from one row to the next in memory, or from one column; 0 for a single one."""
    if len(stride) != len(shape):  # older traces have none
        return shape[-1]
    found = [step for size, step in zip(shape[-2:], stride[-2:], strict=True) if size > 1]
    return max(found, default=0) if max(found, default=0) > 1 else 0


def shape_words(shape: Sequence[int]) -> str:
    """A shape as reports write it: "768x50257"."""
    return "x".join(map(str, shape))


def sizes(dims: object) -> list[int]:
    """The whole numbers of a list; [] for anything else."""
    if not isinstance(dims, list):
        return []
    found = [size for size in cast(list[object], dims) if isinstance(size, int)]
    return found if len(found) == len(cast(list[object], dims)) else []


def arguments(op: Span) -> tuple[Argument, ...]:
    """The operator's arguments as far as a trace has them; None for those that it lacks."""
    dims, strides = listed(op, "Input Dims"), listed(op, "Input Strides")
    types, plain = listed(op, "Input type"), listed(op, "Concrete Inputs")

    def at(some: list[object], place: int) -> object:
        return some[place] if place < len(some) else None

    return tuple(
        _tensor(sizes(at(dims, i)), sizes(at(strides, i)), DTYPES[str(at(types, i))])
        if str(at(types, i)) in DTYPES
        else _value(at(plain, i))
        for i in range(len(dims))
    )


def _tensor(shape: list[int], stride: list[int], dtype: str) -> TensorSpec:
    if len(stride) != len(shape):  # older traces have none
        stride = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
    return TensorSpec(tuple(shape), tuple(stride), dtype, "cuda")


def _value(text: object) -> Argument:
    """A number, a truth, or a list of them, of the text that the profiler wrote."""
    try:
        found: object = ast.literal_eval(str(text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if isinstance(found, list):
        items = cast(list[object], found)
        return tuple(item for item in items if isinstance(item, bool | int | float))
    return found if isinstance(found, bool | int | float) else None
