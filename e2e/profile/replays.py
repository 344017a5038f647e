"""The calls of a recording again, with other sizes or in other types: what a step would gain by it.

Calls are launched alone, on the card of the recording, with random content. So a gain is of the
GPU's time, and no step is shorter by it while the GPU waits for something else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from e2e.aten import (
    WARM,
    Argument,
    Call,
    Pool,
    TensorSpec,
    materialise,
    reserve,
    resolve,
    why_not,
)
from e2e.prediction.host_speed import ConstantSpeed
from e2e.prediction.op_timer.cuda import CudaStopwatch
from e2e.prediction.op_timer.op_timer import CpuStopwatch, MeasuredTime, PlacedCall, Stopwatch
from e2e.prediction.padding import padding
from e2e.profile.calls import BACKWARD, OPTIMIZER
from e2e.profile.gains import Gain, Tried, gain_of
from e2e.profile.partition import Partition, Piece, is_product
from e2e.profile.product_work import BAD_ARGUMENTS, call_of
from e2e.profile.products import product_operator
from e2e.profile.reader import Recording, Span
from e2e.recipes import switch_tf32
from e2e.results.terms import IDLE, LAYOUT, TERMS
from kernels.case import Target

CHOOSING, ROUNDS = 1, 5  # rounds that choose which calls to change; with those that measure them
LEAST_SHARE = 0.005  # of a step: shorter calls are not replayed
MOST_CALLS = 16  # of one kind, the longest
MOST_NAMED = 2
HALVES = ("float16", "bfloat16")
NO_CALLS = frozenset({TERMS["cast"], LAYOUT})  # they are no work of their own


@dataclass(frozen=True)
class Repeated:
    """A call of the steps: how often in a step, and how it is called in a report."""

    call: Call
    count: float
    ns: int
    name: str
    backward: bool


@dataclass(frozen=True)
class Pair:
    """A call and the same call changed; `change` says how."""

    repeated: Repeated
    changed: Call
    change: str


def replayed(target: Target, recording: Recording, parts: Partition) -> Tried:
    """What the steps gain by calls with other sizes or types.

    Nothing is replayed where the recording is of another device than `target`.
    """
    device = "cpu" if parts.on_cpu else str(recording.facts.get("device", "an unknown device"))
    here = "cpu" if target.kind == "cpu" else target.name
    if device != here:
        why = f"a replay needs the recording's device, {device}"
        return Tried((), {cause: why for cause in KINDS}, 0)
    tf32, search = (recording.facts.get(n) is True for n in ("allow_tf32", "cudnn_benchmark"))
    calls = _repeated(recording, parts)
    pairs = {cause: list(make(calls, tf32))[:MOST_CALLS] for cause, make in KINDS.items()}
    with _settings(tf32, search):
        times = _times(target, [pair for some in pairs.values() for pair in some])
    step_ms = (parts.end - parts.start) / parts.steps / 1e6
    found = [_gain(cause, some, times, step_ms) for cause, some in pairs.items()]
    return Tried(tuple(gain for gain in found if gain is not None), {}, 0)


# ---------------------------------------------------------------- calls


def _repeated(recording: Recording, parts: Partition) -> list[Repeated]:
    """The calls of at least LEAST_SHARE of a step, the longest first."""
    found: dict[tuple[str, bool], list[tuple[Piece, Span, Call]]] = {}
    known: dict[int, Call | None] = {}
    for piece in parts.pieces:
        caller = piece.caller
        if piece.term in IDLE or piece.term in NO_CALLS or caller.phase == OPTIMIZER:
            continue
        op = product_operator(caller) if is_product(piece) else (caller.ops or [None])[-1]
        if op is None:
            continue
        if id(op) not in known:
            known[id(op)] = _call(op)
        call = known[id(op)]
        if call is not None:
            found.setdefault((call.key, caller.phase == BACKWARD), []).append((piece, op, call))
    calls = [_one(some, parts.steps) for some in found.values()]
    least = LEAST_SHARE * (parts.end - parts.start)
    return sorted((one for one in calls if one.ns >= least), key=lambda one: -one.ns)


def _one(some: Sequence[tuple[Piece, Span, Call]], steps: int) -> Repeated:
    piece, op, call = some[0]
    ns = sum(piece.ns for piece, _, _ in some)
    count = len({id(op) for _, op, _ in some}) / steps
    name = piece.caller.module or op.name.removeprefix("aten::")
    return Repeated(call, count, ns, name, piece.caller.phase == BACKWARD)


def _call(op: Span) -> Call | None:
    """The operator as a call that can be replayed, if its arguments are known."""
    name = op.name.removeprefix("aten::")
    overloads: Any = getattr(torch.ops.aten, name, None)
    for overload in overloads.overloads() if overloads is not None else ():
        if overload.endswith("out"):
            continue
        try:
            call = call_of(op, overload)
            if call.tensors and _fits(call) and why_not(call) is None:
                return call
        except BAD_ARGUMENTS:
            continue
    return None


def _fits(call: Call) -> bool:
    """Whether its arguments are what the operator's schema asks for, as far as a trace tells."""
    schema: Any = getattr(resolve(call.name), "_schema")  # noqa: B009
    wanted = [str(one.type) for one in schema.arguments if not one.kwarg_only]
    return len(wanted) == len(call.args) and all(
        kind.startswith("Optional")
        if value is None
        else isinstance(value, TensorSpec) == ("Tensor" in kind)
        for value, kind in zip(call.args, wanted, strict=True)
    )


# ---------------------------------------------------------------- changes


def _padded(calls: Sequence[Repeated], tf32: bool) -> Iterator[Pair]:
    for one in calls:
        found = padding(one.call, tf32)
        if found is not None and found.known_slow:
            yield Pair(one, found.call, found.change)


def _islands(calls: Sequence[Repeated], _tf32: bool) -> Iterator[Pair]:
    """Products that stayed in float32 beside others in half precision, in that precision."""
    products = [one for one in calls if one.call.operator in _PRODUCTS]
    half = next((d for one in products if (d := _dtype(one.call)) in HALVES), None)
    for one in products if half else ():
        if _dtype(one.call) == "float32":
            yield Pair(one, _cast(one.call, ("float32",), half), f"in {half}")


_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")


def _cast_to(
    dtype: str, only: Sequence[str], calls: Sequence[Repeated], _tf32: bool
) -> Iterator[Pair]:
    for one in calls:
        if any(tensor.dtype in only for tensor in one.call.tensors):
            yield Pair(one, _cast(one.call, only, dtype), f"in {dtype}")


# By cause, as findings and proofs have it.
KINDS: dict[str, Callable[[Sequence[Repeated], bool], Iterator[Pair]]] = {
    "misaligned": _padded,
    "islands": _islands,
    "half": partial(_cast_to, "float32", HALVES),
    "bf16": partial(_cast_to, "float16", ("bfloat16",)),
}


def _dtype(call: Call) -> str:
    return call.tensors[0].dtype


def _cast(call: Call, only: Sequence[str], dtype: str | None) -> Call:
    def one(value: Argument) -> Argument:
        if isinstance(value, TensorSpec) and value.dtype in only and dtype:
            return replace(value, dtype=dtype)
        return tuple(map(one, value)) if isinstance(value, tuple) else value

    return Call(call.name, tuple(map(one, call.args)), call.kwargs)


# ---------------------------------------------------------------- times


@contextmanager
def _settings(tf32: bool, search: bool) -> Generator[None]:
    """Those of the recording, in this process."""
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark
    switch_tf32(tf32)
    cudnn.benchmark = search
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, cudnn.benchmark = before[1:]


def _times(target: Target, pairs: Sequence[Pair]) -> dict[str, list[float]]:
    """Seconds of each call by its key, one a round; calls that cannot run are missing."""
    calls: dict[str, tuple[Call, Repeated]] = {}
    for pair in pairs:
        calls[pair.repeated.call.key] = (pair.repeated.call, pair.repeated)
        calls.setdefault(pair.changed.key, (pair.changed, pair.repeated))
    placed = _placed(torch.device(target.torch_device), calls)
    if not placed:
        return {}
    cuda = target.kind == "cuda"
    stopwatch: Stopwatch = CudaStopwatch(target, ConstantSpeed()) if cuda else CpuStopwatch()
    found: dict[str, list[float]] = {key: [] for key in placed}
    for number in range(ROUNDS):
        keys = list(placed) if number % 2 == 0 else list(reversed(placed))
        for key, taken in zip(keys, stopwatch.times([placed[k] for k in keys]), strict=True):
            if isinstance(taken, MeasuredTime):
                found[key].append(taken.time.gpu_s)
    return {key: times for key, times in found.items() if len(times) == ROUNDS and min(times) > 0}


def _placed(device: torch.device, calls: dict[str, tuple[Call, Repeated]]) -> dict[str, PlacedCall]:
    """Those that the device can hold and that have valid arguments."""
    calls = dict(calls)
    while calls:
        pool = Pool(device)
        try:
            reserve([(call, WARM) for call, _ in calls.values()], pool)
            break
        except torch.OutOfMemoryError:
            del calls[max(calls, key=lambda key: sum(t.bytes for t in calls[key][0].tensors))]
    else:
        return {}
    placed: dict[str, PlacedCall] = {}
    for key, (call, repeated) in calls.items():
        try:
            made = materialise(call, device, pool)
        except BAD_ARGUMENTS:  # torch.OutOfMemoryError is a RuntimeError
            continue
        places = tuple(range(max(1, round(repeated.count))))
        placed[key] = PlacedCall(made, places, frozenset(places if repeated.backward else ()))
    return placed


def _gain(
    cause: str, pairs: Sequence[Pair], times: dict[str, list[float]], step_ms: float
) -> Gain | None:
    """What the step gains where those calls are changed that gained in the first rounds."""
    timed = [
        pair for pair in pairs if pair.repeated.call.key in times and pair.changed.key in times
    ]

    def total_s(some: Sequence[Pair], number: int, *, changed: bool) -> float:
        """Seconds that these calls take in a step, in this round."""
        keyed = ((p.changed if changed else p.repeated.call, p.repeated.count) for p in some)
        return math.fsum(count * times[call.key][number] for call, count in keyed)

    def gains(pair: Pair) -> bool:
        return all(
            total_s([pair], number, changed=True) < total_s([pair], number, changed=False)
            for number in range(CHOOSING)
        )

    chosen = [pair for pair in timed if gains(pair)] or timed
    if not chosen:
        return None
    rounds = range(CHOOSING, ROUNDS)
    as_is = [[total_s(chosen, number, changed=False)] for number in rounds]
    changed = [[total_s(chosen, number, changed=True)] for number in rounds]
    names = dict.fromkeys(f"{pair.repeated.name} {pair.change}" for pair in chosen)
    said = ", ".join(list(names)[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
    gain = gain_of(cause, f"replayed: {said}", as_is, changed)
    return replace(gain, step_ms=step_ms) if gain else None
