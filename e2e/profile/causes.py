"""Causes of a slow step: what each costs, where it is, what to try. Of any training.

A trace alone proves no gain. So each cause says what was seen and what it can cost at most; what
was gained where a change was tried is in trials.py.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from math import prod
from statistics import fmean

from e2e.profile.autotuning import Autotuning, autotuning
from e2e.profile.compiled import COMPILE, GUARDS, REGION, is_compiled_code
from e2e.profile.lines import MOST_LINES, lines_of_long_steps, lines_of_samples, lines_of_waits
from e2e.profile.operators import (
    ALIGNED,
    HALF,
    Work,
    is_product,
    misaligned,
    precision_of,
    product,
    shape_words,
    shapes_of,
    types_of,
    work_of,
)
from e2e.profile.products import Attention, attention_in, calls_of
from e2e.profile.step import ELSEWHERE, OWN_NS, UPDATE, Op, term_of_operators
from e2e.profile.trace import LAUNCHES, LOADING, Span
from e2e.profile.unprofiled import Unprofiled
from e2e.results import terms
from e2e.results.terms import COMMUNICATION, IDLE, LAUNCH, LAYOUT, LOADER, PYTHON, SYNC, TERMS
from kernels.gpu_cards import Card
from kernels.precision import PRECISIONS
from microbench import fmt
from microbench.device.profiler import is_communication
from microbench.results.types import Positive
from microbench.roofline.rates import Rates

LEAST_SHARE = 0.03  # of a step: less is no cause
PROVEN, LIKELY, POSSIBLE = "proven", "likely", "possible"  # by a trial; by the trace; by a rule
AFTER = "after that"  # it shows only when what stands before it is gone
MANY_REGIONS = 8  # calls of compiled code in a step
MANY_UPDATES = 20  # kernels of an optimizer in a step
MANY_SMALL = 100  # launches in a step outside of forward, backward and optimizer
CPU_OWN_NS = 2_000_000  # a CPU may be taken away for less
OFTEN_OWN = 4  # times a step: so often it is not
SHORT_NS = 10_000  # a kernel this short does little
LONG_NORM_NS = 20_000  # a shorter call says nothing about bandwidth
SLOW_NORM = 0.5  # of a card's bandwidth: below it normalisation is slow
# What it reaches in good kernels: 3.2 of 4.8 TB/s in results/nvidia-h200/ledger-resnet50.json.
GOOD_NORM = 0.65
# Reads and writes of the whole input, forward and backward: statistics come before they are used.
NORM_PASSES = {"batch_norm": (3, 5)}
OTHER_PASSES = (2, 5)  # a row fits in registers
MEMORY_SHARE = 0.2  # of a step in passes over memory that fusion saves: less is usual
MOST_PLACES = 3
LAUNCH_BOUND = 0.5  # of a step that the GPU waits for launches
# Of kernels that are too long.
KERNELS = frozenset({"tf32", "float32", "float64", "islands", "misaligned", "bf16"})
MATH = "scaled_dot_product_attention"  # around operators: of a back end that is no kernel


@dataclass(frozen=True)
class Known:
    """A cause: what the bottleneck is called, its title, and what to try against it.

    `suspected`: users think of it by themselves, so it is news that a trial gained nothing.
    """

    short: str
    title: str
    remedy: str
    suspected: bool = True


KNOWN: Mapping[str, Known] = {
    "loader": Known(
        "data loading", "data loading",
        "more loader workers, pin_memory, or less work for each sample",
    ),
    "own": Known(
        "the script's own code", "the script's own code, between operators",
        "look at these lines: move the work into DataLoader workers, or do it less often", False,
    ),
    "launch": Known(
        "CPU launch", "CPU launch: the GPU waits for the CPU",
        "a larger batch, torch.compile, or a CUDA graph",
    ),
    "long": Known(
        "long steps", "long steps",
        "look at these lines: do it less often, or beside the training", False,
    ),
    "loops": Known(
        "small operations", "many small operations outside of forward, backward and optimizer",
        "torch._foreach_* on the list of tensors in place of a loop, or every few steps", False,
    ),
    "sync": Known(
        "synchronisation", "synchronisation: the CPU waits for the GPU, then has to launch anew",
        "read losses and metrics every 50th step; keep conditions on the device",
    ),
    "casts": Known("casts", "casts between types", "BF16 weights, or torch.compile"),
    "layout": Known(
        "layout changes", "layout changes between NCHW and NHWC",
        "model and input in memory_format=torch.channels_last",
    ),
    "optimizer": Known(
        "optimizer", "an optimizer that updates one tensor at a time",
        "fused=True, or foreach=True, in the optimizer",
    ),
    "bf16": Known(
        "normalisation", "operators that are slower in BF16 than in FP16",
        "FP16 with a loss scaler", False,
    ),
    "half": Known(
        "operators in half precision",
        "operators that are slower in half precision than in float32",
        "keep them in float32", False,
    ),
    "benchmark": Known(
        "cuDNN's search", "cuDNN's choice of algorithms",
        "torch.backends.cudnn.benchmark the other way round",
    ),
    "islands": Known(
        "float32 work", "GEMMs and convolutions that stayed in float32",
        "let autocast reach them, unless they need the precision", False,
    ),
    "float64": Known(
        "float64", "GEMMs and convolutions in float64",
        "float32, unless they need the precision: .float() on what comes from NumPy", False,
    ),
    "tf32": Known(
        "IEEE float32", "GEMMs and convolutions in IEEE float32",
        "torch.set_float32_matmul_precision('high') and cudnn.allow_tf32 = True allow TF32; "
        "autocast goes further",
    ),
    "float32": Known(
        "float32", "GEMMs and convolutions in float32", "torch.autocast around the forward pass",
    ),
    "anomaly": Known(
        "anomaly detection", "anomaly detection of autograd",
        "torch.autograd.set_detect_anomaly(True) only while you look for a NaN", False,
    ),
    "amp": Known(
        "autocast", "autocast: without it a step is faster",
        "larger work for each operation, or no AMP",
    ),
    "misaligned": Known(
        "odd sizes", f"sizes that are no multiple of {ALIGNED}",
        f"pad channels, features and the vocabulary to multiples of {ALIGNED}; then measure", False,
    ),
    "attention": Known(
        "attention", "attention written out: its scores go through memory several times",
        "torch.nn.functional.scaled_dot_product_attention; with nn.MultiheadAttention: "
        "need_weights=False", False,
    ),
    "sdpa": Known(
        "attention", "another back end of scaled_dot_product_attention is faster",
        "torch.nn.attention.sdpa_kernel around the model; is_causal or a boolean mask, not one of "
        "floats", False,
    ),
    "exchange": Known(
        "communication", terms.EXPOSED,
        "larger buckets, a compressed gradient, or more work for each exchange",
    ),
    "late": Known(
        "CPU launch", "the CPU launches late while GPUs communicate",
        "torch.compile, a CUDA graph or a larger batch: no other network helps", False,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Gain:
    """Milliseconds that a step takes less with one change; below 0 where it takes longer.

    `low_ms` to `high_ms` is the 95 % interval, over `rounds` pairs of blocks. `step_ms` is the step
    without the change, in the same blocks: of one batch again and again, if `resident`. `cause` is
    what is taken away, `change` says how.
    """

    cause: str
    change: str
    ms: float
    low_ms: float
    high_ms: float
    step_ms: Positive
    rounds: int
    resident: bool = False


@dataclass(frozen=True)
class Cause:
    """What costs `ms` of a step as it is without the profiler, and what a fix saves at most.

    `cause` is its name among KNOWN, "" for what cannot be tried. `gain` was measured, or `unproven`
    says why it was not.
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

    @property
    def short(self) -> str:
        """What the bottleneck is called, if this is the first cause."""
        known = KNOWN.get(self.cause)
        fits = known is not None and known.short in self.title
        return known.short if known and fits else re.split("[:,;]", self.title)[0]


@dataclass(frozen=True)
class Seen:
    """A step on a card, as the rules look at it."""

    run: Unprofiled
    card: Card | None = None
    rates: Rates | None = None

    @cached_property
    def by_term(self) -> Mapping[str, list[Op]]:
        """The operations of each term."""
        by_term: dict[str, list[Op]] = defaultdict(list)
        for op in self.run.step.ops:
            by_term[op.term].append(op)
        return by_term

    @cached_property
    def attention(self) -> Attention | None:
        """Attention that is written out; None without."""
        return attention_in(self.run.step.ops)

    @cached_property
    def autotuning(self) -> Autotuning:
        """cuDNN's searches at new shapes."""
        return autotuning(self.run.step)

    @cached_property
    def single_updates(self) -> Sequence[Op]:
        """An optimizer that updates one tensor at a time, with the waits for it; else nothing."""
        step = self.run.step
        ours = [
            op for op in step.ops
            if op.phase == UPDATE and (op.term not in IDLE or op.term in (LAUNCH, terms.BETWEEN))
        ]  # fmt: skip
        names = {span.name for op in ours for span in op.ops}
        together = any("_foreach_" in name or "_fused_" in name for name in names)
        count = len({op.number for op in ours if op.term not in IDLE})
        return ours if count >= MANY_UPDATES * step.steps and not together else ()

    @cached_property
    def regions(self) -> Sequence[Op]:
        """The waits for launches of compiled code, where it is in many small parts."""
        calls = self.a_step(op for op in self.spans("op") if op.name.startswith(REGION))
        waits = self.by_term[LAUNCH] if calls >= MANY_REGIONS else ()
        return [op for op in waits if any(map(is_compiled_code, op.ops))]

    @cached_property
    def launches(self) -> Sequence[Op]:
        """The waits for launches that no closer cause has."""
        closer = self.autotuning.ops, self.single_updates, small_loops(self), self.regions
        named = {id(op) for some in closer for op in some}
        return [op for op in self.by_term[LAUNCH] if id(op) not in named]

    @cached_property
    def sync_ns(self) -> tuple[float, float]:
        """Waits of the CPU for the device but in a search, and launches that they hold up.

        Nothing where both are no cause.
        """
        searched = set(map(id, self.autotuning.ops))
        waits_ns = self.ns(op for op in self.by_term[SYNC] if id(op) not in searched)
        held_ns = min(self.ns(self.launches), self.run.held_up_ns)
        enough = waits_ns + held_ns >= LEAST_SHARE * self.run.whole_ns
        return (waits_ns, held_ns) if enough else (0.0, 0.0)

    @property
    def facts(self) -> Mapping[str, object]:
        """What the recorder knows."""
        return self.run.step.trace.facts

    def ns(self, ops: Iterable[Op]) -> float:
        """Nanoseconds without the profiler, in all steps."""
        return sum(op.ns * self.run.factors.get(op.term, 1.0) for op in ops)

    def ms(self, ns: float) -> float:
        """Milliseconds a step of nanoseconds in all steps."""
        return ns / self.run.step.steps / 1e6

    def spans(self, kind: str) -> Iterator[Span]:
        """The spans with names that begin in the steps."""
        return self.run.step.with_names.spans(kind)

    def a_step(self, spans: Iterable[Span]) -> float:
        """How many of these there are a step."""
        return sum(1 for _ in spans) / self.run.step.steps

    def places(self, ops: Iterable[Op], name: Callable[[Op], str] = lambda op: op.module) -> str:
        """The places where most of this time is: "layer1.0.conv1 0.41 ms, …"."""
        times: dict[str, float] = defaultdict(float)
        for op in ops:
            times[name(op)] += self.ns([op])
        most = sorted(
            ((ns, f"module {place}" if place[0].isdigit() else place)
             for place, ns in times.items() if place), reverse=True,
        )  # fmt: skip
        if self.run.step.on_cpu:  # its times are slowed: they say shares
            whole = sum(times.values()) or 1.0
            shares = [(100 * ns / whole, place) for ns, place in most[:MOST_PLACES]]
            return ", ".join(f"{place} {pct:.0f} %" for pct, place in shares if pct >= 1)
        return ", ".join(f"{place} {self.ms(ns):.3g} ms" for ns, place in most[:MOST_PLACES])

    def cause(
        self, name: str, took: Iterable[Op] | float, where: str = "", *, title: str = "",
        remedy: str = "", status: str = LIKELY, left_ns: float = 0.0,
    ) -> Iterator[Cause]:  # fmt: skip
        """The cause, unless it takes less than LEAST_SHARE; a fix leaves `left_ns`."""
        ns = float(took) if isinstance(took, int | float) else self.ns(took)
        known = KNOWN.get(name)
        saves_ns = max(0.0, ns - left_ns)
        if min(ns, saves_ns) >= LEAST_SHARE * self.run.whole_ns:
            yield Cause(
                title or (known.title if known else ""), self.ms(ns), ns / self.run.whole_ns,
                where, remedy or (known.remedy if known else ""), self.ms(saves_ns), name, status,
            )  # fmt: skip

    def floor_ns(self, ops: Iterable[Op], single: str = "bfloat16") -> float:
        """The least time of these products; 0 where it is unknown.

        Those of float32 are counted in the type `single`, or as TF32 if that is float32 too.
        """
        calls = {id(op): op for part in ops if (op := product(part.ops)) is not None}
        total = 0.0
        for call in calls.values():
            work = work_of(call)
            if work.dtype == "float32" and single != work.dtype:
                work = Work(work.flops, (work.bytes or 0) // 2, single)
            tf32 = PRECISIONS["tf32"] if work.dtype == "float32" else None
            floor = work.floor(tf32 or precision_of(work.dtype), self.card, self.rates)
            total += 1e9 * floor[0] if floor else 0.0
        return total


def causes_of(seen: Seen) -> list[Cause]:
    """Every cause that costs at least LEAST_SHARE of a step, the costliest first.

    Where the GPU waits for launches most of the time, shorter kernels alone gain nothing yet.
    """
    causes = [cause for rule in RULES for cause in rule(seen)]
    if seen.run.terms.get(LAUNCH, 0) >= LAUNCH_BOUND * seen.run.whole_ns:
        causes = [replace(c, status=AFTER) if c.cause in KERNELS else c for c in causes]
    return ranked(causes)


def ranked(causes: Iterable[Cause]) -> list[Cause]:
    """By what a step gains: measured, or at most. What shows only after another one comes last.

    What takes no time, and says why a change gains little, comes first.
    """

    def rank(cause: Cause) -> tuple[bool, bool, float]:
        gain = cause.gain.ms if cause.status in (PROVEN, AFTER) and cause.gain else cause.most_ms
        return cause.status == AFTER, cause.ms > 0, -gain

    return sorted(causes, key=rank)


def layer_of(op: Op) -> str:
    """Its module or, where that is not known, its operator."""
    return op.module or (op.ops[-1].name if op.ops else "")


# ---------------------------------------------------------------- rules

Causes = Iterator[Cause]


def _terms(seen: Seen) -> Causes:
    """Terms that are causes by themselves."""
    by = seen.by_term
    calls = Counter(op.kernel for op in by[terms.ALLOCATION] if op.kernel).most_common(2)
    yield from seen.cause(
        "", by[terms.ALLOCATION], f"{' and '.join(name for name, _ in calls)} inside the steps",
        title="memory allocation",
        remedy="PYTORCH_ALLOC_CONF=expandable_segments:True, or inputs of fewer shapes",
    )  # fmt: skip
    yield from seen.cause(
        "", by[terms.MODULES], "inside the steps", title="loading of kernels",
        remedy="record later steps: --after",
    )  # fmt: skip
    yield from seen.cause(
        "", by[terms.RECOMPUTATION], "checkpointing, in the backward pass",
        title="recomputation of activations",
        remedy="checkpoint fewer blocks, as far as memory allows, or only what is cheap to repeat",
    )  # fmt: skip
    yield from seen.cause(
        "", by[terms.NOT_RECORDED], "between those of one graph that were",
        title="kernels of a CUDA graph that the profiler did not record",
        remedy="record again, or without the graph: what runs there is not known", status=POSSIBLE,
    )  # fmt: skip


def _loader(seen: Seen) -> Causes:
    where, remedy = "the next batch is not ready when the step needs it", ""
    notes = [n for n in seen.run.step.with_names.trace.spans["note"] if n.name.startswith(LOADING)]
    if any("_SingleProcessDataLoaderIter" in note.name for note in notes):
        where = "num_workers=0: the training process makes each batch itself, and then trains on it"
        remedy = "num_workers=4 or more in the DataLoader, or less work for each sample"
    yield from seen.cause("loader", float(seen.run.terms.get(LOADER, 0)), where, remedy=remedy)


def _own(seen: Seen) -> Causes:
    """The script's own Python, and data that it makes without a DataLoader."""
    long = seen.by_term[PYTHON]
    if seen.run.step.on_cpu:  # between two of its operators there is always some Python
        long = [op for op in long if op.ns >= OWN_NS]
        if len(long) < OFTEN_OWN * seen.run.step.steps:
            long = [op for op in long if op.ns >= CPU_OWN_NS]
    yield from seen.cause("own", long, lines_of_samples(seen.run.step, PYTHON))


def _long_steps(seen: Seen) -> Causes:
    """What few steps do and others do not. Without lines it may be other work on the machine."""
    long, times = seen.run.long_steps, seen.run.step.trace.seconds("bare_s")
    if not long:
        return
    lines, compiles = lines_of_long_steps(seen.run.step, long)
    where = ", ".join(line for line, _ in lines.most_common(MOST_LINES - 1) if line)
    some = f"{len(long)} of {len(times)} {'takes' if len(long) == 1 else 'take'}"
    took, usual = (
        fmt.duration(fmean(time for number, time in enumerate(times) if (number in long) == kind))
        for kind in (True, False)
    )
    yield from seen.cause(
        "long", float(seen.run.terms.get(terms.LONG_STEPS, 0)), where,
        title=f"long steps{' that compile' * compiles}: {some} {took}, the others {usual}",
        remedy="sizes change from step to step: pad them, or torch.compile(dynamic=True)"
        if compiles else "" if where
        else "find what the script does every few steps; or other work ran on the machine",
        status=LIKELY if len(long) > 1 and where else POSSIBLE,
    )  # fmt: skip


def _launch(seen: Seen) -> Causes:
    """The GPU's waits for launches: in the optimizer, in loops beside the model, elsewhere."""
    on_cpu = seen.run.step.on_cpu
    if ours := seen.single_updates:
        count = len({op.number for op in ours if op.term not in IDLE}) / seen.run.step.steps
        waits = seen.ms(seen.ns(op for op in ours if op.term in IDLE))
        lbfgs = any("LBFGS" in note.name for note in seen.spans("note"))
        yield from seen.cause(
            "optimizer", ours,
            f"{count:,.0f} operators a step" if on_cpu
            else f"{count:,.0f} kernels a step, and {waits:.3g} ms of waits for them",
            title="the optimizer's search for a direction (LBFGS)" if lbfgs else "",
            remedy="a smaller history_size, or fewer iterations a step (max_iter)" if lbfgs
            else "fused=True in the optimizer, if it has that" if on_cpu else "",
        )  # fmt: skip
    if on_cpu:
        return
    if loops := small_loops(seen):
        launched = len({op.number for op in loops if op.term not in IDLE}) / seen.run.step.steps
        line = lines_of_samples(seen.run.step, ELSEWHERE)
        yield from seen.cause(
            "loops", loops, f"{launched:,.0f} launches a step{f', at {line}' if line else ''}"
        )
    calls = [s.name for s in seen.spans("launch") if LAUNCHES.search(s.name)]
    short = seen.a_step(s for s in seen.run.step.spans("work") if s.ns < SHORT_NS)
    compiled, graph = seen.facts.get("compiled"), any("GraphLaunch" in name for name in calls)
    left = ["torch.compile"] * (not compiled) + ["a CUDA graph"] * (not graph)
    line = lines_of_samples(seen.run.step, LAUNCH)
    yield from seen.cause(
        "launch", seen.ns(seen.launches) - seen.sync_ns[1],
        f"{len(calls) / seen.run.step.steps:,.0f} launches a step, {short:,.0f} kernels under "
        f"{SHORT_NS / 1e3:.0f} us" + f"; most waits at {line}" * bool(line),
        remedy=" or ".join(["a larger batch", *left]) if compiled or graph else "",
        status=LIKELY if seen.run.step_s else POSSIBLE,  # the profiler slows the CPU
    )  # fmt: skip


def small_loops(seen: Seen) -> list[Op]:
    """Small kernels that neither forward, backward nor optimizer launch, and the waits for them."""
    phases = {op.phase for op in seen.run.step.ops}
    if phases <= {ELSEWHERE, UPDATE}:
        return []  # nothing tells the model's own operations
    ops = [
        op for op in seen.run.step.ops
        if op.phase == ELSEWHERE and (op.term == LAUNCH or op.term in TERMS.values())
    ]  # fmt: skip
    count = len({op.number for op in ops if op.term not in IDLE})
    return ops if count >= MANY_SMALL * seen.run.step.steps else []


def _sync(seen: Seen) -> Causes:
    waits = seen.by_term[SYNC]
    names = Counter(op.name.removeprefix("aten::") for op in seen.spans("op"))
    counted = ", ".join(
        f"{names[name] / seen.run.step.steps:.3g} {name} a step"
        for name in ("item", "nonzero") if names[name]
    )  # fmt: skip
    lines = lines_of_waits(seen.run.step)
    lines = f"the CPU waits at {lines}" if lines else seen.places(waits)
    waits_ns, held_ns = seen.sync_ns
    held = seen.ms(held_ns)
    behind = f"{held:.3g} ms of it launches that wait behind it" if held >= 0.01 else ""
    yield from seen.cause(
        "sync", waits_ns + held_ns, "; ".join(text for text in (counted, behind, lines) if text)
    )


def _casts(seen: Seen) -> Causes:
    """Casts, but for those of small operations in a loop, and of attention that is written out."""
    of_others = {*map(id, small_loops(seen)), *(seen.attention.ids if seen.attention else ())}
    casts = [op for op in seen.by_term[TERMS["cast"]] if id(op) not in of_others]
    count = len({(op.ops[-1].start if op.ops else op.start) for op in casts})
    entered = seen.facts.get("autocasts")
    often = isinstance(entered, int | Decimal) and entered > 1
    known = KNOWN["casts"].remedy
    once = "one autocast around the whole forward, so that weights are cast once"
    yield from seen.cause(
        "casts", casts,
        "; ".join(filter(None, (f"{count / seen.run.step.steps:,.0f} a step", seen.places(casts)))),
        remedy=known if entered is not None and not often
        else f"{once}; or BF16 weights" if often
        else f"if autocast is entered more than once a step: {once}; {known}",
    )  # fmt: skip


def _layout(seen: Seen) -> Causes:
    ops = seen.by_term[LAYOUT]
    inputs = [shapes_of(o)[0] for op in ops for o in op.ops[-1:] if shapes_of(o)]
    if any(len(shape) == 5 for shape in inputs):
        yield from seen.cause(
            "", ops, seen.places(ops), title="layout changes of 3-D images",
            remedy="model and input in memory_format=torch.channels_last_3d; then measure",
            status=POSSIBLE,
        )  # fmt: skip
        return
    if _channels_last_share(seen) > 0.5:
        yield from seen.cause(
            "", ops, seen.places(ops), title="layout changes in a model that is channels_last",
            remedy="an operator, or the input, is not channels_last there", status=POSSIBLE,
        )  # fmt: skip
        return
    yield from seen.cause("layout", ops, seen.places(ops))


def _channels_last_share(seen: Seen) -> float:
    """Of the time of convolutions, the share of those in channels_last; 0 without any."""
    ours = seen.by_term[terms.CONVOLUTIONS]
    return seen.ns(op for op in ours if _is_channels_last(op)) / (seen.ns(ours) or 1.0)


def _is_channels_last(op: Op) -> bool:
    """Whether the weight of a convolution lies in memory by channels."""
    called = product(op.ops)
    if called is None:
        return False
    place = 2 if "backward" in called.name else 1
    dims, strides = called.noted("Input Dims"), called.noted("Input Strides")
    if len(strides) <= place or len(strides[place]) != 4 or dims[place][2:] == [1, 1]:
        return False
    return strides[place][1] == 1


def _norms(seen: Seen) -> Causes:
    """Normalisation in half precision far below the bandwidth of the card's memory."""
    times: dict[int, int] = defaultdict(int)
    calls: dict[int, Span] = {}
    for part in seen.by_term[TERMS["norm"]]:
        named = (o for o in reversed(part.ops) if shapes_of(o))
        op = next((o for o in named if term_of_operators([o]) == part.term), None)
        if op is not None and types_of([op]) & HALF:
            times[id(op)] += part.ns
            calls[id(op)] = op
    long = [op for key, op in calls.items() if times[key] >= LONG_NORM_NS]
    ns, limit = sum(times[id(op)] for op in long), seen.card.byte_per_s if seen.card else 0.0
    moved = 0
    for op in long:
        passes = next((n for name, n in NORM_PASSES.items() if name in op.name), OTHER_PASSES)
        moved += 2 * max(map(prod, shapes_of(op))) * passes["backward" in op.name]
    if not ns or not limit or 1e9 * moved / ns >= SLOW_NORM * limit:
        return
    bf16 = any("bfloat16" in types_of([op]) for op in long)
    images = any("batch_norm" in op.name and len(shapes_of(op)[0]) == 4 for op in long)
    default = images and seen.by_term[terms.CONVOLUTIONS] and _channels_last_share(seen) < 0.5
    yield from seen.cause(
        "bf16" if bf16 else "", float(ns),
        f"{1e9 * moved / ns / 1e12:.2f} of {limit / 1e12:.3g} TB/s",
        title=f"normalisation in {'BF16' if bf16 else 'FP16'}, far below the memory's bandwidth",
        remedy=f"{KNOWN['layout'].remedy}; or " * bool(default)
        + "FP16, for which cuDNN has kernels; or " * bf16
        + "a compiled or fused normalisation; then measure",
        left_ns=min(ns, 1e9 * moved / (GOOD_NORM * limit)),
    )  # fmt: skip


def _memory(seen: Seen) -> Causes:
    """Passes over memory that one kernel could make: an optimizer's, and those of operators."""
    if seen.run.step.on_cpu:
        return
    updates = seen.by_term[TERMS["optimizer"]]
    names = {span.name for op in updates for span in op.ops}
    fused = any("_fused_" in name for name in names)
    if not fused and any("_foreach_" in name for name in names):
        yield from seen.cause(
            "optimizer", updates, title="an optimizer that is not fused",
            remedy="fused=True in the optimizer; for a large embedding also sparse gradients",
            status=POSSIBLE,
        )  # fmt: skip
    of_others = {*map(id, small_loops(seen)), *(seen.attention.ids if seen.attention else ())}
    passes = [
        op for kind in ("elementwise", "softmax", "reduce") for op in seen.by_term[TERMS[kind]]
        if op.ns >= SHORT_NS and op.phase != UPDATE and id(op) not in of_others
    ]  # fmt: skip
    if seen.ns(passes) >= MEMORY_SHARE * seen.run.whole_ns:
        yield from seen.cause(
            "", passes, seen.places(passes, layer_of),
            title="elementwise operations, reductions and losses, each a pass over memory",
            remedy="torch.compile around the model and its loss, which makes fewer; then measure",
            status=POSSIBLE,
        )  # fmt: skip


def _autotuning(seen: Seen) -> Causes:
    tuning = seen.autotuning
    more = ", …" if len(tuning.shapes) > 2 else ""
    yield from seen.cause(
        "benchmark", seen.ns(tuning.ops),
        f"{tuning.count / seen.run.step.steps:.3g} convolutions a step, at "
        f"{', '.join(tuning.shapes[:2])}{more}",
        title="cuDNN's search for kernels at new shapes",
        remedy="inputs of a few sizes (buckets), or torch.backends.cudnn.benchmark = False",
    )  # fmt: skip


def _products(seen: Seen) -> Causes:
    """Products in float32, by what they run as and what the card could; and misaligned ones."""
    # A kernel in a CUDA graph has no operator of its own, whose types would be known.
    products = [
        (op, types_of(op.ops)) for op in seen.run.step.ops if is_product(op) and product(op.ops)
    ]
    half = [op for op, types in products if types & HALF]
    single = [op for op, types in products if "float32" in types and not types & HALF]
    double = [op for op, types in products if "float64" in types]
    yield from seen.cause("float64", double, seen.places(double, layer_of))
    if half or seen.facts.get("autocasts"):
        yield from seen.cause(
            "islands", single, seen.places(single, layer_of), status=POSSIBLE,
            left_ns=seen.floor_ns(single),
        )  # fmt: skip
    elif not seen.run.step.on_cpu:
        yield from _single(seen, single)
    odd = [op for op in half if misaligned(op.ops)] if not seen.run.step.on_cpu else []
    yield from seen.cause(
        "misaligned", odd, seen.places(odd, lambda op: f"{layer_of(op)} {misaligned(op.ops)}"),
        status=POSSIBLE, left_ns=seen.floor_ns(odd),
    )  # fmt: skip


def _single(seen: Seen, single: Sequence[Op]) -> Causes:
    """Products of a training without half precision."""
    runs_as = {
        id(calls.op): calls.precision(seen.card, seen.facts) for calls in calls_of(seen.run.step)
    }
    by_kind: dict[str, list[Op]] = defaultdict(list)
    same: dict[str, str] = {}  # calls of one place with the same arguments run alike
    for op in single:
        called = product(op.ops)
        assert called is not None
        key = f"{op.module} {op.phase} {called.name} {called.args.get('Input Dims')}"
        if id(called) in runs_as:
            kind = runs_as[id(called)]
            same[key] = kind.name if kind else ""
        by_kind[same.get(key, "")].append(op)
    has_tf32 = seen.card is None or seen.card.peak(PRECISIONS["tf32"]) is not None
    has_bf16 = seen.card is None or seen.card.peak(PRECISIONS["bf16"]) is not None
    autocast = "autocast with BF16" if has_bf16 else "autocast with FP16 and a loss scaler"
    ieee, tf32, unknown = by_kind["fp32"], by_kind["tf32"], by_kind[""]
    places = seen.places(ieee, layer_of)
    if has_tf32:
        yield from seen.cause("tf32", ieee, places, left_ns=seen.floor_ns(ieee, "float32"))
    else:
        yield from seen.cause(
            "float32", ieee, f"{places}; this card has no TF32", remedy=autocast,
            left_ns=seen.floor_ns(ieee),
        )  # fmt: skip
    rest = [*tf32, *unknown]
    unsaid = any(op.term != terms.ATTENTION for op in unknown)
    what = "GEMMs and convolutions as TF32"
    if unknown:
        what = "attention in float32"
    if unknown and (tf32 or unsaid):
        what = "GEMMs, convolutions and attention in float32 or TF32"
    yield from seen.cause(
        "float32", rest,
        seen.places(rest, layer_of) + "; of some the trace does not say whether as TF32" * unsaid,
        title=f"{what}, where half precision may be faster", remedy=f"{autocast}; then measure",
        status=POSSIBLE, left_ns=seen.floor_ns(rest),
    )  # fmt: skip


def _attention(seen: Seen) -> Causes:
    attn = seen.attention
    if attn is None:
        return
    products = [op for op in attn.ops if is_product(op)]
    scores = f"scores of {', '.join(map(shape_words, attn.shapes[:2]))}"
    called = any(MATH in span.name for op in attn.ops for span in op.ops)
    yield from seen.cause(
        "sdpa" if called else "attention", attn.ops,
        "; ".join(text for text in (scores, seen.places(attn.ops)) if text),
        title="attention: scaled_dot_product_attention runs in its math back end" if called else "",
        left_ns=2 * seen.floor_ns(products),
    )  # fmt: skip


def _communication(seen: Seen) -> Causes:
    exposed, late = seen.by_term[COMMUNICATION], seen.by_term[terms.LATE]
    ran = [w for w in seen.run.step.spans("work") if is_communication(w.name)]
    types = dict.fromkeys(
        str(w.args["dtype"]) for w in seen.spans("work")
        if is_communication(w.name) and w.args.get("dtype")
    )  # fmt: skip
    whole = seen.ms(max(seen.ns(exposed), sum(w.ns for w in ran)))
    yield from seen.cause(
        "exchange", exposed,
        f"between GPUs; {whole:.3g} ms in all, the rest is behind other work"
        + (f"; in {', '.join(types)}" if types else "")
        + "; it may be a wait for another GPU: all ranks' traces together tell",
    )  # fmt: skip
    yield from seen.cause("late", late, "the next computation is not launched yet")


def _copies(seen: Seen) -> Causes:
    copies = seen.by_term[terms.COPIES]
    pageable = any("Pageable" in op.kernel for op in copies)
    yield from seen.cause(
        "", copies, "from pageable memory" if pageable else "",
        title="copies to and from the device that nothing hides",
        remedy="pin_memory=True and non_blocking=True" if pageable
        else "copy the next batch meanwhile",
    )  # fmt: skip


def _compilation(seen: Seen) -> Causes:
    compiled = sum(1 for op in seen.spans("op") if op.name.startswith(COMPILE))
    yield from seen.cause(
        "", seen.by_term[terms.COMPILATION], f"{compiled} in all" if compiled else "",
        title="compilation inside the steps",
        remedy="record later steps (--after); if it stays, sizes change from step to step: pad "
        "them, or torch.compile(dynamic=True)",
    )  # fmt: skip


def _regions(seen: Seen) -> Causes:
    """Compiled code in many small parts: entering them is what takes the time."""
    regions = seen.a_step(op for op in seen.spans("op") if op.name.startswith(REGION))
    if regions < MANY_REGIONS:
        return
    guards = sum(op.ns for op in seen.spans("op") if op.name == GUARDS)
    yield from seen.cause(
        "", seen.regions or float(guards),
        f"{regions:,.0f} a step, a graph break or uncompiled code between each and the next; "
        f"their guards take {seen.ms(guards):.3g} ms of the CPU's time",
        title="many small compiled regions: the GPU waits until each is entered",
        remedy="TORCH_LOGS=graph_breaks names the breaks; compile the whole model, not its parts",
    )  # fmt: skip


RULES: Sequence[Callable[[Seen], Causes]] = (
    _terms, _loader, _own, _long_steps, _launch, _sync, _casts, _layout, _norms, _memory,
    _autotuning, _products, _attention, _communication, _copies, _compilation, _regions,
)  # fmt: skip
