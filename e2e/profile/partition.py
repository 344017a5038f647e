"""Divides the time of whole steps: every nanosecond belongs to exactly one term.

While the device works, the term is the kind of work; where several streams work, computing comes
before communication, and that before copies, so that the latter count only where nothing hides
them. While it idles, the term is what the CPU did until it launched the next work.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from e2e.profile.calls import (
    LOADING,
    NOBODY,
    NODE,
    OPTIMIZER,
    RECOMPUTED,
    STEP,
    Caller,
    callers,
    callers_of_ops,
)
from e2e.profile.reader import Recording, Span, launches_work, listed
from e2e.results.terms import (
    ALLOCATION,
    ATTENTION,
    BETWEEN,
    COMMUNICATION,
    COMPILATION,
    CONVOLUTIONS,
    COPIES,
    FILLS,
    IDLE,
    LAUNCH,
    LAYOUT,
    LOADER,
    MATRIX_PRODUCTS,
    MODULES,
    OTHER,
    PRODUCT_TERMS,
    PYTHON,
    RECOMPUTATION,
    SYNC,
    TERMS,
)
from kernels.aten import kind_of_name
from microbench.device.profiler import is_conversion
from microbench.errors import UserError

MAX_DROPPED = 0.01  # of the launches: beyond it a trace says too little

_SYNCS = ("Synchronize", "cudaMemcpy", "cuMemcpy", "StreamWaitEvent")


class NothingSeen(UserError):
    """A trace of which nothing can be told: no whole step, no work, or too much of it lost."""


@dataclass(frozen=True)
class Piece:
    """Some of the time of the steps: from `start` to `end` in ns, its term, and who caused it."""

    start: int
    end: int
    term: str
    caller: Caller = NOBODY
    name: str = ""

    @property
    def ns(self) -> int:
        """How long it is, in nanoseconds."""
        return self.end - self.start


@dataclass(frozen=True)
class Partition:
    """Whole steps from `start` to `end` in ns, divided into `pieces` without gap or overlap.

    `on_cpu`: nothing ran on a device, so the CPU's own operators are the work.
    """

    start: int
    end: int
    steps: int
    pieces: tuple[Piece, ...]
    on_cpu: bool

    @property
    def step_ns(self) -> float:
        """Nanoseconds per step."""
        return (self.end - self.start) / self.steps

    @property
    def busy(self) -> float:
        """The share of the time in which the device worked."""
        return sum(p.ns for p in self.pieces if p.term not in IDLE) / (self.end - self.start)

    def by_place(self, term: str) -> list[tuple[str, int]]:
        """(module or else operator, nanoseconds) of a term, the largest first."""
        found: dict[str, int] = defaultdict(int)
        for piece in self.pieces:
            if piece.term == term:
                ops = piece.caller.ops
                found[piece.caller.module or (ops[-1].name if ops else piece.name)] += piece.ns
        return sorted(found.items(), key=lambda item: -item[1])

    @property
    def terms(self) -> Mapping[str, int]:
        """Nanoseconds in all steps by term, the largest first. They add up to the window."""
        found: dict[str, int] = defaultdict(int)
        for piece in self.pieces:
            found[piece.term] += piece.ns
        return dict(sorted(found.items(), key=lambda item: -item[1]))


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
    gaps = _Gaps(recording)
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
    ends = [_work_end(recording, note.end) for note in notes]
    lead_in = recording.facts.get("lead_in", 1)
    wanted = recording.facts.get("traced", max(1, len(ends) - 1))
    if not isinstance(lead_in, int) or not isinstance(wanted, int) or lead_in < 1 or wanted < 1:
        raise UserError("what halfway_watch wrote into this trace is damaged")
    return ends[lead_in - 1 : lead_in + wanted]


def _work_end(recording: Recording, cpu_end: int) -> int:
    """When the work that was launched up to `cpu_end` is done, in ns."""
    if not recording.work:
        return cpu_end
    early = {span.correlation for span in recording.launches if span.start < cpu_end}
    return max((span.end for span in recording.work if span.correlation in early), default=cpu_end)


# ---------------------------------------------------------------- work


def on_device(recording: Recording) -> list[Piece]:
    """Each kernel, copy and fill as it ran, with its term; several may run at once."""
    called = callers(recording)
    return [
        Piece(span.start, span.end, _term_on_device(span, caller), caller, span.name)
        for span in recording.work
        for caller in (called.get(span.correlation, NOBODY),)
    ]


def _on_cpu(recording: Recording) -> list[Piece]:
    return [
        Piece(op.start, op.end, term_of(caller), caller, op.name)
        for op, caller in callers_of_ops(recording)
    ]


def _term_on_device(span: Span, caller: Caller) -> str:
    name = span.name
    if name.startswith(("nccl", "rccl")):
        return COMMUNICATION
    if name.startswith("Memcpy"):
        return TERMS["copy"] if "DtoD" in name else COPIES
    if name.startswith("Memset"):
        return FILLS
    if is_conversion(name) and caller.phase != RECOMPUTED:
        return LAYOUT
    return term_of(caller)


def term_of(caller: Caller) -> str:
    """The ledger's term of work: of its phase, or else of its operators."""
    if caller.phase == OPTIMIZER:
        return TERMS["optimizer"]
    return RECOMPUTATION if caller.phase == RECOMPUTED else term_of_ops(caller.ops)


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
            return TERMS[kind]
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
        if last and top and last.end == at and (last.caller, last.name) == (top.caller, top.name):
            last = Piece(last.start, until, last.term, last.caller, last.name)
            continue
        if last:
            yield last
        last = Piece(at, until, top.term, top.caller, top.name) if top else None
    if last:
        yield last


def _clip(piece: Piece, start: int, end: int) -> Piece:
    return Piece(max(piece.start, start), min(piece.end, end), piece.term, piece.caller, piece.name)


# ---------------------------------------------------------------- gaps


class _Gaps:
    """Divides the time in which nothing runs by what the CPU did until the next launch."""

    def __init__(self, recording: Recording) -> None:
        self._starts = [span.start for span in recording.work]
        self._work = recording.work
        self._launch = {s.correlation: s for s in recording.launches if s.correlation}
        self._called = callers(recording)
        waits: dict[str, list[tuple[Span, str]]] = defaultdict(list)
        for span in (*recording.launches, *recording.notes):
            if term := idle_term(span):
                waits[span.lane].append((span, term))
        self._waits = {lane: sorted(found, key=_begin) for lane, found in waits.items()}
        steps = [note.lane for note in recording.notes if note.name.startswith(STEP)]
        self._main = steps[0] if steps else ""

    def divide(self, start: int, end: int) -> Iterator[Piece]:
        """The gap from `start` to `end` in ns as pieces without gap or overlap."""
        if not self._work:
            yield from self._until(start, end, self._main, PYTHON, NOBODY)
            return
        launch, caller = self._next(end)
        if launch is None:
            yield Piece(start, end, LAUNCH)
            return
        ready = min(max(launch.start, start), end)
        yield from self._until(start, ready, launch.lane, LAUNCH, caller)
        if ready < end:
            # Launched, and not yet begun: the way to the device, or what it waits for there.
            yield Piece(ready, end, LAUNCH if launch.start > start else BETWEEN, caller)

    def _next(self, at: int) -> tuple[Span | None, Caller]:
        """The launch of the work that begins at `at`, and its caller."""
        place = bisect_right(self._starts, at) - 1
        if place < 0 or self._starts[place] != at:
            return None, NOBODY
        number = self._work[place].correlation
        return self._launch.get(number), self._called.get(number, NOBODY)

    def _until(
        self, start: int, end: int, lane: str, usual: str, caller: Caller
    ) -> Iterator[Piece]:
        """What a thread did from `start` to `end`, when it launched: `usual` where nothing else."""
        at, rest = start, usual
        for span, term in self._waits.get(lane, ()):
            if span.start >= end:
                break
            if span.end <= start:
                continue
            if term == SYNC:
                rest = SYNC  # the device ran dry while the CPU waited; what follows is its price
            since, until = max(span.start, at), min(span.end, end)
            if until <= at:
                continue
            if since > at:
                yield Piece(at, since, usual, caller)
            yield Piece(since, until, term, caller, span.name)
            at = until
        if at < end:
            yield Piece(at, end, rest, caller)


def _begin(found: tuple[Span, str]) -> int:
    return found[0].start


def idle_term(span: Span) -> str | None:
    """The term of the CPU's time in a call of the runtime or a note; None for others."""
    name = span.name
    if name.startswith(LOADING):
        return LOADER
    if any(word in name for word in ("Malloc", "cudaFree", "HostAlloc", "MemCreate", "MemMap")):
        return ALLOCATION
    if any(word in name for word in ("ModuleLoad", "LibraryLoad", "LibraryGet")):
        return MODULES
    if name.startswith(("Torch-Compiled", "TorchDynamo")):
        return COMPILATION
    if "Async" not in name and any(word in name for word in _SYNCS):
        return SYNC
    return None
