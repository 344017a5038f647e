"""The diagnosis of one recording, or of two: what `diagnose` writes and `show` prints again.

Times of terms are whole nanoseconds over all steps, so that they add up exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import Annotated

from msgspec import Meta

from e2e.profile.causes import KERNELS, LEAST_SHARE, Cause, Gain, Seen, causes_of, ranked
from e2e.profile.compare import Aligned, Change, Ranks, align, ledger, paired_causes, ranks_of
from e2e.profile.operators import is_product, shapes_of
from e2e.profile.products import Fused, Product, fused_kernels, of_card, products
from e2e.profile.step import UPDATES
from e2e.profile.trace import LOADING, MODULE, NOTE, OP, STACK, STEP, WORK, Trace, read_trace
from e2e.profile.trials import Tried, judged, refuted, tried_beside
from e2e.profile.unprofiled import Unprofiled, steps_in
from e2e.results import terms
from e2e.results.terms import LAYOUT, LOADER, RESIDUAL, SYNC, TERMS
from kernels.gpus import find_card
from microbench.device.profiler import is_communication
from microbench.errors import UserError
from microbench.results.types import AtLeastOne
from microbench.roofline.rates import Rates, known_rates

SAME = 0.5  # of the work matched: below it two recordings are not of one training
UNEVEN = 3  # times as long as another: a step that holds more than a step
RUINED = 0.3  # half of a step's interval over the step: beyond it nothing is concluded
UNEXPLAINED = 0.2  # of a step that no recorded step has: beyond it nothing is concluded
Nanoseconds = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
CAUSES = {LOADER: "loader", SYNC: "sync", TERMS["cast"]: "casts", LAYOUT: "layout"}


@dataclass(frozen=True)
class TermTime:
    """One term of the steps of a recording: `ns` in all steps."""

    term: str
    ns: Nanoseconds
    idle: bool
    where: str = ""


@dataclass(frozen=True)
class Slowed:
    """Seconds of a step while it is recorded: kernels and calls alone, and with all names."""

    times: float | None = None
    names: float | None = None


@dataclass(frozen=True)
class Traced:
    """Some steps of a training as they are without the profiler, divided.

    `window_ns` over `steps` steps is the sum of its `terms`. `bare_step_s` is a step without the
    profiler, the mean of those that were timed, and `step_ci95_s` its interval; None where it was
    not measured: the terms are as recorded then. `busy` is the share of a step in which the device
    worked, long steps apart. `on_cpu`: there was no device, and only shares are known. `unit` is
    what a step is.

    `missing` says what the trace cannot tell, and why; `ruined` why nothing is concluded. `gains`
    are of the changes that were tried, in `tried_steps` of the training. `rates` is the run file
    whose measured rates are the floors of the products, "" where those are the datasheet's.
    `of_card` is the share of the step that its products would take at their own precision's rate.
    """

    name: str
    device: str
    torch: str
    steps: AtLeastOne
    window_ns: AtLeastOne
    bare_step_s: Annotated[float, Meta(gt=0, le=1e9)] | None
    busy: float
    on_cpu: bool
    bottleneck: str
    terms: tuple[TermTime, ...]
    findings: tuple[Cause, ...]
    not_the_cause: tuple[str, ...]
    products: tuple[Product, ...] = ()
    missing: tuple[str, ...] = ()
    gains: tuple[Gain, ...] = ()
    tried_steps: int = 0
    rates: str = ""
    step_ci95_s: tuple[float, float] | None = None
    unit: str = "optimizer step"
    recorded_step_s: Slowed = Slowed()
    of_card: float | None = None
    ruined: tuple[str, ...] = ()
    fused: tuple[Fused, ...] = ()

    @property
    def step_ms(self) -> float:
        """Milliseconds of a step, without the profiler where that is known."""
        if self.bare_step_s is None:
            return self.window_ns / self.steps / 1e6
        return 1e3 * self.bare_step_s

    def ms(self, term: str) -> float:
        """Milliseconds a step of a term; 0 where it has none."""
        return sum(t.ns for t in self.terms if t.term == term) / self.steps / 1e6


@dataclass(frozen=True)
class Diagnosis:
    """One recording, or two that are held against each other: the first is the base.

    `aligned` says how far two of them match; None for one, or where a trace has no shapes. `ranks`
    are all of a training over several GPUs, whose latest one the run is of.
    """

    runs: tuple[Traced, ...]
    aligned: Aligned | None = None
    ranks: Ranks | None = None


Replay = Callable[[Unprofiled], Tried]  # tries what a recording's shapes allow


def diagnose(paths: Sequence[Path], replay: Replay | None = None) -> Diagnosis:
    """The diagnosis of the traces in these files, one or two; `replay` is for the last one.

    UserError for a file that is no trace, one in which nothing can be seen (NothingSeen), and two
    of which only one ran on a GPU, or whose shapes differ.
    """
    sides = [_Side.of(path) for path in paths]
    *_, last = sides
    base = sides[0] if len(sides) == 2 else None
    aligned = align(base.run.step, last.run.step) if base else None
    if base and base.run.step.on_cpu != last.run.step.on_cpu:
        raise UserError("one of these traces has a GPU's work, the other only a CPU's")
    # Compiled work has other operators and no modules, and still the same products.
    if aligned and max(aligned.share, aligned.alike) < SAME:
        raise UserError(
            f"the two recordings have different shapes (matched {100 * aligned.share:.0f} %): "
            "record both with one model and batch"
        )
    runs = [side.traced(None, None) for side in sides[:-1]]
    return Diagnosis((*runs, last.traced(base, replay)), aligned)


def diagnose_ranks(paths: Sequence[Path]) -> Diagnosis | None:
    """The diagnosis of a training over several GPUs, from the traces of all its ranks.

    It is that of the rank which the others wait for; None where they have no collectives in common.
    UserError as of `diagnose`.
    """
    sides = [_Side.of(path) for path in paths]
    ranks = ranks_of([side.run for side in sides])
    if ranks is None:
        return None
    facts = [side.trace.facts.get("rank", number) for number, side in enumerate(sides)]
    latest = sides[facts.index(ranks.latest.rank)]
    return Diagnosis((latest.traced(None, None),), None, ranks)


@dataclass(frozen=True)
class _Side:
    """A recording, its steps, and the rates that they are judged by."""

    path: Path
    trace: Trace
    run: Unprofiled
    rates: Rates | None
    products: tuple[Product, ...]

    @classmethod
    def of(cls, path: Path) -> _Side:
        trace = read_trace(path)
        try:
            run = steps_in(trace)
        except UserError as error:
            raise type(error)(f"{path}: {error}") from None
        rates = known_rates(trace.device)
        return cls(path, trace, run, rates, products(run.step, find_card(trace.device), rates))

    def traced(self, base: _Side | None, replay: Replay | None) -> Traced:
        """What is said of it; `base` is what it is held against."""
        run, device = self.run, self.trace.device
        whole_ns, steps = run.whole_ns, run.step.steps
        by_trace = causes_of(Seen(run, find_card(device), self.rates))
        tried = self._tried(replay)
        if base:
            paired = paired_causes(base.run, run, base.products, self.products)
            known = {cause.cause for cause in by_trace} - {""}
            by_trace = ranked([*by_trace, *(cause for cause in paired if cause.cause not in known)])
        step_ms = whole_ns / steps / 1e6
        causes = judged(by_trace, tried, step_ms) if tried else by_trace
        ruined = tuple(_ruined(run))
        causes = [] if ruined else causes
        long_ns = run.terms.get(terms.LONG_STEPS, 0)
        busy = 1.0 if run.step.on_cpu else 1 - (run.idle_ns - long_ns) / (whole_ns - long_ns)
        return Traced(
            self.path.name, device, str(self.trace.facts.get("torch", "unknown")), steps, whole_ns,
            run.step_s, max(0.0, min(1.0, busy)), run.step.on_cpu,
            _bottleneck(run, causes, ruined),
            tuple(TermTime(t, ns, run.is_idle(t), _where(run, t)) for t, ns in run.terms.items()),
            tuple(causes),
            () if ruined else tuple(_no_causes(run, by_trace, causes, tried)),
            self.products, tuple(missing(run)), tried.gains if tried else (),
            tried.steps if tried else 0,
            self.rates.source if self.rates and any(p.measured for p in self.products) else "",
            run.ci95_s, str(self.trace.facts.get("unit", "optimizer step")), _slowed(run),
            of_card(run.step, self.products, whole_ns), ruined, fused_kernels(run.step),
        )  # fmt: skip

    def _tried(self, replay: Replay | None) -> Tried | None:
        """What was tried in the training, and what by replays now; None where nothing was."""
        live = tried_beside(self.path)
        again = replay(self.run) if replay else None
        if live is None or again is None:
            return live or again
        return Tried(
            (*live.gains, *again.gains), {**live.not_tried, **again.not_tried},
            live.steps + again.steps,
        )  # fmt: skip


def _no_causes(
    run: Unprofiled, by_trace: Sequence[Cause], causes: Sequence[Cause], tried: Tried | None
) -> Iterator[str]:
    """What takes too little of the step, and what gained too little when it was tried.

    Acquitted is only what the recording can show: waits for a DataLoader, if there is one.
    """
    named, trace = {cause.cause for cause in causes}, run.step.with_names.trace
    loads = trace.seconds("loading_s") or any(
        note.name.startswith(LOADING) for note in trace.spans[NOTE]
    )
    suspects = [*([LOADER] if loads else []), TERMS["cast"]]
    if not run.step.on_cpu:
        suspects += [SYNC, terms.ALLOCATION, terms.COPIES, LAYOUT]
        if any(is_communication(work.name) for work in trace.spans[WORK]):
            suspects.append(terms.COMMUNICATION)
    for term in suspects:
        share = run.terms.get(term, 0) / run.whole_ns
        if share < LEAST_SHARE and CAUSES.get(term) not in named:
            yield f"{term} {100 * share:.1f} %"
    for gain in refuted(by_trace, tried) if tried else ():
        yield f"{gain.change} ({gain.ms:+.2g} ms, {gain.low_ms:+.2g} to {gain.high_ms:+.2g})"


def _bottleneck(run: Unprofiled, causes: Sequence[Cause], ruined: Sequence[str]) -> str:
    """The first cause; what works for most of the step where there is none or, on a CPU, where
    GEMMs and convolutions take more than it.
    """
    if ruined:
        return "unknown"
    first = next((cause for cause in causes if cause.ms), None)
    computes = sum(run.terms.get(term, 0) for term in terms.PRODUCT_TERMS) / run.step.steps / 1e6
    more = run.step.on_cpu and first is not None and first.cause not in KERNELS
    if first is not None and not (more and computes > first.most_ms):
        return first.short
    return "CPU" if run.step.on_cpu or 2 * run.idle_ns > run.whole_ns else "GPU"


def _slowed(run: Unprofiled) -> Slowed:
    named = run.step.with_names
    names = (named.end - named.start) / named.steps / 1e9
    if run.step is named:
        return Slowed(None, names)
    return Slowed((run.step.end - run.step.start) / run.step.steps / 1e9, names)


_LOADERS = {
    f"{LOADING}#_SingleProcessDataLoaderIter.__next__": "the training process (num_workers=0)",
    f"{LOADING}#_MultiProcessingDataLoaderIter.__next__": "worker processes",
}


def _where(run: Unprofiled, term: str) -> str:
    """The one or two places with the most of a term's time."""
    places: Counter[str] = Counter()
    for op in run.step.ops:
        if op.term == term:
            places[op.module or op.what] += op.ns
    return ", ".join(_LOADERS.get(place, place) for place, _ in places.most_common(2) if place)


# ---------------------------------------------------------------- what a trace cannot say


def _ruined(run: Unprofiled) -> Iterator[str]:
    """Why nothing can be concluded, in three lines; none where something can."""
    if run.uncertain > RUINED:
        off = f"±{100 * run.uncertain:.0f} %"
        yield f"Nothing is concluded: steps differ too much, by {off} of their mean."
        yield "Other work on the machine does that, or steps that differ by themselves."
    elif abs(run.missed) > UNEXPLAINED:
        where = "in no recorded step" if run.missed > 0 else "in the recorded steps alone"
        yield f"Nothing is concluded: {100 * abs(run.missed):,.0f} % of a step is {where}."
        yield (
            "Something happens every few steps, as a compilation, a checkpoint or an evaluation, "
            "or other work ran on the machine."
        )
    else:
        return
    yield "Record more steps (--bare 60 --traced 10) on a quiet machine. The figures are kept."


_STEPS_BY = {
    "optimizer": "The trace has no ProfilerStep: a step ends where the optimizer's does.",
    "one step": "The trace has one step only.",
    "whole": "The trace has no steps (no ProfilerStep, no optimizer): all of it counts as one.",
}


def missing(run: Unprofiled) -> Iterator[str]:
    """The lines that go missing, and what would bring them."""
    step, trace = run.step.with_names, run.step.with_names.trace
    if reason := _STEPS_BY.get(step.steps_by):
        yield reason
    if run.step.on_cpu and trace.header.get("deviceProperties"):
        yield (
            "The trace has no work of a GPU: these are the CPU's times. If the training used one, "
            "the profiler was not asked for it (ProfilerActivity.CUDA)."
        )
    if "AMD" in trace.device or "Instinct" in trace.device:
        yield "This is a trace of ROCm: halfway is not tested with those."
    if (devices := trace.devices) > 1:
        yield f"{devices} GPUs worked: time counts as idle only where none of them did."
    times = [
        end - start - sum(
            op.ns for op in step.ops if op.term == LOADER and start <= op.start < end
        )
        for start, end in pairwise(step.ends)
    ]  # fmt: skip
    if times and max(times) > UNEVEN * median_low(times):
        yield (
            f"One recorded step took {max(times) / 1e6:,.0f} ms and another "
            f"{median_low(times) / 1e6:,.0f}, waits for data apart: an evaluation or a checkpoint "
            "may be in it. Record other steps (--after), or more (--traced)."
        )
    notes = trace.spans[NOTE]
    at = [note.start for note in notes if note.name.startswith(UPDATES)]
    marks = [note for note in notes if note.name.startswith(STEP)][1 : 1 + step.steps]
    counts = {sum(mark.start <= moment < mark.end for moment in at) for mark in marks}
    if "lead_in" in trace.facts and len(counts) > 1:
        yield (
            f"Optimizers step {min(counts)} to {max(counts)} times in a recorded step: steps "
            "differ, so record as many (--traced) as it takes for all to come round."
        )
    if any(map(is_product, step.ops)) and not any(shapes_of(op) for op in trace.spans[OP]):
        yield (
            "The trace has no shapes (record_shapes): no table of GEMMs and convolutions, nothing "
            "about misaligned sizes or what stayed in float32, no match with another trace."
        )
    if not any(note.name.startswith(MODULE) for note in trace.spans[NOTE]):
        yield (
            "The model is compiled: its work has no modules, and there are no layers."
            if trace.facts.get("compiled")
            else "The trace names no modules (halfway_watch does): no layers."
        )
    waited = run.terms.get(SYNC, 0) / run.whole_ns
    has_lines = trace.facts.get("reads") or trace.facts.get("samples") or trace.spans[STACK]
    if waited >= LEAST_SHARE and not has_lines:
        yield "The trace has no Python stack: synchronisation has no file and line."


# ---------------------------------------------------------------- from one to another


def changes(base: Traced, other: Traced) -> list[Change]:
    """Every term of both, the largest change first; last the step, to which they add up exactly."""
    first, last = (_terms(run) for run in (base, other))
    return ledger(first, base.steps, last, other.steps)


def _terms(run: Traced) -> dict[str, int]:
    """Nanoseconds by term; of older files, whose terms are as recorded, with the residual."""
    terms = {term.term: term.ns for term in run.terms}
    rest = round(step_ns(run) * run.steps) - run.window_ns
    return terms if abs(rest) <= run.steps else terms | {RESIDUAL: rest}


def step_ns(run: Traced) -> Fraction:
    """Nanoseconds of a step: without the profiler where that is known."""
    if run.bare_step_s is None:
        return Fraction(run.window_ns, run.steps)
    return Fraction(run.bare_step_s) * 10**9
