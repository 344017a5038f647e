"""What the device waits for while it idles: what the CPU did until it launched the next work.

Of a synchronisation also the line of the user's script, from the Python stack; and what cuDNN's
searches for kernels at new shapes take.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from e2e.profile.calls import LOADING, NOBODY, NODE, STEP, Caller, callers, open_around
from e2e.profile.compiled import is_compiling
from e2e.profile.operands import shape_words, shapes_of
from e2e.profile.pieces import Partition, Piece
from e2e.profile.reader import Recording, Span, launches_work
from e2e.results.terms import (
    ALLOCATION,
    BETWEEN,
    COMPILATION,
    IDLE,
    LAUNCH,
    LOADER,
    MODULES,
    PYTHON,
    SYNC,
)

_SYNCS = ("Synchronize", "cudaMemcpy", "cuMemcpy")


class Gaps:
    """Divides the time in which nothing runs by what the CPU did until the next launch.

    Gaps must come in the order of time. The main thread and autograd's work in turn, so a wait of
    one is a wait for what the other launches; those of other threads delay no other.
    """

    def __init__(self, recording: Recording) -> None:
        self._work = recording.work
        self._starts = [span.start for span in recording.work]
        self._launch = {s.correlation: s for s in recording.launches if s.correlation}
        self._called = callers(recording)
        steps = [note.lane for note in recording.notes if note.name.startswith(STEP)]
        self._main = steps[0] if steps else ""
        self._trainers = {self._main, *(o.lane for o in recording.ops if o.name.startswith(NODE))}
        waits: dict[str, list[tuple[Span, str]]] = defaultdict(list)
        compiling = (op for op in recording.ops if is_compiling(op))
        for span in (*recording.launches, *recording.notes, *compiling):
            if term := idle_term(span):
                waits[self._group(span.lane)].append((span, term))
        self._waits = {group: sorted(found, key=_begin) for group, found in waits.items()}
        self._past: dict[str, int] = defaultdict(int)  # waits that end before the gap

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

    def _group(self, lane: str) -> str:
        return self._main if lane in self._trainers else lane

    def _next(self, at: int) -> tuple[Span | None, Caller]:
        """The launch of the work that begins at `at`, and its caller: of several, the first."""
        first, last = bisect_left(self._starts, at), bisect_right(self._starts, at)
        known = [work.correlation for work in self._work[first:last] if work.correlation]
        number = min(known, default=0)
        return self._launch.get(number), self._called.get(number, NOBODY)

    def _until(
        self, start: int, end: int, lane: str, usual: str, caller: Caller
    ) -> Iterator[Piece]:
        """What a thread did from `start` to `end`, when it launched: `usual` where nothing else."""
        at, rest = start, usual
        group = self._group(lane)
        waits, first = self._waits.get(group, []), self._past[group]
        while first < len(waits) and waits[first][0].end <= start:
            first += 1
        self._past[group] = first
        for span, term in itertools.islice(waits, first, None):
            if span.start >= end:
                break
            since, until = max(span.start, at), min(span.end, end)
            if until <= at:
                continue  # before the gap, or inside of what came before
            if term == SYNC:
                rest = SYNC  # the device ran dry while the CPU waited; what follows is its price
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
    if is_compiling(span):
        return COMPILATION
    if "Async" not in name and any(word in name for word in _SYNCS):
        return SYNC
    return None


# ---------------------------------------------------------------- lines that wait


CALLED_FROM = "CallFrom"  # "train.py:88", since torch 2.11 or so
# "train.py(80): forward" has the line where the function begins.
_LINE = re.compile(r"(?P<file>[^<].*\.py)(?:\((?P<first>\d+)\): .*|:(?P<line>\d+))", re.DOTALL)
_PACKAGES = re.compile(r"(^|/)(site-packages|dist-packages|python3[.\d]*)/|^torch/")
_OURS = "halfway_watch.py"


def sync_lines(recording: Recording, pieces: Sequence[Piece]) -> Mapping[str, int]:
    """Nanoseconds of these pieces of synchronisation by line ("train.py:88"); {} without a stack.

    Of a path only the file's name is kept.
    """
    waits = [span for span in recording.launches if idle_term(span) == SYNC]
    lanes = {span.lane for span in waits}
    stack = [span for span in recording.stack if span.lane in lanes]
    syncs = sorted(open_around(waits, stack, math.inf), key=lambda found: found[0].start)
    starts = [span.start for span, _ in syncs]
    found: dict[str, int] = defaultdict(int)
    for piece in pieces:
        last = bisect_left(starts, piece.end) - 1  # the call that this time is the price of
        if last >= 0 and (line := _users_line(syncs[last][1])):
            found[line] += piece.ns
    return found


def _users_line(stack: Sequence[Span]) -> str:
    """The innermost line outside torch, the standard library and other packages; "" for none."""
    for span in reversed(stack):
        for text in (span.args.get(CALLED_FROM), span.name):
            match = _LINE.fullmatch(text) if isinstance(text, str) else None
            if match and _is_users(match["file"]):
                return f"{PurePath(match['file']).name}:{match['line'] or match['first']}"
    return ""


def _is_users(file: str) -> bool:
    path = PurePath(file)
    library = len(path.parts) == 1 and path.stem in sys.stdlib_module_names
    return not (library or path.name == _OURS or _PACKAGES.search(file))


# ---------------------------------------------------------------- searches for kernels


# The operators in which cuDNN and MIOpen search.
_SEARCHES = re.compile(r"aten::((cudnn|miopen)_convolution\w*|convolution_backward)")
MANY_KERNELS = 16  # of one call: with conversions of layout, forward or backward have fewer
_SHAPE = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")


@dataclass(frozen=True)
class Searches:
    """What all searches in the steps took, in ns; how many there were, and at which shapes."""

    ns: int
    count: int
    shapes: tuple[str, ...]


def searches(recording: Recording, parts: Partition) -> Searches:
    """The searches in the steps: calls at a shape that came for the first time.

    Candidates that ran and waits within such a call count; what else ran meanwhile does not.
    """
    ops = _searching(recording) if recording.facts.get("cudnn_benchmark") is not False else []
    inside = [op for op in ops if parts.start <= op.start < parts.end]
    shapes = dict.fromkeys(shape_words(shapes_of(op)[0]) for op in inside if shapes_of(op))
    return Searches(sum(_searched_ns(op, parts) for op in inside), len(inside), tuple(shapes))


def _searching(recording: Recording) -> list[Span]:
    """The first calls at a shape that waited for candidates, or launched many."""
    seen: set[tuple[str, ...]] = set()
    new: list[Span] = []
    for op in recording.ops:
        if _SEARCHES.fullmatch(op.name):
            key = (op.name, *(str(op.args.get(name)) for name in _SHAPE))
            if key not in seen:
                new.append(op)
            seen.add(key)
    starts = [launch.start for launch in recording.launches]
    found: list[Span] = []
    for op in new:
        calls = recording.launches[bisect_right(starts, op.start) : bisect_right(starts, op.end)]
        own = [call for call in calls if call.lane == op.lane]
        waits = Counter(idle_term(call) for call in own)[SYNC]
        if waits or sum(launches_work(call.name) for call in own) > MANY_KERNELS:
            found.append(op)
    return found


def _searched_ns(op: Span, parts: Partition) -> int:
    """Nanoseconds within a call in which nothing ran, or its own work."""
    starts = [piece.start for piece in parts.pieces]
    first = max(0, bisect_right(starts, op.start) - 1)
    total = 0
    for piece in parts.pieces[first : bisect_right(starts, op.end)]:
        if piece.term in IDLE or any(one is op for one in piece.caller.ops):
            total += max(0, min(piece.end, op.end) - max(piece.start, op.start))
    return total
