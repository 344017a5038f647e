"""Two recordings of one training held against each other: what matches, and what changed.

Steps are matched one with another. Within each phase and module of a step, operations are matched
in order by their term and shapes, whatever their types. What exists for a type's, a layout's or an
optimizer's sake has no counterpart: it is in terms of its own, and not counted here.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from fractions import Fraction

from e2e.profile.calls import ELSEWHERE, FORWARD, STEP
from e2e.profile.operands import shapes_of
from e2e.profile.partition import Partition, Piece
from e2e.profile.products import product_operator
from e2e.profile.reader import Recording, Span
from e2e.results.terms import (
    COMMUNICATION,
    COPIES,
    FILLS,
    IDLE,
    LAYOUT,
    PRODUCT_TERMS,
    RECOMPUTATION,
    TERMS,
)

ALONE = frozenset((
    *IDLE, COMMUNICATION, COPIES, FILLS, RECOMPUTATION, LAYOUT,
    *(TERMS[kind] for kind in ("cast", "copy", "optimizer", "scaler")),
))  # fmt: skip
FACTORS, ARGUMENT = 3, 1  # shapes that tell a product from another, and any other operation

Place = tuple[str, str]  # module, phase
Key = tuple[object, ...]


@dataclass(frozen=True)
class LayerTime:
    """The GPU's time in one phase of a module: `base_ns` and `other_ns` in all steps of each."""

    module: str
    phase: str
    base_ns: int
    other_ns: int


@dataclass(frozen=True)
class Aligned:
    """How far two recordings match: `matched_ns` of `counted_ns`, of the base and of the other.

    `layers` hold all work of both, the largest change first. `alike` is the share of the work whose
    shapes the other has too, wherever: of products, if both have some.
    """

    matched_ns: tuple[int, int]
    counted_ns: tuple[int, int]
    alike: float
    layers: tuple[LayerTime, ...] = ()

    @property
    def share(self) -> float:
        """The matched share of the recording that matches less; 1 where nothing is counted."""
        pairs = zip(self.matched_ns, self.counted_ns, strict=True)
        return min((matched / counted for matched, counted in pairs if counted), default=1.0)


@dataclass(frozen=True)
class Side:
    """A recording and its steps."""

    recording: Recording
    parts: Partition

    @property
    def has_shapes(self) -> bool:
        """Whether the profiler noted the operators' shapes."""
        return any(shapes_of(op) for op in self.recording.ops)

    @property
    def has_modules(self) -> bool:
        """Whether modules have names in it."""
        return any(piece.caller.module for piece in self.parts.pieces)


def align(base: Side, other: Side) -> Aligned | None:
    """How far two recordings match; None where one has no shapes, or no operators with its work."""
    if not base.has_shapes or not other.has_shapes:
        return None
    named = base.has_modules and other.has_modules
    steps = [_steps(side, named) for side in (base, other)]
    matched = _matched_ns(steps[0], steps[1]), _matched_ns(steps[1], steps[0])
    counted = _counted_ns(steps[0]), _counted_ns(steps[1])
    if not all(counted):
        return None
    return Aligned(matched, counted, _alike(*steps), _layers(base, other) if named else ())


def _alike(base: Sequence[_Step], other: Sequence[_Step]) -> float:
    """The share of the work with a shape that is in both, of the recording with the less of it."""
    times = [_by_key(steps) for steps in (base, other)]
    products = [
        {key: ns for key, ns in found.items() if key[0] in PRODUCT_TERMS} for found in times
    ]
    if all(products):
        times = products
    common = times[0].keys() & times[1].keys()
    return min(sum(found[key] for key in common) / sum(found.values()) for found in times)


def _by_key(steps: Iterable[_Step]) -> Mapping[Key, int]:
    found: dict[Key, int] = defaultdict(int)
    for op in (op for step in steps for ops in step.values() for op in ops):
        found[op.key] += op.ns
    return found


# ---------------------------------------------------------------- operations in order


@dataclass
class _Operation:
    key: Key
    ns: int = 0


_Step = Mapping[Place, Sequence[_Operation]]


def _steps(side: Side, named: bool) -> list[_Step]:
    """The operations of each step by place, in the order in which the CPU began them."""
    starts = sorted(note.start for note in side.recording.notes if note.name.startswith(STEP))
    found: dict[int, tuple[Span, Place, _Operation]] = {}
    for piece in side.parts.pieces:
        if piece.term not in ALONE and piece.caller.ops:
            op, shapes = _operator(piece)
            entry = (op, _place(piece, named), _Operation((piece.term, shapes)))
            found.setdefault(id(op), entry)[2].ns += piece.ns
    steps: dict[int, dict[Place, list[_Operation]]] = defaultdict(lambda: defaultdict(list))
    for op, place, operation in sorted(found.values(), key=lambda entry: entry[0].start):
        steps[bisect_right(starts, op.start)][place].append(operation)
    return [steps[number] for number in sorted(steps)]


def _operator(piece: Piece) -> tuple[Span, Key]:
    """The operator that a piece is matched by, and those of its shapes that tell it."""
    ops, product = piece.caller.ops, piece.term in PRODUCT_TERMS
    op = product_operator(piece.caller) if product else None
    op = op or next((op for op in reversed(ops) if shapes_of(op)), ops[-1])
    shapes = shapes_of(op)[: FACTORS if product else ARGUMENT]
    return op, tuple(map(tuple, shapes))


def _place(piece: Piece, named: bool) -> Place:
    if named:
        return piece.caller.module, piece.caller.phase
    # Only modules tell the forward pass from what is beside it.
    return "", FORWARD if piece.caller.phase == ELSEWHERE else piece.caller.phase


def _counted_ns(steps: Iterable[_Step]) -> int:
    return sum(op.ns for step in steps for ops in step.values() for op in ops)


def _matched_ns(steps: Sequence[_Step], others: Sequence[_Step]) -> int:
    """Nanoseconds of the first's operations that the other has too; its steps come round again."""
    if not others:
        return 0
    return sum(
        _common_ns(ops, other.get(place, ()))
        for step, other in zip(steps, itertools.cycle(others), strict=False)
        for place, ops in step.items()
    )


def _common_ns(ops: Sequence[_Operation], others: Sequence[_Operation]) -> int:
    places = in_common([op.key for op in ops], [op.key for op in others])
    return sum(ops[place].ns for place in places)


# ---------------------------------------------------------------- layers


def _layers(base: Side, other: Side) -> tuple[LayerTime, ...]:
    """All work of both by module and phase: the changes add up to that of the GPU's work."""
    times = [_by_place(side.parts) for side in (base, other)]
    places = dict.fromkeys([*times[0], *times[1]])
    rows = [LayerTime(*place, times[0].get(place, 0), times[1].get(place, 0)) for place in places]
    steps = base.parts.steps, other.parts.steps

    def largest(row: LayerTime) -> tuple[Fraction, str, str]:
        change = Fraction(row.other_ns, steps[1]) - Fraction(row.base_ns, steps[0])
        return -abs(change), row.module, row.phase

    return tuple(sorted(rows, key=largest))


def _by_place(parts: Partition) -> Mapping[Place, int]:
    found: dict[Place, int] = defaultdict(int)
    for piece in parts.pieces:
        if piece.term not in IDLE:
            found[piece.caller.module, piece.caller.phase] += piece.ns
    return found


# ---------------------------------------------------------------- the longest common sequence


MOST_EDITS = 1000  # beyond it the two have little to do with each other


def in_common(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[int]:
    """The places in `one` of a longest common sequence; of a shorter one beyond MOST_EDITS.

    By E. W. Myers, "An O(ND) Difference Algorithm and Its Variations", Algorithmica 1, 1986.
    difflib's blocks are not the longest where lists repeat, and operations of layers do.
    """
    start, least = 0, min(len(one), len(other))
    while start < least and one[start] == other[start]:
        start += 1
    end = 0
    while end < least - start and one[-1 - end] == other[-1 - end]:
        end += 1
    middle = one[start : len(one) - end], other[start : len(other) - end]
    found = _places(*middle)
    rest = range(len(one) - end, len(one))
    return [*range(start), *(start + place for place in found), *rest]


def _places(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[int]:
    """The places of what two lists have in common, in order."""
    if not one or not other:
        return []
    reached = {1: 0}  # by diagonal: the place in `one` that so many edits reach at most
    before: list[dict[int, int]] = []
    for edits in range(min(MOST_EDITS, len(one) + len(other)) + 1):
        before.append(reached.copy())
        for diagonal in range(-edits, edits + 1, 2):
            x = _next(reached, diagonal, edits)
            y = x - diagonal
            while x < len(one) and y < len(other) and one[x] == other[y]:
                x, y = x + 1, y + 1
            reached[diagonal] = x
            if x >= len(one) and y >= len(other):
                return _walked_back(before, len(one), len(other))
    blocks = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    return [place for block in blocks for place in range(block.a, block.a + block.size)]


def _next(reached: dict[int, int], diagonal: int, edits: int) -> int:
    """Where one more edit starts on a diagonal: an insertion from above, or a deletion."""
    if _inserts(reached, diagonal, edits):
        return reached[diagonal + 1]
    return reached[diagonal - 1] + 1


def _inserts(reached: dict[int, int], diagonal: int, edits: int) -> bool:
    if diagonal in (-edits, edits):
        return diagonal == -edits
    return reached[diagonal - 1] < reached[diagonal + 1]


def _walked_back(before: Sequence[dict[int, int]], x: int, y: int) -> list[int]:
    """The places of the matches on the way to the ends `x` and `y`."""
    found: list[int] = []
    for edits in range(len(before) - 1, -1, -1):
        diagonal = x - y
        step = 1 if _inserts(before[edits], diagonal, edits) else -1
        from_x = before[edits][diagonal + step] if edits else 0
        from_y = from_x - (diagonal + step) if edits else 0
        while x > from_x and y > from_y:
            x, y = x - 1, y - 1
            found.append(x)
        x, y = from_x, from_y
    return found[::-1]
