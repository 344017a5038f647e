"""Each GEMM, convolution and attention of the steps: where, how often, how long, how fast.

Its time is that of the partition, so that products add up to their terms. Its rate is that of its
kernels as they ran, so that what another stream hides makes none faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from e2e.profile.calls import Caller
from e2e.profile.operands import HALF, misaligned, shape_words, shapes_of, types_of
from e2e.profile.partition import Partition, Piece, is_product, on_device, term_of_ops
from e2e.profile.product_work import floor_of, is_counted, on_tensor_cores, precision_of, work_of
from e2e.profile.reader import Recording, Span
from e2e.results.terms import PRODUCT_TERMS
from kernels.gpu_cards import Card
from kernels.gpus import find_card
from microbench.roofline.rates import Rates


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
class _Calls:
    """The calls of one operator with the same arguments in the same place."""

    op: Span
    caller: Caller
    calls: set[int]
    kernels: set[str]
    ns: int = 0
    kernel_ns: int = 0


def products(
    recording: Recording, parts: Partition, device: str, rates: Rates | None = None
) -> tuple[Product, ...]:
    """Every product in the steps, the longest first; none without shapes.

    Floors are by `rates`, and by the datasheet of `device` for what those lack.
    """
    found: dict[tuple[str, ...], _Calls] = {}
    ran = parts.pieces if parts.on_cpu else on_device(recording)
    for piece, op in _with_operator(ran):
        if parts.start <= piece.start < parts.end:
            calls = found.setdefault(_key(piece, op), _Calls(op, piece.caller, set(), set()))
            calls.calls.add(id(op))
            calls.kernels.add(piece.name)
            calls.kernel_ns += piece.ns
    for piece, op in _with_operator(parts.pieces):
        if calls := found.get(_key(piece, op)):
            calls.ns += piece.ns
    card = find_card(device)
    made = [
        _product(calls, recording, card, rates, on_cpu=parts.on_cpu)
        for calls in found.values()
        if calls.kernel_ns
    ]
    return tuple(sorted(made, key=lambda p: (-p.ns, p.module, p.phase, p.operator, p.shapes)))


def product_operator(caller: Caller) -> Span | None:
    """The operator to which a product's time belongs: the innermost whose work can be counted.

    Else the innermost that is a product by its name; None without shapes.
    """
    named = (op for op in reversed(caller.ops) if term_of_ops([op]) in PRODUCT_TERMS)
    inner = [op for op in named if shapes_of(op)]
    return next((op for op in inner if is_counted(op)), inner[0] if inner else None)


def _with_operator(pieces: Sequence[Piece]) -> list[tuple[Piece, Span]]:
    pairs = [(p, product_operator(p.caller)) for p in pieces if is_product(p)]
    return [(piece, op) for piece, op in pairs if op is not None]


def _key(piece: Piece, op: Span) -> tuple[str, ...]:
    names = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")
    return (
        piece.caller.module, piece.caller.phase, op.name,
        *(str(op.args.get(name)) for name in names),
    )  # fmt: skip


def _product(
    calls: _Calls, recording: Recording, card: Card | None, rates: Rates | None, *, on_cpu: bool
) -> Product:
    op, caller = calls.op, calls.caller
    work, count = work_of(op), len(calls.calls)
    setting = "cudnn_allow_tf32" if "conv" in op.name else "allow_tf32"
    tf32 = False if on_cpu else recording.facts.get(setting)
    precision = precision_of(work.dtype, tf32)
    rate = work.flops * count * 1e9 / calls.kernel_ns if work.flops else None
    floor = floor_of(work, precision, card, rates)
    return Product(
        caller.module, caller.phase, op.name.removeprefix("aten::"),
        " ".join(map(shape_words, shapes_of(op)[:3])), precision.name if precision else "",
        count, calls.ns, calls.kernel_ns, work.flops, work.bytes,
        floor.seconds if floor else None,
        on_tensor_cores(rate, precision, card, sorted(calls.kernels)),
        bool(not on_cpu and types_of(caller.ops) & HALF and misaligned(caller.ops)),
        floor is not None and floor.measured,
    )  # fmt: skip


# ---------------------------------------------------------------- in sum


@dataclass(frozen=True)
class Reach:
    """Shares of the products' time: with Tensor Cores `proved`, and of the floor in it.

    `of_card` is the floor's time over the time that was taken, of the products whose floor is
    known.
    """

    proved: float
    of_card: float


def reach(found: Sequence[Product]) -> Reach | None:
    """How far the products use the card; None without any, or on a card that is not known."""
    known = [(p, p.floor_s) for p in found if p.floor_s is not None]
    known_ns = sum(p.kernel_ns for p, _ in known)
    if known_ns <= 0:
        return None
    floor_ns = sum(1e9 * p.count * seconds for p, seconds in known)
    proved_ns = sum(p.kernel_ns for p in found if p.tensor_cores)
    return Reach(proved_ns / sum(p.kernel_ns for p in found), floor_ns / known_ns)
