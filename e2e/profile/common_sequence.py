"""The longest common sequence of two lists, by E. W. Myers, "An O(ND) Difference Algorithm and Its
Variations", Algorithmica 1, 1986. difflib's blocks are not the longest where lists repeat, and the
operations of a network's layers do.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher

MOST_EDITS = 1000  # beyond it the two have little to do with each other


def in_common(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[int]:
    """The places in `one` of a longest common sequence; of a shorter one beyond MOST_EDITS."""
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
