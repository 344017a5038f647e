"""The diagnosis of one recording, or of two: what `diagnose` writes and `show` prints again.

Times of terms are whole nanoseconds over all steps, so that they add up exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from e2e.profile.aligned import Aligned, Side, align
from e2e.profile.calls import LOADING
from e2e.profile.finding import Finding, ranked
from e2e.profile.findings import OWN_LOADER, findings, not_the_cause
from e2e.profile.gains import Gain, Tried, tried_in
from e2e.profile.missing import missing
from e2e.profile.paired import paired_findings
from e2e.profile.partition import Partition, partition
from e2e.profile.products import Product, products
from e2e.profile.proofs import judged, refuted
from e2e.profile.reader import Recording, read_trace
from e2e.results.terms import IDLE, LAUNCH, LAYOUT, LOADER, SYNC, TERMS
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
    the share of the window in which the device worked. `on_cpu`: there was no device. `missing`
    says what the trace cannot tell, and why. `gains` are of the changes that were tried, in
    `tried_steps` of the training. `rates` is the run file whose measured rates are the floors of
    the products; "" where those are the datasheet's.
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
        TermTime(term, ns, term in IDLE, _where(term, parts.by_place(term)))
        for term, ns in parts.terms.items()
    )
    device = _device(recording)
    rates = given or known_rates(device)
    if given and given.device != device:
        raise UserError(f"{given.source} was measured on {given.device}; {name} is of {device}")
    by_trace = findings(recording, parts, device, rates)
    tried = _tried(recording, parts, replay)
    found = judged(by_trace, tried) if tried else by_trace
    multiplied = products(recording, parts, device, rates)
    return Traced(
        name, device, str(recording.facts.get("torch", "unknown")), parts.steps,
        parts.end - parts.start, recording.bare_step_s, parts.busy, parts.on_cpu,
        _bottleneck(terms, parts.busy, parts.on_cpu), terms, found,
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


def _where(term: str, places: Sequence[tuple[str, int]]) -> str:
    """The one or two places with the most of a term's time."""
    return ", ".join(_LOADERS.get(place, place) for place, _ in places[:2] if place)
