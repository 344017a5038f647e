"""cuDNN's search for kernels at shapes that are new in a step: its time on the CPU and the GPU."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

from e2e.profile.idle import idle_term
from e2e.profile.operands import shape_words, shapes_of
from e2e.profile.partition import Partition
from e2e.profile.reader import Recording, Span, launches_work
from e2e.results.terms import IDLE, SYNC

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
    return Searches(sum(_ns(op, parts) for op in inside), len(inside), tuple(shapes))


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


def _ns(op: Span, parts: Partition) -> int:
    """Nanoseconds within a call in which nothing ran, or its own work."""
    starts = [piece.start for piece in parts.pieces]
    first = max(0, bisect_right(starts, op.start) - 1)
    total = 0
    for piece in parts.pieces[first : bisect_right(starts, op.end)]:
        if piece.term in IDLE or any(one is op for one in piece.caller.ops):
            total += max(0, min(piece.end, op.end) - max(piece.start, op.start))
    return total
