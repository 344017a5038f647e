"""The calls of a recording again, with other sizes or in other types: what a step would gain by it.

Calls are launched alone, on the card of the recording, with random content. So a gain is of the
GPU's time, and no step is shorter by it while the GPU waits for something else. Attention that is
written out, and loops of small operations, are held against torch's one call for them.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from e2e.aten import Argument, Call, TensorSpec, resolve, why_not
from e2e.prediction.padding import padding
from e2e.prediction.timer import ROUNDS, CallTime, PlacedCall, time_calls
from e2e.profile.causes import Gain, Seen, small_loops
from e2e.profile.operators import BAD_ARGUMENTS, call_of, dtype_of, is_product, product, shapes_of
from e2e.profile.products import attention_in
from e2e.profile.step import BACKWARD, UPDATE, Op, Step
from e2e.profile.trace import Span
from e2e.profile.trials import Tried, gain_of
from e2e.profile.unprofiled import Unprofiled
from e2e.results.terms import IDLE, LAYOUT, TERMS
from e2e.training.trainer import set_tf32
from kernels.case import Target

LEAST_SHARE = 0.005  # of a step: shorter calls are not replayed
MOST_CALLS = 16  # of one kind, the longest
MOST_NAMED = 2
HALVES = ("float16", "bfloat16")
NO_CALLS = frozenset({TERMS["cast"], LAYOUT})  # they are no work of their own
LAUNCHES = 3  # of a call in a round
FOREACH = {"mul_": "_foreach_mul_", "add_": "_foreach_add_", "copy_": "_foreach_copy_"}


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


def replayed(target: Target, run: Unprofiled) -> Tried:
    """What the steps gain by calls with other sizes or types, or by torch's one call for many.

    Nothing is replayed where the recording is of another device than `target`.
    """
    step, facts = run.step, run.step.trace.facts
    device = "cpu" if step.on_cpu else step.trace.device
    here = "cpu" if target.kind == "cpu" else target.name
    if device != here:
        why = f"a replay needs the recording's device, {device}"
        return Tried((), dict.fromkeys((*KINDS, "attention", "loops"), why), 0)
    tf32, search = (facts.get(name) is True for name in ("allow_tf32", "cudnn_benchmark"))
    calls = _repeated(step)
    pairs = {cause: list(make(calls, tf32))[:MOST_CALLS] for cause, make in KINDS.items()}
    step_ms = run.whole_ns / step.steps / 1e6
    with _settings(tf32, search):
        times = _times(target, [pair for some in pairs.values() for pair in some])
        gains = [_gain(cause, some, times, step_ms) for cause, some in pairs.items()]
        for again in (_attention, _loops):
            with suppress(RuntimeError, TypeError, ValueError):  # too large, or odd shapes
                gains.append(again(run, torch.device(target.torch_device), step_ms))
    return Tried(tuple(gain for gain in gains if gain is not None), {}, 0)


# ---------------------------------------------------------------- calls


def _repeated(step: Step) -> list[Repeated]:
    """The calls of at least LEAST_SHARE of a step, the longest first."""
    by_call: dict[tuple[str, bool], list[tuple[Op, Span, Call]]] = defaultdict(list)
    known: dict[int, Call | None] = {}
    for op in step.ops:
        if op.term in IDLE or op.term in NO_CALLS or op.phase == UPDATE:
            continue
        span = product(op.ops) if is_product(op) else (op.ops or (None,))[-1]
        if span is None:
            continue
        if id(span) not in known:
            known[id(span)] = _call(span)
        call = known[id(span)]
        if call is not None:
            by_call[call.key, op.phase == BACKWARD].append((op, span, call))
    calls: list[Repeated] = []
    for some in by_call.values():
        op, span, call = some[0]
        count = len({id(span) for _, span, _ in some}) / step.steps
        name = op.module or span.name.removeprefix("aten::")
        ns = sum(op.ns for op, _, _ in some)
        calls.append(Repeated(call, count, ns, name, op.phase == BACKWARD))
    least = LEAST_SHARE * (step.end - step.start)
    return sorted((call for call in calls if call.ns >= least), key=lambda call: -call.ns)


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
    kinds = [str(argument.type) for argument in schema.arguments if not argument.kwarg_only]
    return len(kinds) == len(call.args) and all(
        kind.startswith("Optional")
        if value is None
        else isinstance(value, TensorSpec) == ("Tensor" in kind)
        for value, kind in zip(call.args, kinds, strict=True)
    )


# ---------------------------------------------------------------- changes


def _padded(calls: Sequence[Repeated], tf32: bool) -> Iterator[Pair]:
    for repeated in calls:
        change = padding(repeated.call, tf32)
        if change is not None:
            yield Pair(repeated, change.call, change.change)


def _left_in_float32(calls: Sequence[Repeated], _tf32: bool) -> Iterator[Pair]:
    """Products that stayed in float32 beside others in half precision, in that precision."""
    products = [repeated for repeated in calls if repeated.call.operator in _PRODUCTS]
    half = next((d for repeated in products if (d := _dtype(repeated.call)) in HALVES), None)
    for repeated in products if half else ():
        if _dtype(repeated.call) == "float32":
            yield Pair(repeated, _cast(repeated.call, ("float32",), half), f"in {half}")


_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")


def _cast_to(
    dtype: str, only: Sequence[str], calls: Sequence[Repeated], _tf32: bool
) -> Iterator[Pair]:
    for repeated in calls:
        if any(tensor.dtype in only for tensor in repeated.call.tensors):
            yield Pair(repeated, _cast(repeated.call, only, dtype), f"in {dtype}")


# By cause, as findings and proofs have it.
KINDS: dict[str, Callable[[Sequence[Repeated], bool], Iterator[Pair]]] = {
    "misaligned": _padded,
    "islands": _left_in_float32,
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
    set_tf32(tf32)
    cudnn.benchmark = search
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, cudnn.benchmark = before[1:]


def _times(target: Target, pairs: Sequence[Pair]) -> dict[str, tuple[float, ...]]:
    """Seconds of each call by its key, one a round; calls that cannot run are missing."""
    calls: dict[str, PlacedCall] = {}
    for pair in pairs:
        for call in (pair.repeated.call, pair.changed):
            placed = PlacedCall(call, pair.repeated.count, pair.repeated.backward)
            calls.setdefault(call.key, placed)
    timed = time_calls(target, list(calls.values()))
    return {
        key: time.times_s
        for key, time in zip(calls, timed, strict=True)
        if isinstance(time, CallTime) and len(time.times_s) == ROUNDS and min(time.times_s) > 0
    }


def _gain(
    cause: str, pairs: Sequence[Pair], times: dict[str, tuple[float, ...]], step_ms: float
) -> Gain | None:
    """What the step gains where those calls are changed that gained in the first round."""
    timed = [
        (pair, times[pair.repeated.call.key], times[pair.changed.key])
        for pair in pairs
        if pair.repeated.call.key in times and pair.changed.key in times
    ]
    chosen = [row for row in timed if row[2][0] < row[1][0]] or timed
    if not chosen:
        return None
    later = range(1, ROUNDS)
    as_is = [[math.fsum(pair.repeated.count * s[n] for pair, s, _ in chosen)] for n in later]
    changed = [[math.fsum(pair.repeated.count * s[n] for pair, _, s in chosen)] for n in later]
    names = dict.fromkeys(f"{pair.repeated.name} {pair.change}" for pair, *_ in chosen)
    named = ", ".join(list(names)[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
    return gain_of(cause, f"replayed: {named}", as_is, changed, step_ms=step_ms)


# ---------------------------------------------------------------- one call for many


def _attention(run: Unprofiled, device: torch.device, step_ms: float) -> Gain | None:
    """Attention that is written out against scaled_dot_product_attention of the same shapes."""
    attn = attention_in(run.step.ops)
    if attn is None or not attn.calls:
        return None
    as_is = _by_step(run, attn.ops)
    masked = any(op.ops and "add" in op.ops[-1].name for op in attn.ops)
    shapes = Counter(
        (*map(tuple, shapes_of(span)[-2:]), dtype_of(span.noted("Input type")[0]))
        for span in attn.calls
    )
    changed = [0.0] * len(as_is)
    for (query, key, dtype), count in shapes.items():
        batch, rows, size = query
        q, k, v = (
            torch.randn(batch, 1, n, size, device=device, dtype=getattr(torch, dtype))
            .requires_grad_() for n in (rows, key[2], key[2])
        )  # fmt: skip
        mask = torch.zeros(rows, key[2], device=device, dtype=q.dtype) if masked else None

        def once(q: Any = q, k: Any = k, v: Any = v, mask: Any = mask) -> None:
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            torch.autograd.grad(out, (q, k, v), out)

        for number, taken in enumerate(_seconds(once, device, len(as_is))):
            changed[number] += taken * count / run.step.steps
    change = "replayed: scaled_dot_product_attention of the same shapes"
    blocks = [[s] for s in as_is], [[s] for s in changed]
    return gain_of("attention", change, *blocks, step_ms=step_ms)


def _loops(run: Unprofiled, device: torch.device, step_ms: float) -> Gain | None:
    """Loops of in-place operations over tensors against torch._foreach_*, with their launches."""
    ops = small_loops(Seen(run))
    spans = {id(op.ops[-1]): op.ops[-1] for op in ops if op.ops}
    lists: dict[tuple[str, str], list[list[int]]] = defaultdict(list)
    for span in spans.values():
        name = span.name.removeprefix("aten::")
        dims, types = span.noted("Input Dims"), span.noted("Input type")
        if name in FOREACH and dims and types and dtype_of(types[0]):
            lists[name, dtype_of(types[0])].append(dims[0])
    if not lists:
        return None
    as_is = _by_step(run, [op for op in ops if op.term in IDLE or (
        op.ops and op.ops[-1].name.removeprefix("aten::") in FOREACH)])  # fmt: skip
    changed = [0.0] * len(as_is)
    for (name, dtype), shapes in lists.items():
        shapes = shapes[: max(1, len(shapes) // run.step.steps)]
        first, second = (
            [torch.zeros(s, device=device, dtype=getattr(torch, dtype)) for s in shapes]
            for _ in range(2)
        )
        call: Any = getattr(torch, FOREACH[name])
        once = partial(call, first, 1.0) if name == "mul_" else partial(call, first, second)
        for number, taken in enumerate(_seconds(once, device, len(as_is))):
            changed[number] += taken
    blocks = [[s] for s in as_is], [[s] for s in changed]
    change = "replayed: torch._foreach_* on the same tensors"
    return gain_of("loops", change, *blocks, step_ms=step_ms)


def _by_step(run: Unprofiled, ops: Sequence[Op]) -> list[float]:
    """Seconds of these operations in each recorded step, as they are without the profiler."""
    seconds = [0.0] * run.step.steps
    for number, (start, end) in enumerate(pairwise(run.step.ends)):
        inside = [op for op in ops if start <= op.start < end]
        seconds[number] = sum(op.ns * run.factors.get(op.term, 1.0) for op in inside) / 1e9
    return seconds


def _seconds(once: Callable[[], object], device: torch.device, rounds: int) -> list[float]:
    """Seconds of a call, launched several times and waited for, in each round."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    seconds: list[float] = []
    for _ in range(1 + rounds):  # the first one warms up
        wait()
        began_s = time.perf_counter()
        for _ in range(LAUNCHES):
            once()
        wait()
        seconds.append((time.perf_counter() - began_s) / LAUNCHES)
    return seconds[1:]
