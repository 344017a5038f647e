"""The diagnosis of one recording, or of two: what `diagnose` writes and `show` prints again.

Times of terms are whole nanoseconds over all steps, so that they add up exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from statistics import median_low
from typing import Any

from e2e.profile.aligned import Aligned, Side, align
from e2e.profile.calls import LOADING, MODULE
from e2e.profile.finding import LEAST_SHARE, Finding, ranked
from e2e.profile.findings import OWN_LOADER, findings, not_the_cause
from e2e.profile.gains import Gain, Tried, tried_in
from e2e.profile.operands import shapes_of
from e2e.profile.paired import paired_findings
from e2e.profile.partition import Partition, partition, steps_ns
from e2e.profile.products import Product, products
from e2e.profile.proofs import judged, refuted
from e2e.profile.reader import Recording, read_trace
from e2e.results.terms import IDLE, LAUNCH, LAYOUT, LOADER, PRODUCT_TERMS, SYNC, TERMS
from microbench.errors import UserError
from microbench.roofline.rates import Rates, known_rates, read_rates

SAME = 0.5  # of the work matched: below it two recordings are not of one training
BUSY = 0.9  # of a step: from here on the device is the bottleneck
CAUSES = {LOADER: "loader", SYNC: "sync", TERMS["cast"]: "casts", LAYOUT: "layout"}
BOTTLENECKS = {LOADER: "data loading", LAUNCH: "CPU launch", SYNC: "synchronisation"}


@dataclass(frozen=True)
class TermTime:
    """One term of the steps of a recording: `ns` in all steps."""

    term: str
    ns: int
    idle: bool
    where: str = ""


@dataclass(frozen=True)
class Traced:
    """A recording, divided: `window_ns` over `steps` steps is the sum of its `terms`.

    `bare_step_s` is the median step without the profiler, None where it was not measured. `busy` is
    the share of that step, or else of a recorded one, in which the device worked. `on_cpu`: there
    was no device. `missing` says what the trace cannot tell, and why. `gains` are of the changes
    that were tried, in `tried_steps` of the training. `rates` is the run file whose measured rates
    are the floors of the products; "" where those are the datasheet's.
    """

    name: str
    device: str
    torch: str
    steps: int
    window_ns: int
    bare_step_s: float | None
    busy: float
    on_cpu: bool
    bottleneck: str
    terms: tuple[TermTime, ...]
    findings: tuple[Finding, ...]
    not_the_cause: tuple[str, ...]
    products: tuple[Product, ...] = ()
    missing: tuple[str, ...] = ()
    gains: tuple[Gain, ...] = ()
    tried_steps: int = 0
    rates: str = ""

    @property
    def step_ms(self) -> float:
        """Milliseconds per recorded step."""
        return self.window_ns / self.steps / 1e6

    def ms(self, term: str) -> float:
        """Milliseconds per step of a term; 0 where it has none."""
        return sum(t.ns for t in self.terms if t.term == term) / self.steps / 1e6


@dataclass(frozen=True)
class Diagnosis:
    """One recording, or two that are held against each other: the first is the base.

    `aligned` says how far two of them match; None for one, or where a trace has no shapes.
    """

    runs: tuple[Traced, ...]
    aligned: Aligned | None = None


Replay = Callable[[Recording, Partition], Tried]  # tries what a recording's shapes allow


def diagnose(
    paths: Sequence[Path], ceilings: Path | None = None, replay: Replay | None = None
) -> Diagnosis:
    """The diagnosis of the traces in these files, one or two; `replay` is for the last one.

    `ceilings` is a run file of `halfway ceilings`, of the GPU that the traces are of; without, the
    rates that come with halfway are used.

    UserError for a file that is no trace, a trace without whole steps, two of which only one ran on
    a GPU, or whose shapes differ, and ceilings of another GPU.
    """
    sides = [_side(path) for path in paths]
    given = read_rates(ceilings) if ceilings else None
    replays = [*[None] * (len(paths) - 1), replay]
    runs = tuple(
        _traced(path.name, side, given, again)
        for path, side, again in zip(paths, sides, replays, strict=True)
    )
    if len({run.on_cpu for run in runs}) > 1:
        raise UserError("one of these traces has a GPU's work, the other only a CPU's")
    aligned = align(sides[0], sides[1]) if len(sides) == 2 else None
    # Compiled work has other operators and no modules, and still the same products.
    if aligned and max(aligned.share, aligned.alike) < SAME:
        raise UserError(
            f"the two recordings have different shapes (matched {100 * aligned.share:.0f} %): "
            "record both with one model and batch"
        )
    if len(runs) == 2:
        base, other = runs
        found = paired_findings(sides[0], sides[1], base.products, other.products)
        known = {one.cause for one in other.findings} - {""}  # replays have shown it already
        more = [one for one in found if one.cause not in known]
        runs = base, replace(other, findings=ranked((*other.findings, *more)))
    return Diagnosis(runs, aligned)


def _side(path: Path) -> Side:
    recording = read_trace(path)
    try:
        return Side(recording, partition(recording))
    except UserError as error:
        raise type(error)(f"{path}: {error}") from None


def _traced(name: str, side: Side, given: Rates | None, replay: Replay | None) -> Traced:
    recording, parts = side.recording, side.parts
    terms = tuple(
        TermTime(term, ns, term in IDLE, _where(parts.by_place(term)))
        for term, ns in parts.terms.items()
    )
    device = _device(recording)
    rates = given or known_rates(device)
    if given and given.device != device:
        raise UserError(f"{given.source} was measured on {given.device}; {name} is of {device}")
    by_trace = findings(recording, parts, device, rates)
    busy = _busy(parts, recording.bare_step_s)
    tried = _tried(recording, parts, replay)
    found = judged(by_trace, tried) if tried else by_trace
    multiplied = products(recording, parts, device, rates)
    return Traced(
        name, device, str(recording.facts.get("torch", "unknown")), parts.steps,
        parts.end - parts.start, recording.bare_step_s, busy, parts.on_cpu,
        _bottleneck(terms, busy, parts.on_cpu), terms, found,
        tuple(_no_causes(parts, by_trace, found, tried)),
        multiplied, tuple(missing(recording, parts)),
        tried.gains if tried else (), tried.steps if tried else 0,
        rates.source if rates and any(product.measured for product in multiplied) else "",
    )  # fmt: skip


def _tried(recording: Recording, parts: Partition, replay: Replay | None) -> Tried | None:
    """What was tried in the training, and what by replays now; None where nothing was."""
    live = tried_in(recording.header)
    again = replay(recording, parts) if replay else None
    if live is None or again is None:
        return live or again
    return Tried(
        (*live.gains, *again.gains), {**live.not_tried, **again.not_tried}, live.steps + again.steps
    )


def _no_causes(
    parts: Partition, by_trace: Sequence[Finding], found: Sequence[Finding], tried: Tried | None
) -> Iterator[str]:
    """What takes too little of the step, and what gained too little when it was tried."""
    named = {one.cause for one in found}
    for what, share in not_the_cause(parts):
        if CAUSES.get(what) not in named:
            yield f"{what} {100 * share:.1f} %"
    for gain in refuted(by_trace, tried) if tried else ():
        yield f"{gain.change} ({gain.ms:+.2g} ms, {gain.low_ms:+.2g} to {gain.high_ms:+.2g})"


def _device(recording: Recording) -> str:
    named = recording.facts.get("device")
    if isinstance(named, str):
        return named
    found: Any = recording.header.get("deviceProperties")
    try:
        return str(found[0]["name"])
    except (LookupError, TypeError):
        return "CPU" if not recording.work else "unknown"


def _busy(parts: Partition, bare_step_s: float | None) -> float:
    """The share of a step in which the device worked, as it is without the profiler, which makes
    the CPU slower and leaves the device's work as long as it is.
    """
    if not bare_step_s or parts.on_cpu:
        return parts.busy
    step_s = (parts.end - parts.start) / parts.steps / 1e9
    return min(1.0, parts.busy * step_s / bare_step_s)


def _bottleneck(terms: Sequence[TermTime], busy: float, on_cpu: bool) -> str:
    """What limits the step: the device where it works most of the time, else the largest wait."""
    if on_cpu:
        return "CPU"
    waits = [term for term in terms if term.idle]
    if busy >= BUSY or not waits:
        return "GPU"
    largest = max(waits, key=lambda term: term.ns)
    return BOTTLENECKS.get(largest.term, largest.term)


_LOADERS = {
    f"{LOADING}#{OWN_LOADER}.__next__": "the training process (num_workers=0)",
    f"{LOADING}#_MultiProcessingDataLoaderIter.__next__": "worker processes",
}


def _where(places: Sequence[tuple[str, int]]) -> str:
    """The one or two places with the most of a term's time."""
    return ", ".join(_LOADERS.get(place, place) for place, _ in places[:2] if place)


# ---------------------------------------------------------------- what a trace cannot say


UNEVEN = 3  # times as long as another: a step that holds more than a step


def missing(recording: Recording, parts: Partition) -> Iterator[str]:
    """The lines that go missing, and the options that would bring them."""
    if parts.on_cpu and recording.header.get("deviceProperties"):
        yield (
            "The trace has no work of a GPU: these are the CPU's times. If the training used one, "
            "the profiler was not asked for it (ProfilerActivity.CUDA)."
        )
    if len(devices := {span.lane.partition("/")[0] for span in recording.work}) > 1:
        yield f"{len(devices)} GPUs worked: time counts as idle only where none of them did."
    yield from _uneven(recording)
    products = any(parts.terms.get(term) for term in PRODUCT_TERMS)
    if products and not any(shapes_of(op) for op in recording.ops):
        yield (
            "The trace has no shapes (record_shapes): no table of GEMMs and convolutions, nothing "
            "about misaligned sizes or what stayed in float32, no match with another trace."
        )
    if not any(note.name.startswith(MODULE) for note in recording.notes):
        yield (
            "The model is compiled: its work has no modules, and there are no layers."
            if recording.facts.get("compiled")
            else "The trace names no modules (halfway_watch does): no layers."
        )
    waited = parts.terms.get(SYNC, 0) / (parts.end - parts.start)
    if waited >= LEAST_SHARE and not recording.stack:
        yield (
            "The trace has no Python stack (--stack of halfway_watch): synchronisation has no file "
            "and line."
        )


def _uneven(recording: Recording) -> Iterator[str]:
    """A step that is far longer than the others is no training step alone."""
    times = steps_ns(recording)
    longest, usual = max(times), median_low(times)
    if longest > UNEVEN * usual:
        yield (
            f"One recorded step took {longest / 1e6:,.0f} ms and another {usual / 1e6:,.0f}: an "
            "evaluation or a checkpoint may be in it. Record other steps (--after), or more "
            "(--traced)."
        )


# ---------------------------------------------------------------- from one to another


RESIDUAL, WHOLE_STEP = "profiler, and other speed of the CPU", "step"
NS = 10**9


@dataclass(frozen=True)
class Change:
    """A line of the ledger: nanoseconds a step in both recordings, as exact fractions."""

    term: str
    base_ns: Fraction
    other_ns: Fraction

    @property
    def ns(self) -> Fraction:
        """Nanoseconds a step that the other takes more."""
        return self.other_ns - self.base_ns


def step_ns(run: Traced) -> Fraction:
    """Nanoseconds of a step: without the profiler where that is known."""
    if run.bare_step_s is None:
        return Fraction(run.window_ns, run.steps)
    return Fraction(run.bare_step_s) * NS


def changes(base: Traced, other: Traced) -> list[Change]:
    """Every term of both, the largest change first; then the residual; last the step.

    The lines before the last add up to it, exactly: the residual is what steps without the profiler
    take more or less than the recorded ones.
    """
    names = dict.fromkeys(term.term for run in (base, other) for term in run.terms)
    terms = [Change(name, _ns_of(base, name), _ns_of(other, name)) for name in names]
    terms.sort(key=lambda change: (-abs(change.ns), change.term))
    rest = [step_ns(run) - Fraction(run.window_ns, run.steps) for run in (base, other)]
    return [*terms, Change(RESIDUAL, *rest), Change(WHOLE_STEP, step_ns(base), step_ns(other))]


def _ns_of(run: Traced, name: str) -> Fraction:
    return Fraction(sum(term.ns for term in run.terms if term.term == name), run.steps)
