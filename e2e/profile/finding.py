"""One cause of a slow step, and what the rules that find causes share.

The rules are in findings.py and paired.py; proofs.py says what was gained where that was tried.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from e2e.profile.gains import Gain
from e2e.profile.partition import Partition, Piece
from e2e.profile.reader import Recording, Span
from e2e.results.terms import IDLE, LAUNCH, SYNC
from kernels.gpu_cards import Card
from microbench.roofline.rates import Rates

LEAST_SHARE = 0.03  # of a step: less is no finding
MOST_PLACES = 3
PROVEN, LIKELY, POSSIBLE = "proven", "likely", "possible"  # by a trial; by the trace; by a rule
CPU_TERMS = (LAUNCH, SYNC)  # idle time in which the CPU works, slowed by the profiler


@dataclass(frozen=True)
class Finding:
    """One cause: `ms` a recorded step that it costs, where it is, and what to try against it.

    `saves_ms` is what a step without the profiler can gain at most: without what the profiler added
    to it, and without what a fix leaves by the card's datasheet. `cause` is its name among what can
    be tried, "" for what cannot. `gain` was measured, or `unproven` says why it was not.
    """

    title: str
    ms: float
    share: float
    where: str
    remedy: str
    saves_ms: float | None = None
    cause: str = ""
    status: str = LIKELY
    gain: Gain | None = None
    unproven: str = ""

    @property
    def most_ms(self) -> float:
        """Milliseconds a step that a fix saves at most, as far as known."""
        return self.ms if self.saves_ms is None else self.saves_ms


@dataclass(frozen=True)
class Seen:
    """A recording and its partition, as the rules below look at them."""

    recording: Recording
    parts: Partition
    card: Card | None = None
    rates: Rates | None = None

    @property
    def slowed(self) -> float:
        """The share of CPU_TERMS that is in a step without the profiler too."""
        bare_s = self.recording.bare_step_s
        cpu_ns = sum(self.parts.terms.get(term, 0) for term in CPU_TERMS)
        if bare_s is None or not cpu_ns:
            return 1.0
        added_ns = self.parts.steps * (self.parts.step_ns - 1e9 * bare_s)
        return min(1.0, max(0.0, 1 - added_ns / cpu_ns))

    def most_ms(self, idle: bool) -> float:
        """What a step can lose at most: all of it, or the time in which the GPU idles.

        The profiler slows the CPU, so that it can show more than a step without it takes.
        """
        busy_ms = sum(self.ms(ns) for term, ns in self.parts.terms.items() if term not in IDLE)
        whole_ms = 1e3 * (self.recording.bare_step_s or self.parts.step_ns / 1e9)
        return max(0.0, whole_ms - busy_ms if idle else whole_ms)

    def ms(self, ns: int) -> float:
        """Milliseconds per step from nanoseconds in all steps."""
        return ns / self.parts.steps / 1e6

    def inside(self, spans: Iterable[Span]) -> Iterator[Span]:
        """Those that begin in the steps."""
        return (s for s in spans if self.parts.start <= s.start < self.parts.end)


def ranked(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Proven ones first; of these and of the others the costliest first."""
    return tuple(sorted(found, key=_rank))


def _rank(one: Finding) -> tuple[bool, float]:
    proven = one.status == PROVEN
    return not proven, -(one.gain.ms if proven and one.gain else one.most_ms)


def finding_of(
    seen: Seen, title: str, took: int | Sequence[Piece], where: str, remedy: str, cause: str = "",
    status: str = LIKELY, *, cpu_ns: int = 0, left_ns: float = 0, idle: bool = False,
) -> Iterator[Finding]:  # fmt: skip
    """A cause that took these nanoseconds, or these pieces, in all steps.

    `cpu_ns` of it is of CPU_TERMS, and a fix leaves `left_ns`. `idle`: the GPU idles in all of it.
    """
    ns = took if isinstance(took, int) else sum(piece.ns for piece in took)
    if ns > 0:
        share = ns / (seen.parts.end - seen.parts.start)
        saved_ns = ns - left_ns - (1 - seen.slowed) * cpu_ns
        saves_ms = min(seen.most_ms(idle), max(0.0, saved_ns / seen.parts.steps / 1e6))
        yield Finding(title, seen.ms(ns), share, where, remedy, saves_ms, cause, status)


def cpu_ns_of(pieces: Iterable[Piece]) -> int:
    return sum(piece.ns for piece in pieces if piece.term in CPU_TERMS)


def places_of(seen: Seen, pieces: Iterable[Piece], name: Callable[[Piece], str]) -> str:
    """The places where most of this time is: "layer1.0.conv1 0.41 ms, …"."""
    found: dict[str, int] = defaultdict(int)
    for piece in pieces:
        found[name(piece)] += piece.ns
    return largest_of(seen, found)


def largest_of(seen: Seen, found: Mapping[str, int]) -> str:
    largest = sorted(((ns, place) for place, ns in found.items() if place), reverse=True)
    return ", ".join(f"{place} {seen.ms(ns):.3g} ms" for ns, place in largest[:MOST_PLACES])


def module_of(piece: Piece) -> str:
    return piece.caller.module


def layer_of(piece: Piece) -> str:
    """Its module or, where that is not known, its operator."""
    return piece.caller.module or (piece.caller.ops[-1].name if piece.caller.ops else "")


def pieces_of(seen: Seen, term: str) -> list[Piece]:
    return [piece for piece in seen.parts.pieces if piece.term == term]
