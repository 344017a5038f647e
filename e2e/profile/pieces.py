"""The time of whole steps in pieces: terms, who caused them, and what each operator cost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from e2e.profile.calls import NOBODY, Caller
from e2e.profile.compiled import fused_words
from e2e.results.terms import ALLOCATION, IDLE, LAUNCH

LAUNCHING = (LAUNCH, ALLOCATION)  # what the device waits for while the CPU is launching


@dataclass(frozen=True)
class Piece:
    """Some of the time of the steps: from `start` to `end` in ns, its term, and who caused it.

    Pieces of one kernel, copy or fill have one `number`; -1 for idle time.
    """

    start: int
    end: int
    term: str
    caller: Caller = NOBODY
    name: str = ""
    number: int = -1

    @property
    def ns(self) -> int:
        """How long it is, in nanoseconds."""
        return self.end - self.start

    @property
    def what(self) -> str:
        """What a fused kernel computes, or else the operator, or else the kernel's name."""
        ops = self.caller.ops
        return fused_words(self.name) or (ops[-1].name if ops else self.name)


@dataclass(frozen=True)
class Launching:
    """What one operator of a module cost in one phase, over all steps.

    `busy_ns` is the time of its `kernels`, `waited_ns` that in which the device idled until the CPU
    had launched them (the terms CPU launch and memory allocation).
    """

    phase: str
    module: str
    operator: str
    kernels: int
    busy_ns: int
    waited_ns: int


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
                found[piece.caller.module or piece.what] += piece.ns
        return sorted(found.items(), key=lambda item: -item[1])

    def launching(self) -> tuple[Launching, ...]:
        """What each operator computed, and what the device waited for it; the longest wait first.

        Operators are the innermost around a launch, "" where none is known. The waits add up to the
        terms CPU launch and memory allocation, the work to all time in which the device worked.
        """
        found: dict[tuple[str, str, str], list[Piece]] = defaultdict(list)
        for piece in self.pieces:
            if piece.term not in IDLE or piece.term in LAUNCHING:
                ops = piece.caller.ops
                operator = ops[-1].name if ops else ""
                found[piece.caller.phase, piece.caller.module, operator].append(piece)
        made = [Launching(*place, *_cost(pieces)) for place, pieces in found.items()]
        return tuple(sorted(made, key=lambda one: (-one.waited_ns, -one.busy_ns, one.operator)))

    @property
    def terms(self) -> Mapping[str, int]:
        """Nanoseconds in all steps by term, the largest first. They add up to the window."""
        found: dict[str, int] = defaultdict(int)
        for piece in self.pieces:
            found[piece.term] += piece.ns
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def _cost(pieces: Sequence[Piece]) -> tuple[int, int, int]:
    """(kernels, their nanoseconds, nanoseconds that the device waited) of one operator."""
    busy = [piece for piece in pieces if piece.term not in IDLE]
    waited = sum(piece.ns for piece in pieces if piece.term in IDLE)
    return len({piece.number for piece in busy}), sum(piece.ns for piece in busy), waited
