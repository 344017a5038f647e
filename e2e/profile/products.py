"""Each GEMM, convolution and attention of the steps: where, how often, how long, how fast.

Its time is that of the steps, so that products add up to their terms. Its rate is that of its
kernels as they ran, so that what another stream hides makes none faster. Attention that is written
out is several of them, with what lies between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from e2e.profile.compiled import fused_words
from e2e.profile.operators import (
    HALF,
    arithmetic,
    dtype_of,
    is_product,
    misaligned,
    product,
    shape_words,
    shapes_of,
    types_of,
    work_of,
)
from e2e.profile.step import Op, Step
from e2e.profile.trace import WORK, Span
from e2e.results.terms import IDLE
from kernels.gpu_cards import Card
from kernels.precision import DTYPE_BYTES, PRECISIONS, Precision
from microbench.device.profiler import fewer_operations
from microbench.roofline.rates import Rates

LEAST_COUNTED = 0.95  # of the products' time, for a share of the card
INFERENCE = "aten::_native_multi_head_attention"  # torch's own path, which no script can change
LEAST_SCORES = 64  # rows and columns of attention's scores: smaller ones are no attention


@dataclass(frozen=True)
class Product:
    """One product of a layer: `count` calls in all steps, `ns` of their time, `kernel_ns` as run.

    `flops`, `bytes` and `floor_s` are of one call, None where unknown. `precision` is "" then.
    `measured`: the floor is by rates measured on such a GPU, else by its datasheet.
    `tensor_cores` is True where the rate proves them, False for IEEE float32, None if not proved.
    """

    module: str
    phase: str
    operator: str
    shapes: str
    precision: str
    count: int
    ns: int
    kernel_ns: int
    flops: int | None
    bytes: int | None
    floor_s: float | None
    tensor_cores: bool | None
    misaligned: bool
    measured: bool = False

    @property
    def flop_per_s(self) -> float | None:
        """What it reached; None where its work is unknown."""
        if not self.flops or self.kernel_ns <= 0:
            return None
        return self.count * self.flops * 1e9 / self.kernel_ns


@dataclass
class Calls:
    """The calls of one operator with the same arguments in the same place of the steps.

    `ns` is their time in the steps, `kernel_ns` that of their kernels as they ran.
    """

    op: Span
    by: Op
    ids: set[int] = field(default_factory=set[int])
    kernels: dict[int, str] = field(default_factory=dict[int, str])
    ns: int = 0
    kernel_ns: int = 0

    def precision(self, card: Card | None, facts: Mapping[str, Any]) -> Precision | None:
        """What they compute in; None where it is not known."""
        work, names = work_of(self.op), self.kernels.values()
        rate = _rate(work.flops, len(self.ids), self.kernel_ns)
        dtype = work.dtype or next(iter(types_of([self.op])), None)
        return arithmetic(self.op, dtype, names, rate, card, facts)


def calls_of(step: Step) -> list[Calls]:
    """Every product in the steps; none without shapes."""
    by_key: dict[tuple[str, ...], Calls] = {}
    work = step.trace.spans[WORK]
    for op in step.ops:
        if not is_product(op) or (called := product(op.ops)) is None:
            continue
        names = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")
        key = op.module, op.phase, called.name, *(str(called.args.get(name)) for name in names)
        calls = by_key.setdefault(key, Calls(called, op))
        calls.ns += op.ns
        calls.ids.add(id(called))
        if step.on_cpu:
            calls.kernel_ns += op.ns
        elif op.number not in calls.kernels:
            calls.kernel_ns += work[op.number].ns
        calls.kernels[op.number] = op.kernel
    return [calls for calls in by_key.values() if calls.kernel_ns]


def products(step: Step, card: Card | None, rates: Rates | None = None) -> tuple[Product, ...]:
    """Every product in the steps, the longest first; none without shapes.

    Floors are by `rates`, and by the datasheet of the card for what those lack.
    """
    made = [_product(calls, step, card, rates) for calls in calls_of(step)]
    return tuple(sorted(made, key=lambda p: (-p.ns, p.module, p.phase, p.operator, p.shapes)))


def _product(calls: Calls, step: Step, card: Card | None, rates: Rates | None) -> Product:
    op, by, work, count = calls.op, calls.by, work_of(calls.op), len(calls.ids)
    ieee = PRECISIONS["fp32"] if work.dtype == "float32" else None
    precision = ieee if step.on_cpu and ieee else calls.precision(card, step.trace.facts)
    floor = work.floor(precision, card, rates)
    rate = _rate(work.flops, count, calls.kernel_ns)
    return Product(
        by.module, by.phase, op.name.removeprefix("aten::"),
        " ".join(map(shape_words, shapes_of(op)[:3])), precision.name if precision else "",
        count, calls.ns, calls.kernel_ns, work.flops, work.bytes, floor[0] if floor else None,
        _on_tensor_cores(rate, precision, card, sorted(set(calls.kernels.values()))),
        bool(not step.on_cpu and types_of(by.ops) & HALF and misaligned(by.ops)),
        floor is not None and floor[1],
    )  # fmt: skip


def _rate(flops: int | None, count: int, ns: int) -> float | None:
    return flops * count * 1e9 / ns if flops and ns else None


def _on_tensor_cores(
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
    name, factor = precision.simt_twin or (precision.name, 1)
    if flop_per_s is None or name not in card.simt_flop_per_s or fewer_operations(kernels):
        return None
    return True if flop_per_s > factor * card.simt_flop_per_s[name] else None


# ---------------------------------------------------------------- fused kernels


@dataclass(frozen=True)
class Fused:
    """Calls of one kernel that torch.compile made: `count` of `ns` in all steps.

    `bytes` are of one call, each argument once; None where the trace has no shapes.
    """

    module: str
    fuses: str
    count: int
    ns: int
    bytes: int | None

    @property
    def byte_per_s(self) -> float | None:
        """How fast it moves them at least."""
        return self.count * self.bytes * 1e9 / self.ns if self.bytes and self.ns else None


def fused_kernels(step: Step) -> tuple[Fused, ...]:
    """Each fused kernel of the steps, the longest first; none on a CPU."""
    by_kernel: dict[tuple[str, str], list[Op]] = {}
    for op in step.ops if not step.on_cpu else ():
        if fused_words(op.kernel):
            by_kernel.setdefault((op.module, op.kernel), []).append(op)
    made = [
        Fused(
            module, fused_words(kernel), len({op.number for op in ops}), sum(op.ns for op in ops),
            next((size for op in ops for span in op.ops[-1:] if (size := _bytes(span))), None),
        )
        for (module, kernel), ops in by_kernel.items()
    ]  # fmt: skip
    return tuple(sorted(made, key=lambda kernel: (-kernel.ns, kernel.module, kernel.fuses)))


def _bytes(span: Span) -> int:
    """Of all tensors that are an operator's arguments."""
    sizes = zip(span.noted("Input Dims"), span.noted("Input type"), strict=False)
    return sum(
        DTYPE_BYTES.get(dtype_of(kind), 0) * prod(dims) for dims, kind in sizes
        if dims and all(isinstance(size, int) for size in dims)
    )  # fmt: skip


# ---------------------------------------------------------------- in sum


def of_card(step: Step, products: Sequence[Product], whole_ns: float) -> float | None:
    """Share of `whole_ns`, all steps, that their products take at least.

    None on a CPU, without products, and where the work of too many is not known: those whose floor
    is known must take LEAST_COUNTED of the products' time.
    """
    known = [(p, p.floor_s) for p in products if p.floor_s]
    known_ns = sum(p.ns for p, _ in known)
    if step.on_cpu or not known:
        return None
    if known_ns < LEAST_COUNTED * sum(op.ns for op in step.ops if is_product(op)):
        return None
    floor_ns = sum(1e9 * p.count * seconds for p, seconds in known)
    return min(1.0, floor_ns / whole_ns / step.trace.devices)


def reach(products: Sequence[Product]) -> tuple[float, float] | None:
    """Shares of the products' time: that with Tensor Cores proved, and that of the floor, of those
    whose floor is known. None without any, or on a card that is not known.
    """
    known = [(p, p.floor_s) for p in products if p.floor_s is not None]
    known_ns = sum(p.kernel_ns for p, _ in known)
    if known_ns <= 0:
        return None
    floor_ns = sum(1e9 * p.count * seconds for p, seconds in known)
    proved_ns = sum(p.kernel_ns for p in products if p.tensor_cores)
    return proved_ns / sum(p.kernel_ns for p in products), floor_ns / known_ns


# ---------------------------------------------------------------- attention written out


@dataclass(frozen=True)
class Attention:
    """All operations on attention's scores, which have these `shapes`.

    `calls` are the products of queries and keys in forward passes.
    """

    ops: Sequence[Op]
    shapes: Sequence[tuple[int, ...]]
    calls: Sequence[Span]

    @cached_property
    def ids(self) -> frozenset[int]:
        """The ids of the operations."""
        return frozenset(map(id, self.ops))


def attention_in(ops: Sequence[Op]) -> Attention | None:
    """A product, a softmax of its result and a product with that; and their backward.

    Scores are what a softmax takes and a batched product makes: everything that has them as an
    input, or multiplies them, belongs to it. What nn.TransformerEncoder does in inference is
    torch's own, and none.
    """
    own = [op for op in ops if not any(span.name == INFERENCE for span in op.ops)]
    spans = {id(span): span for op in own for span in op.ops if shapes_of(span)}
    batched = [s for s in spans.values() if s.name.startswith(("aten::bmm", "aten::baddbmm"))]
    made = {_product_shape(span) for span in batched}
    scores: dict[tuple[int, int, int], tuple[int, ...]] = {}
    for span in spans.values():
        if "softmax" in span.name and "backward" not in span.name.lower():
            shape = shapes_of(span)[0]
            if len(shape) >= 3 and min(shape[-2:]) >= LEAST_SCORES and _flat(shape) in made:
                scores[_flat(shape)] = tuple(shape)
    if not scores:
        return None

    def belongs(op: Op) -> bool:
        inner = next((s for s in reversed(op.ops) if shapes_of(s)), None)
        if inner is None or op.term in IDLE:
            return False
        shapes = [_flat(shape) for shape in shapes_of(inner) if len(shape) >= 3]
        return bool(scores.keys() & {*shapes, _product_shape(inner)})

    calls = [s for s in batched if _product_shape(s) in scores and not s.args.get("Fwd thread id")]
    return Attention([op for op in own if belongs(op)], list(scores.values()), calls)


def _flat(shape: Sequence[int]) -> tuple[int, int, int]:
    return prod(shape[:-2]), shape[-2], shape[-1]


def _product_shape(span: Span) -> tuple[int, int, int] | None:
    """What a batched product makes; None for another operator."""
    if not span.name.startswith(("aten::bmm", "aten::baddbmm")):
        return None
    first, second = [shape for shape in shapes_of(span) if len(shape) == 3][-2:] or ([], [])
    return (first[0], first[1], second[2]) if first and second else None
