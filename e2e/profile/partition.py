"""Divides the time of whole steps: every nanosecond belongs to exactly one term.

While the device works, the term is the kind of work; where several streams work, computing comes
before communication, and that before copies, so that the latter count only where nothing hides
them. While it idles, the term is what the CPU did until it launched the next work.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from e2e.aten import kind_of_name
from e2e.profile.calls import (
    NOBODY,
    NODE,
    OPTIMIZER,
    RECOMPUTED,
    STEP,
    Caller,
    callers,
    callers_of_ops,
)
from e2e.profile.compiled import fused_term, is_compiling, own_code_term, term_of_kernel
from e2e.profile.idle import Gaps
from e2e.profile.pieces import Partition, Piece
from e2e.profile.reader import Recording, Span, launches_work, listed
from e2e.results.terms import (
    ATTENTION,
    COMMUNICATION,
    COMPILATION,
    CONVOLUTIONS,
    COPIES,
    FILLS,
    FLOAT8,
    LAYOUT,
    MATRIX_PRODUCTS,
    OTHER,
    PRODUCT_TERMS,
    RECOMPUTATION,
    TERMS,
)
from microbench.device.profiler import is_communication, is_conversion
from microbench.errors import UserError

MAX_DROPPED = 0.01  # of the launches: beyond it a trace says too little


class NothingSeen(UserError):
    """A trace of which nothing can be told: no whole step, no work, or too much of it lost."""


def partition(recording: Recording) -> Partition:
    """The steps of a recording, divided.

    NothingSeen where no whole step is in it, where nothing ran in its steps, or where the profiler
    lost more than MAX_DROPPED of what was launched.
    """
    launched = sum(launches_work(span.name) for span in recording.launches)
    if recording.dropped > MAX_DROPPED * max(launched, 1):
        raise NothingSeen(
            f"the profiler lost {recording.dropped} of {launched} kernels: record again, fewer "
            "steps at a time"
        )
    busy = on_device(recording) if recording.work else _on_cpu(recording)
    start, end, steps = _window(recording)
    busy = [_clip(piece, start, end) for piece in busy if piece.end > start and piece.start < end]
    if not busy:
        raise NothingSeen("nothing ran in the steps of this trace")
    pieces: list[Piece] = []
    gaps = Gaps(recording)
    at = start
    for piece in [*_uppermost(busy), None]:
        until = piece.start if piece else end
        if until > at:
            pieces += gaps.divide(at, until)
        if piece:
            pieces.append(piece)
            at = piece.end
    return Partition(start, end, steps, tuple(pieces), not recording.work)


# ---------------------------------------------------------------- the window


def steps_ns(recording: Recording) -> list[int]:
    """Nanoseconds of each whole step, from the end of one's work to that of the next."""
    return [end - start for start, end in itertools.pairwise(_step_ends(recording))]


def _window(recording: Recording) -> tuple[int, int, int]:
    """(start, end, steps) in ns: from the end of one step's work to that of a later one's."""
    if recording.work and not recording.ops:
        raise NothingSeen(
            "the trace has no operators and no steps: ask the profiler for ProfilerActivity.CPU too"
        )
    ends = _step_ends(recording)
    if len(ends) < 2 or ends[-1] <= ends[0]:
        raise NothingSeen(
            "no whole step is in this trace: record it with halfway_watch, or call the profiler's "
            "step() after each step"
        )
    return ends[0], ends[-1], len(ends) - 1


def _step_ends(recording: Recording) -> list[int]:
    """When the work of each step is done, from that before the first whole one, in ns."""
    notes = [note for note in recording.notes if note.name.startswith(STEP)]
    ends = _work_ends(recording, [note.end for note in notes])
    lead_in = recording.facts.get("lead_in", 1)
    wanted = recording.facts.get("traced", max(1, len(ends) - 1))
    if not isinstance(lead_in, int) or not isinstance(wanted, int) or lead_in < 1 or wanted < 1:
        raise UserError("what halfway_watch wrote into this trace is damaged")
    return ends[lead_in - 1 : lead_in + wanted]


def _work_ends(recording: Recording, cpu_ends: Sequence[int]) -> list[int]:
    """When the work that was launched up to each of these moments is done, in ns."""
    if not recording.work:
        return list(cpu_ends)
    done: dict[int, int] = defaultdict(int)
    for span in recording.work:
        done[span.correlation] = max(done[span.correlation], span.end)
    launches = [span for span in recording.launches if span.correlation in done]
    begun = [span.start for span in launches]
    latest = list(itertools.accumulate((done[span.correlation] for span in launches), max))
    places = (bisect_left(begun, cpu_end) for cpu_end in cpu_ends)
    return [latest[at - 1] if at else end for at, end in zip(places, cpu_ends, strict=True)]


# ---------------------------------------------------------------- work


def on_device(recording: Recording) -> list[Piece]:
    """Each kernel, copy and fill as it ran, with its term; several may run at once."""
    called = callers(recording)
    return [
        Piece(span.start, span.end, _term_on_device(span, caller), caller, span.name, number)
        for number, span in enumerate(recording.work)
        for caller in (called.get(span.correlation, NOBODY),)
    ]


def _on_cpu(recording: Recording) -> list[Piece]:
    return [
        Piece(op.start, op.end, _term_on_cpu(caller), caller, op.name, number)
        for number, (op, caller) in enumerate(callers_of_ops(recording))
    ]


def _term_on_cpu(caller: Caller) -> str:
    if any(is_compiling(op) for op in caller.ops):
        return COMPILATION
    term = term_of(caller)
    return (own_code_term(caller.ops) or OTHER) if term == OTHER else term


def _term_on_device(span: Span, caller: Caller) -> str:
    name = span.name
    if is_communication(name):
        return COMMUNICATION
    if (term := fused_term(name)) and caller.phase != OPTIMIZER:
        return term
    if name.startswith("Memcpy"):
        return TERMS["copy"] if "DtoD" in name else COPIES
    if name.startswith("Memset"):
        return FILLS
    if is_conversion(name) and caller.phase != RECOMPUTED:
        return LAYOUT
    term = term_of(caller)
    return (term_of_kernel(name) or OTHER) if term == OTHER else term


def term_of(caller: Caller) -> str:
    """The ledger's term of work: of its phase, or else of its operators."""
    if caller.phase == OPTIMIZER:
        return TERMS["optimizer"]
    return RECOMPUTATION if caller.phase == RECOMPUTED else term_of_ops(caller.ops)


FLOAT8_PRODUCT = "Float8Product"  # of e2e/training/float8.py; its backward begins with it too


def term_of_ops(ops: Sequence[Span]) -> str:
    """The ledger's term of the innermost of these operators that is known."""
    for op in reversed(ops):
        name = op.name.removeprefix("aten::").removeprefix(NODE)
        kind = kind_of_name(name, _types(op))
        if kind == "product":
            if "conv" in name:
                return CONVOLUTIONS
            return ATTENTION if "attention" in name else MATRIX_PRODUCTS
        if kind in TERMS and kind != "other":
            return FLOAT8 if any(op.name.startswith(FLOAT8_PRODUCT) for op in ops) else TERMS[kind]
    return OTHER


def is_product(piece: Piece) -> bool:
    """Whether it is time of a matrix product, a convolution or attention, recomputed ones too."""
    if piece.term == RECOMPUTATION and not is_conversion(piece.name):
        return term_of_ops(piece.caller.ops) in PRODUCT_TERMS
    return piece.term in PRODUCT_TERMS


def _types(op: Span) -> tuple[str, ...]:
    return tuple(map(str, listed(op, "Input type")))


class _Rank(NamedTuple):
    """Which of the pieces that run at one moment it belongs to: the lowest."""

    group: int
    started: int


def _rank(piece: Piece) -> _Rank:
    group = {COMMUNICATION: 1, COPIES: 2, FILLS: 2}.get(piece.term, 0)
    return _Rank(group, -piece.start)  # of nested operators the innermost, which started last


def _uppermost(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The pieces cut so that none overlaps another: at each moment that of the lowest rank."""
    waiting = sorted(pieces, key=lambda p: (p.start, p.end, p.term, p.name, p.caller.module))
    edges = sorted({edge for piece in pieces for edge in (piece.start, piece.end)})
    heap: list[tuple[_Rank, int, Piece]] = []
    number = 0
    last: Piece | None = None
    for at, until in itertools.pairwise(edges):
        while number < len(waiting) and waiting[number].start <= at:
            heapq.heappush(heap, (_rank(waiting[number]), number, waiting[number]))
            number += 1
        while heap and heap[0][2].end <= at:
            heapq.heappop(heap)
        top = heap[0][2] if heap else None
        if last and top and last.end == at and last.number == top.number:
            last = replace(last, end=until)
            continue
        if last:
            yield last
        last = replace(top, start=at, end=until) if top else None
    if last:
        yield last


def _clip(piece: Piece, start: int, end: int) -> Piece:
    return replace(piece, start=max(piece.start, start), end=min(piece.end, end))
