"""How fast normalisation in half precision moves its bytes, against the memory of the card."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from e2e.profile.operands import HALF, shapes_of
from e2e.profile.partition import Piece, term_of_ops
from e2e.profile.reader import Span, listed
from e2e.results.terms import TERMS

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
    return NormTime(sum(times[id(op)] for op in long), sum(map(_bytes, long)), types)


def _operator(piece: Piece) -> Span | None:
    """The innermost operator that normalises a tensor in half precision."""
    for op in reversed(piece.caller.ops):
        if shapes_of(op) and term_of_ops([op]) == TERMS["norm"]:
            return op if HALF & set(_types(op)) else None
    return None


def _types(op: Span) -> list[str]:
    return [str(name) for name in listed(op, "Input type")]


def _bytes(op: Span) -> int:
    forward, backward = next((n for name, n in PASSES.items() if name in op.name), OTHER_PASSES)
    elements = max(math.prod(shape) for shape in shapes_of(op))
    return HALF_BYTES * elements * (backward if "backward" in op.name else forward)
