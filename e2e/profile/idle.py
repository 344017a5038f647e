"""What the device waits for while it idles: what the CPU did until it launched the next work.

Of a synchronisation also the line of the user's script, from the Python stack.
"""

from __future__ import annotations

import itertools
import re
import sys
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from e2e.profile.calls import LOADING, NOBODY, NODE, STEP, Caller, callers
from e2e.profile.compiled import is_compiling
from e2e.profile.pieces import Piece
from e2e.profile.reader import Recording, Span
from e2e.results.terms import (
    ALLOCATION,
    BETWEEN,
    COMPILATION,
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
    syncs = sorted(_with_stack(recording), key=lambda found: found[0].start)
    starts = [span.start for span, _ in syncs]
    found: dict[str, int] = defaultdict(int)
    for piece in pieces:
        last = bisect_left(starts, piece.end) - 1  # the call that this time is the price of
        if last >= 0 and (line := _users_line(syncs[last][1])):
            found[line] += piece.ns
    return found


def _with_stack(recording: Recording) -> Iterator[tuple[Span, tuple[Span, ...]]]:
    """Each synchronisation with the Python functions that are open where it begins."""
    syncs = [span for span in recording.launches if idle_term(span) == SYNC]
    wanted = {id(span) for span in syncs}
    lanes = {span.lane for span in syncs}
    spans = [span for span in recording.stack if span.lane in lanes]
    open_now: dict[str, list[Span]] = defaultdict(list)
    for span in sorted([*spans, *syncs], key=lambda span: (span.start, -span.end)):
        inside = [other for other in open_now[span.lane] if other.end > span.start]
        if id(span) in wanted:
            yield span, tuple(inside)
        else:
            inside.append(span)
        open_now[span.lane] = inside


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
