"""What in a divided step costs time: causes with milliseconds, where they are, and what to try.

A trace alone proves no gain. So each finding says what was seen and what it can cost at most; a fix
has to be measured.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from e2e.profile.calls import OPTIMIZER
from e2e.profile.operands import ALIGNED, HALF, SINGLE, misaligned, types_of
from e2e.profile.partition import Partition, Piece, is_product
from e2e.profile.reader import Recording, Span, launches_work
from e2e.profile.sync_lines import sync_lines
from e2e.results.terms import (
    ALLOCATION,
    COMMUNICATION,
    COMPILATION,
    COPIES,
    LAUNCH,
    LAYOUT,
    LOADER,
    MODULES,
    RECOMPUTATION,
    SYNC,
    TERMS,
)

LEAST_SHARE = 0.03  # of a step: less is no finding
MOST_PLACES = 3
MANY_UPDATES = 20  # kernels of an optimizer in a step
SMALL_NS = 10_000  # a kernel this short does little


@dataclass(frozen=True)
class Finding:
    """One cause: `ms` a step that it costs at most, where it is, and what to try against it."""

    title: str
    ms: float
    share: float
    where: str
    remedy: str


@dataclass(frozen=True)
class Seen:
    """A recording and its partition, as the rules below look at them."""

    recording: Recording
    parts: Partition

    def ms(self, ns: int) -> float:
        """Milliseconds per step from nanoseconds in all steps."""
        return ns / self.parts.steps / 1e6

    def inside(self, spans: Iterable[Span]) -> Iterator[Span]:
        """Those that begin in the steps."""
        return (s for s in spans if self.parts.start <= s.start < self.parts.end)


def findings(
    recording: Recording, parts: Partition, rules: Sequence[Rule] | None = None
) -> tuple[Finding, ...]:
    """Every cause that costs at least LEAST_SHARE of a step, the costliest first.

    By these `rules`, or by all.
    """
    seen = Seen(recording, parts)
    found = [finding for rule in (RULES if rules is None else rules) for finding in rule(seen)]
    return tuple(sorted((f for f in found if f.share >= LEAST_SHARE), key=lambda f: -f.ms))


def not_the_cause(parts: Partition) -> tuple[tuple[str, float], ...]:
    """(what users suspect, its share of a step) for what takes less than LEAST_SHARE."""
    whole = parts.end - parts.start
    suspects = (LOADER, SYNC, ALLOCATION, COPIES, TERMS["cast"], LAYOUT, COMMUNICATION)
    shares = [(name, parts.terms.get(name, 0) / whole) for name in suspects]
    return tuple((name, share) for name, share in shares if share < LEAST_SHARE)


def _finding(seen: Seen, title: str, ns: int, where: str, remedy: str) -> Iterator[Finding]:
    if ns > 0:
        share = ns / (seen.parts.end - seen.parts.start)
        yield Finding(title, seen.ms(ns), share, where, remedy)


def _places(seen: Seen, pieces: Iterable[Piece], name: Callable[[Piece], str]) -> str:
    """The places where most of this time is: "layer1.0.conv1 0.41 ms, …"."""
    found: dict[str, int] = defaultdict(int)
    for piece in pieces:
        found[name(piece)] += piece.ns
    return _largest(seen, found)


def _largest(seen: Seen, found: Mapping[str, int]) -> str:
    largest = sorted(((ns, place) for place, ns in found.items() if place), reverse=True)
    return ", ".join(f"{place} {seen.ms(ns):.3g} ms" for ns, place in largest[:MOST_PLACES])


def _module(piece: Piece) -> str:
    return piece.caller.module


def _operator(piece: Piece) -> str:
    return piece.caller.ops[-1].name if piece.caller.ops else ""


def _of(seen: Seen, term: str) -> list[Piece]:
    return [piece for piece in seen.parts.pieces if piece.term == term]


# ---------------------------------------------------------------- rules


IN_STEPS, LATER = "inside the steps", "record later steps: --after"
# Terms that are causes by themselves: title, where, remedy.
PLAIN = {
    LOADER: (
        "data loading", "the next batch is not ready when the step needs it",
        "more loader workers, pin_memory, or less work for each sample",
    ),
    ALLOCATION: (
        "memory allocation", "cudaMalloc or cudaFree inside the steps",
        "PYTORCH_ALLOC_CONF=expandable_segments:True, or inputs of fewer shapes",
    ),
    MODULES: ("loading of kernels", IN_STEPS, LATER),
    COMPILATION: ("compilation", IN_STEPS, LATER),
    COMMUNICATION: (
        "communication that nothing hides", "between GPUs",
        "larger buckets, a compressed gradient, or more work for each exchange",
    ),
    RECOMPUTATION: (
        "recomputation of activations", "checkpointing, in the backward pass",
        "checkpoint fewer blocks, as far as memory allows, or only what is cheap to repeat",
    ),
}  # fmt: skip


def _plain(seen: Seen) -> Iterator[Finding]:
    for term, (title, where, remedy) in PLAIN.items():
        yield from _finding(seen, title, seen.parts.terms.get(term, 0), where, remedy)


def _launch(seen: Seen) -> Iterator[Finding]:
    ns = seen.parts.terms.get(LAUNCH, 0)
    if seen.parts.on_cpu:
        return
    launches = sum(launches_work(span.name) for span in seen.inside(seen.recording.launches))
    short = sum(work.ns < SMALL_NS for work in seen.inside(seen.recording.work))
    where = (
        f"{launches / seen.parts.steps:,.0f} launches a step, "
        f"{short / seen.parts.steps:,.0f} of them of kernels under 10 us"
    )
    yield from _finding(
        seen, "CPU launch: the GPU waits for the CPU", ns, where,
        "a larger batch, torch.compile, a CUDA graph, or a fused optimizer",
    )  # fmt: skip


def _sync(seen: Seen) -> Iterator[Finding]:
    pieces = _of(seen, SYNC)
    calls = [
        span for span in seen.inside(seen.recording.ops)
        if span.name in ("aten::item", "aten::nonzero")
    ]  # fmt: skip
    names = Counter(span.name.removeprefix("aten::") for span in calls)
    counted = ", ".join(f"{n / seen.parts.steps:.3g} {name} a step" for name, n in names.items())
    lines = sync_lines(seen.recording, pieces)
    places = _largest(seen, lines) if lines else _places(seen, pieces, _module)
    yield from _finding(
        seen, "synchronisation: the CPU waits for the GPU, then has to launch anew",
        sum(piece.ns for piece in pieces), "; ".join(text for text in (counted, places) if text),
        "read losses and metrics every 50th step; keep conditions on the device",
    )  # fmt: skip


def _casts(seen: Seen) -> Iterator[Finding]:
    pieces = _of(seen, TERMS["cast"])
    count = len({(p.caller.ops[-1].start if p.caller.ops else p.start) for p in pieces})
    yield from _finding(
        seen, "casts between types", sum(piece.ns for piece in pieces),
        f"{count / seen.parts.steps:,.0f} a step; {_places(seen, pieces, _module)}",
        "one autocast around the whole forward, so that weights are cast once; or BF16 weights",
    )  # fmt: skip


def _layout(seen: Seen) -> Iterator[Finding]:
    pieces = _of(seen, LAYOUT)
    yield from _finding(
        seen, "layout changes between NCHW and NHWC", sum(piece.ns for piece in pieces),
        _places(seen, pieces, _module),
        "model and input in memory_format=torch.channels_last",
    )  # fmt: skip


def _optimizer(seen: Seen) -> Iterator[Finding]:
    """Its work and the waits for its launches, where it updates one tensor at a time."""
    pieces = [piece for piece in seen.parts.pieces if piece.caller.phase == OPTIMIZER]
    names = {op.name for piece in pieces for op in piece.caller.ops}
    count = sum(piece.term == TERMS["optimizer"] for piece in pieces) / seen.parts.steps
    if count >= MANY_UPDATES and not any("_foreach_" in n or "_fused_" in n for n in names):
        yield from _finding(
            seen, "an optimizer that updates one tensor at a time",
            sum(piece.ns for piece in pieces), f"{count:,.0f} kernels a step",
            "fused=True, or foreach=True, in the optimizer",
        )  # fmt: skip


def _islands(seen: Seen) -> Iterator[Finding]:
    """Products in float32 while others run in half precision."""
    products = [piece for piece in seen.parts.pieces if is_product(piece)]
    half = sum(piece.ns for piece in products if types_of(piece.caller.ops) & HALF)
    single = [
        piece for piece in products
        if types_of(piece.caller.ops) & SINGLE and not types_of(piece.caller.ops) & HALF
    ]  # fmt: skip
    if half:
        yield from _finding(
            seen, "GEMMs and convolutions that stayed in float32",
            sum(piece.ns for piece in single),
            _places(seen, single, lambda p: p.caller.module or _operator(p)),
            "let autocast reach them, unless they need the precision",
        )  # fmt: skip
    else:
        allowed = seen.recording.facts.get("allow_tf32")
        if allowed is False:
            yield from _finding(
                seen, "GEMMs and convolutions in IEEE float32", sum(p.ns for p in single),
                _places(seen, single, lambda p: p.caller.module or _operator(p)),
                "torch.set_float32_matmul_precision('high') allows TF32; autocast goes further",
            )  # fmt: skip


def _misaligned(seen: Seen) -> Iterator[Finding]:
    pieces = [
        piece for piece in seen.parts.pieces
        if is_product(piece) and types_of(piece.caller.ops) & HALF and misaligned(piece.caller.ops)
    ]  # fmt: skip
    yield from _finding(
        seen, f"sizes that are no multiple of {ALIGNED}", sum(piece.ns for piece in pieces),
        _places(seen, pieces, _misaligned_place),
        f"pad channels, features and the vocabulary to multiples of {ALIGNED}; then measure",
    )  # fmt: skip


def _misaligned_place(piece: Piece) -> str:
    return f"{piece.caller.module or _operator(piece)} {misaligned(piece.caller.ops)}"


def _copies(seen: Seen) -> Iterator[Finding]:
    pieces = _of(seen, COPIES)
    pageable = any("Pageable" in piece.name for piece in pieces)
    yield from _finding(
        seen, "copies to and from the device that nothing hides",
        sum(piece.ns for piece in pieces), "from pageable memory" if pageable else "",
        "pin_memory=True and non_blocking=True" if pageable else "copy the next batch meanwhile",
    )  # fmt: skip


Rule = Callable[[Seen], Iterator[Finding]]
RULES: Sequence[Rule] = (
    _plain, _launch, _sync, _casts, _layout, _optimizer, _islands, _misaligned, _copies,
)  # fmt: skip


def rules_of_training(channels_last: bool) -> Sequence[Rule]:
    """Those for a training of ours: the others are told from two steps (`e2e.explain.causes`).

    A remedy that it has already, the layout, is not proposed.
    """
    layout = () if channels_last else (_layout,)
    return (_plain, _sync, _casts, *layout, _optimizer, _copies)
