"""The work of one GEMM, convolution or attention: FLOP, bytes, and what a card can do at best.

Of normalisation in half precision: how fast it moves its bytes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from e2e.aten import Argument, Call, CannotReplay, TensorSpec, flops, min_bytes, resolve
from e2e.profile.operands import HALF, arguments, shapes_of
from e2e.profile.partition import Piece, term_of_ops
from e2e.profile.reader import Span, listed
from e2e.results.terms import TERMS
from kernels.gpu_cards import Card
from kernels.precision import PRECISIONS, Precision
from microbench.device.profiler import fewer_operations
from microbench.roofline.rates import Rates

# Operators whose work is known from their arguments; they call others, which are not listed.
COUNTED = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "_addmm_activation", "_scaled_mm",
    "_int_mm",
    "convolution", "_convolution", "convolution_overrideable", "convolution_backward",
})  # fmt: skip
MOST = 1 << 80  # FLOP or bytes of one call: more are no work that ran
ATTENTION = "_scaled_dot_product_"
# What a trace cannot promise: arguments of another torch's operator, or of a damaged file.
BAD_ARGUMENTS = (
    CannotReplay, ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """One call: `flops` (a multiply-add as two), `bytes` that it must move at least, and dtype.

    `dtype` is torch's name of its first factor's type. None where it is unknown.
    """

    flops: int | None
    bytes: int | None
    dtype: str | None


def is_counted(op: Span) -> bool:
    """Whether `work_of` knows this operator."""
    name = op.name.removeprefix("aten::")
    return name in COUNTED or name.startswith(ATTENTION)


def work_of(op: Span) -> Work:
    """The work of this operator; nothing is known where the trace has no shapes."""
    try:
        call = call_of(op)
    except BAD_ARGUMENTS:
        return Work(None, None, None)
    return Work(_tried(flops, call), _tried(_bytes, call), _dtype(call))


def call_of(op: Span, overload: str = "default") -> Call:
    """The operator as a call. CannotReplay, or another of BAD_ARGUMENTS, where it is none."""
    name = f"aten.{op.name.removeprefix('aten::')}.{overload}"
    schema: Any = getattr(resolve(name), "_schema")  # noqa: B009
    positional = [one for one in schema.arguments if not one.kwarg_only]
    return Call(name, arguments(op)[: len(positional)])


def _tried(count: Callable[[Call], int | None], call: Call) -> int | None:
    try:
        found = count(call)
    except BAD_ARGUMENTS:
        return None
    return found if found is None or 0 <= found < MOST else None


def _dtype(call: Call) -> str | None:
    """The type of the first factor: before it, addmm's sum is an argument."""
    dtypes = [tensor.dtype for tensor in call.tensors if len(tensor.shape) > 1]
    return dtypes[0] if dtypes else None


def _bytes(call: Call) -> int | None:
    """Of the inputs and of what it returns, each once."""
    if not call.tensors:
        return None
    found: Any = resolve(call.name)(*map(_meta, call.args))
    outputs = cast(tuple[object, ...], found if isinstance(found, tuple) else (found,))
    made = (t.numel() * t.itemsize for t in outputs if isinstance(t, torch.Tensor))
    return min_bytes(call) + sum(made)


def _meta(value: Argument) -> Any:
    """The argument with tensors without memory."""
    if isinstance(value, TensorSpec):
        return torch.empty_strided(
            value.shape, value.stride, dtype=value.torch_dtype, device="meta"
        )
    return list(value) if isinstance(value, tuple) else value


# ---------------------------------------------------------------- a card


def precision_of(dtype: str | None, tf32: object) -> Precision | None:
    """A product's arithmetic by its type; None for float32 where `tf32` is unknown."""
    if dtype == "float32":
        return PRECISIONS["tf32" if tf32 else "fp32"] if isinstance(tf32, bool) else None
    return next((p for p in PRECISIONS.values() if p.storage == dtype), None)


@dataclass(frozen=True)
class Floor:
    """The least `seconds` that a call takes; `measured`: by rates measured on such a GPU.

    Else they are those of its datasheet.
    """

    seconds: float
    measured: bool


def floor_of(
    work: Work, precision: Precision | None, card: Card | None, rates: Rates | None
) -> Floor | None:
    """The least time of a call, by measured rates where there are some; None where unknown."""
    if precision is None or work.flops is None:
        return None
    measured = rates.peak(precision) if rates else None
    peak = measured or (card.peak(precision) if card else None)
    if peak is None:
        return None
    byte_per_s = (rates.byte_per_s if rates else None) or (card.byte_per_s if card else None)
    moving = (work.bytes or 0) / byte_per_s if byte_per_s else 0.0
    return Floor(max(work.flops / peak, moving), measured is not None)


def on_tensor_cores(
    flop_per_s: float | None, precision: Precision | None, card: Card | None,
    kernels: Sequence[str],
) -> bool | None:  # fmt: skip
    """True where the rate is beyond what the SMs reach without Tensor Cores: a proof.

    False for IEEE float32, which has none. None where it is not proved: slower, an unknown card,
    or kernels that need fewer operations than are counted (FFT, Winograd).
    """
    if precision is None or card is None:
        return None
    if precision.name == "fp32":
        return False
    without = _without(precision, card.simt_flop_per_s)
    if flop_per_s is None or without is None or fewer_operations(kernels):
        return None
    return True if flop_per_s > without else None


def _without(precision: Precision, rates: Mapping[str, float]) -> float | None:
    name, factor = precision.simt_twin or (precision.name, 1)
    return factor * rates[name] if name in rates else None


# ---------------------------------------------------------------- normalisation


SMALL_NS = 20_000  # of a call: a shorter one says nothing about bandwidth
HALF_BYTES = 2
# Times that a pass over the whole input is read or written: statistics come before they are used.
PASSES = {"batch_norm": (3, 5)}  # forward, backward
OTHER_PASSES = (2, 5)  # a row fits in registers


@dataclass(frozen=True)
class NormTime:
    """Calls of normalisation in half precision: `ns` in all steps, and the bytes that they move."""

    ns: int
    bytes: int
    types: frozenset[str]

    @property
    def byte_per_s(self) -> float:
        """What they reached."""
        return 1e9 * self.bytes / self.ns if self.ns else 0.0


def norm_time(pieces: Iterable[Piece]) -> NormTime:
    """The calls among these pieces that are long enough to tell the bandwidth."""
    times: dict[int, int] = defaultdict(int)
    calls: dict[int, Span] = {}
    for piece in pieces:
        op = _operator(piece) if piece.term == TERMS["norm"] else None
        if op is not None:
            times[id(op)] += piece.ns
            calls[id(op)] = op
    long = [op for key, op in calls.items() if times[key] >= SMALL_NS]
    types = frozenset(name for op in long for name in _types(op) if name in HALF)
    return NormTime(sum(times[id(op)] for op in long), sum(map(_norm_bytes, long)), types)


def _operator(piece: Piece) -> Span | None:
    """The innermost operator that normalises a tensor in half precision."""
    for op in reversed(piece.caller.ops):
        if shapes_of(op) and term_of_ops([op]) == TERMS["norm"]:
            return op if HALF & set(_types(op)) else None
    return None


def _types(op: Span) -> list[str]:
    return [str(name) for name in listed(op, "Input type")]


def _norm_bytes(op: Span) -> int:
    forward, backward = next((n for name, n in PASSES.items() if name in op.name), OTHER_PASSES)
    elements = max(math.prod(shape) for shape in shapes_of(op))
    return HALF_BYTES * elements * (backward if "backward" in op.name else forward)
