"""What the profiler noted of an operator's inputs: types, sizes, FLOP, bytes, arithmetic."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.utils._pytree import tree_leaves

from e2e.aten import Argument, Call, CannotReplay, TensorSpec, flops, resolve
from e2e.profile.step import Op, term_of_operators
from e2e.profile.trace import Span
from e2e.results.terms import PRODUCT_TERMS, RECOMPUTATION
from kernels.gpu_cards import Card
from kernels.precision import PRECISIONS, Precision
from microbench.device.profiler import is_conversion
from microbench.roofline.rates import Rates

ALIGNED = 8  # elements of 16 bits in 16 bytes
FEW_CHANNELS = 4  # of an image: libraries have kernels for these, and padding gains nothing
DTYPES = {  # torch's names of C++ types
    "Half": "float16", "half": "float16", "BFloat16": "bfloat16", "bfloat16": "bfloat16",
    "float": "float32", "Float": "float32", "double": "float64", "Double": "float64",
    "Float8_e4m3fn": "float8_e4m3fn", "Float8_e5m2": "float8_e5m2", "signed char": "int8",
    "unsigned char": "uint8", "int": "int32", "long int": "int64", "long": "int64", "bool": "bool",
}  # fmt: skip
HALF = frozenset({"float16", "bfloat16"})
FLOATS = HALF | {"float32", "float64", "float8_e4m3fn", "float8_e5m2"}
# Operators whose work follows from their arguments; they call others, which are not listed.
COUNTED = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "_addmm_activation", "_scaled_mm",
    "_int_mm", "convolution", "_convolution", "convolution_overrideable", "convolution_backward",
})  # fmt: skip
# As "convolution"; torch 2.11 and older cannot run these without memory.
AS_CONVOLUTION = frozenset({"_convolution", "convolution_overrideable"})
# What a trace cannot promise: arguments of another torch's operator, or of a damaged file.
BAD_ARGUMENTS = (CannotReplay, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError)
MOST = 1 << 80  # FLOP or bytes of one call: more are no work that ran
WITHOUT_TF32 = 1.05  # times what a card does without Tensor Cores: beyond it they were used


def dtype_of(name: object) -> str:
    """torch's name of a C++ type; "" for none."""
    return DTYPES.get(str(name).removeprefix("c10::"), "")


def types_of(ops: Sequence[Span]) -> frozenset[str]:
    """The types of the first two inputs of the innermost operator that has some."""
    for op in reversed(ops):
        if types := [t for name in op.noted("Input type") if (t := dtype_of(name)) in FLOATS]:
            return frozenset(types[:2])
    return frozenset()


def shapes_of(op: Span) -> list[list[int]]:
    """The sizes of the inputs of two dimensions or more."""
    return [dims for dims in op.noted("Input Dims") if _are_sizes(dims) and len(dims) >= 2]


def shape_words(shape: Sequence[int]) -> str:
    """A shape as reports write it: "768x50257"."""
    return "x".join(map(str, shape))


def _are_sizes(dims: object) -> bool:
    return isinstance(dims, list) and all(isinstance(n, int) for n in cast(list[object], dims))


def is_product(op: Op) -> bool:
    """Whether it is a GEMM, a convolution or attention, recomputed ones too."""
    if op.term == RECOMPUTATION and not is_conversion(op.kernel):
        return term_of_operators(op.ops) in PRODUCT_TERMS
    return op.term in PRODUCT_TERMS


def product(ops: Sequence[Span]) -> Span | None:
    """The GEMM, convolution or attention among these: the innermost whose FLOP can be counted.

    Else the innermost that is one by its name; None without shapes.
    """
    named = [o for o in reversed(ops) if shapes_of(o) and term_of_operators([o]) in PRODUCT_TERMS]
    for op in named:
        name = op.name.removeprefix("aten::")
        if name in COUNTED or name.startswith("_scaled_dot_product_"):
            return op
    return named[0] if named else None


# ---------------------------------------------------------------- alignment


def misaligned(ops: Sequence[Span]) -> str:
    """The shape that is misaligned for 16-bit types, "768x50257"; "" for none.

    Of matrices it is the distance between rows, as they lie in memory, and the columns of the
    result: the others may be odd. Of convolutions the channels, unless each has a group of its own,
    or an image has no more than FEW_CHANNELS; of attention the size of a head.
    """
    op = next((op for op in reversed(ops) if shapes_of(op)), None)
    if op is None:
        return ""
    if "conv" in op.name:
        odd = _odd_channels(shapes_of(op)[1 if "backward" in op.name else 0 :])
    elif "attention" in op.name:
        odd = next((shape for shape in shapes_of(op)[:2] if shape[-1] % ALIGNED), None)
    else:
        odd = _odd_matrix(op)
    return shape_words(odd) if odd else ""


def _odd_channels(shapes: Sequence[list[int]]) -> list[int] | None:
    """Of the input's and the weight's shape the one with odd channels."""
    if len(shapes) < 2 or min(len(shapes[0]), len(shapes[1])) < 3:
        return None
    source, weight = shapes[:2]
    if weight[1] == 1 and source[1] > 1:
        return None  # depthwise
    if source[1] > FEW_CHANNELS and source[1] % ALIGNED:
        return source
    return weight if weight[0 if weight[1] == source[1] else 1] % ALIGNED else None


def _odd_matrix(op: Span) -> list[int] | None:
    """Of two matrices the one with odd rows in memory; the second for the result's columns."""
    first = 1 if "addmm" in op.name or "baddbmm" in op.name else 0  # after the sum's other term
    dims, strides = op.noted("Input Dims"), op.noted("Input Strides")
    for place in range(first, min(first + 2, len(dims))):
        shape: list[int] = dims[place] if _are_sizes(dims[place]) else []
        if len(shape) < 2:
            continue
        row = shape[-1]
        if place < len(strides) and len(strides[place]) == len(shape):
            steps = [s for n, s in zip(shape[-2:], strides[place][-2:], strict=True) if n > 1]
            row = max(steps, default=0) if max(steps, default=0) > 1 else 0
        columns = shape[-2] if op.name == "aten::linear" else shape[-1]
        if row % ALIGNED or (place > first and columns % ALIGNED):
            return shape
    return None


# ---------------------------------------------------------------- work


@dataclass(frozen=True)
class Work:
    """FLOP (a multiply-add as two), least bytes, and the type of the first factor, of one call."""

    flops: int | None = None
    bytes: int | None = None
    dtype: str | None = None

    def floor(
        self, precision: Precision | None, card: Card | None, rates: Rates | None
    ) -> tuple[float, bool] | None:
        """(least seconds, whether by measured rates and not the datasheet); None if unknown."""
        if precision is None or self.flops is None:
            return None
        measured = rates.peak(precision) if rates else None
        peak = measured or (card.peak(precision) if card else None)
        rate = (rates.byte_per_s if rates else None) or (card.byte_per_s if card else None)
        moving_s = (self.bytes or 0) / rate if rate else 0.0
        return (max(self.flops / peak, moving_s), measured is not None) if peak else None


def work_of(op: Span) -> Work:
    """The work of an operator; nothing where the trace has no shapes."""
    try:
        call = call_of(op)
        dtype = next((t.dtype for t in call.tensors if len(t.shape) > 1), None)
        run, args = call.name, call.args
        if call.operator in AS_CONVOLUTION:
            run, args = "aten.convolution.default", args[:9]
        returned: Any = resolve(run)(*map(_meta, args))
        made = sum(t.numel() * t.itemsize for t in tree_leaves(returned) if torch.is_tensor(t))
        read = sum(slot.spec.distinct * slot.spec.itemsize for slot in call.slots)
        work = Work(flops(call), read + made, dtype)
    except BAD_ARGUMENTS:
        return Work()
    return work if 0 <= (work.flops or 0) < MOST and 0 <= (work.bytes or 0) < MOST else Work()


def call_of(op: Span, overload: str = "default") -> Call:
    """The operator as a call of this torch. CannotReplay where it has none."""
    name = f"aten.{op.name.removeprefix('aten::')}.{overload}"
    schema: Any = getattr(resolve(name), "_schema")  # noqa: B009
    count = sum(not argument.kwarg_only for argument in schema.arguments)
    types = op.noted("Input type")
    rows = [op.noted(kind) for kind in ("Input Dims", "Input Strides", "Concrete Inputs")]
    for row in rows:
        row += [[]] * (len(types) - len(row))
    return Call(name, tuple(map(_argument, *rows, types))[:count])


def _argument(shape: Any, stride: Any, plain: object, kind: object) -> Argument:
    if dtype := dtype_of(kind):
        if not _are_sizes(shape):
            raise ValueError("a shape is no list of sizes")
        if not _are_sizes(stride) or len(stride) != len(shape):  # older traces have none
            stride = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
        return TensorSpec(tuple(shape), tuple(stride), dtype, "cuda")
    try:
        value: object = ast.literal_eval(str(plain))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if isinstance(value, list):
        items = cast(list[object], value)
        return tuple(item for item in items if isinstance(item, bool | int | float))
    return value if isinstance(value, bool | int | float) else None


def _meta(value: Argument) -> Any:
    """The argument with tensors without memory."""
    if isinstance(value, TensorSpec):
        return torch.empty_strided(
            value.shape, value.stride, dtype=value.torch_dtype, device="meta"
        )
    return list(value) if isinstance(value, tuple) else value


# ---------------------------------------------------------------- arithmetic


_TF32_KERNELS = re.compile(r"tf32|s1688gemm|s1688cudnn|tensorop_s\d")
_SIMT_KERNELS = re.compile(r"sgemm|ffma|simt|scudnn|gemmSN|gemv|f32f32_f32f32")


def arithmetic(
    op: Span, dtype: str | None, kernels: Collection[str], flop_per_s: float | None,
    card: Card | None, facts: Mapping[str, Any],
) -> Precision | None:  # fmt: skip
    """What a product computes in: the kernel says it, or its rate, or else torch's settings.

    None where the type is unknown, or it is float32 of which nothing tells whether it ran as TF32.
    """
    if dtype != "float32":
        return next((p for p in PRECISIONS.values() if p.storage == dtype), None)
    ieee, tf32 = PRECISIONS["fp32"], PRECISIONS["tf32"]
    if card is not None and card.peak(tf32) is None:
        return ieee
    if "attention" in op.name:
        return None  # its kernels compute as they do, whatever is allowed
    if any(_TF32_KERNELS.search(name) for name in kernels):
        return tf32
    simt = (card.simt_flop_per_s.get("fp32") or card.peak(ieee)) if card else None
    if simt and flop_per_s and flop_per_s > WITHOUT_TF32 * simt:
        return tf32
    if any(_SIMT_KERNELS.search(name) for name in kernels):
        return ieee
    allowed = facts.get("cudnn_allow_tf32" if "conv" in op.name else "allow_tf32")
    if not isinstance(allowed, bool):
        return None
    return tf32 if allowed else ieee


def precision_of(dtype: str | None) -> Precision | None:
    """The precision of a type of 16 or 8 bits; None for any other."""
    return arithmetic(Span("", "", 0, 0, ""), dtype, (), None, None, {})
