"""A recorded step as a list of operations: every nanosecond belongs to exactly one.

While the device works, it is the kernel's operation; of several streams computing comes before
communication, and that before copies, so that the latter count only where nothing hides them. While
it idles, it is what the CPU did until the next launch.

A launch lies inside the operators and modules of its thread. A backward operator belongs to the
module of the forward operator that made its autograd node: both have one sequence number. Operators
that make no node carry the number of the next one, so the maker is the last one with it. Activation
checkpointing runs forward operators again inside a node: in a module that is entered there or,
where modules have no names, as operators that make nodes of their own.
"""

from __future__ import annotations

import heapq
import itertools
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from e2e.aten import kind_of_name
from e2e.profile.compiled import (
    GRAPH_CALL,
    fused_term,
    fused_words,
    is_compiled_code,
    is_compiling,
    term_of_library_kernel,
)
from e2e.profile.trace import (
    LAUNCH,
    LAUNCHES,
    LOADING,
    MODULE,
    NOTE,
    OP,
    OPTIMIZER,
    STEP,
    WORK,
    Span,
    Trace,
)
from e2e.results import terms
from e2e.results.terms import BETWEEN, COMPILATION, LOADER, OTHER, PYTHON, SYNC, TERMS
from microbench.device.profiler import is_communication, is_conversion
from microbench.errors import UserError

NODE = "autograd::engine::evaluate_function: "
NO_OPERATORS = (MODULE, OPTIMIZER, STEP, LOADING, GRAPH_CALL)
FORWARD, BACKWARD, UPDATE, ELSEWHERE = "forward", "backward", "optimizer", "elsewhere"
UPDATES = "Optimizer.step#"  # torch's own note around an optimizer's step
MAX_LOST = 0.01  # of the launches: beyond it a trace says too little
OWN_NS = 500_000  # without operator or call: the script's own code and no launching
HOLE_NS = 50_000  # between kernels of one CUDA graph: something ran that was not recorded
CARRIED = (LOADER, COMPILATION, PYTHON)  # idle time of which calls of the runtime say nothing
_BACKWARD = re.compile(r"Backward\d*$")


class NothingSeen(UserError):
    """A trace of which nothing can be said: no work, or too much of it lost."""


@dataclass(frozen=True, slots=True)
class Op:
    """Time of the steps from `start` to `end` in ns: its term, and what caused it.

    `ops` are the operators around the launch, the outermost first. `kernel` is the kernel's name,
    of idle time the CPU's call if there is one. `number` is the place of the kernel in the trace,
    of idle time that of the kernel that comes after it; -1 for none.
    """

    start: int
    end: int
    term: str
    ops: tuple[Span, ...] = ()
    module: str = ""
    phase: str = ELSEWHERE
    kernel: str = ""
    number: int = -1

    @property
    def ns(self) -> int:
        """How long it is."""
        return self.end - self.start

    @property
    def what(self) -> str:
        """What a fused kernel computes, or else the operator, or else the kernel's name."""
        return fused_words(self.kernel) or (self.ops[-1].name if self.ops else self.kernel)


@dataclass(frozen=True)
class Step:
    """`steps` whole steps from `start` to `end`, divided into `ops` without gap or overlap.

    `ends` are those of each step, the first is `start`. `steps_by` is how steps are known, "" where
    the profiler's own notes say it. `named` is the same step with its operators, where the times
    are of a recording of kernels alone. `matched` is the share of its work that both recordings
    have.
    """

    start: int
    end: int
    steps: int
    ops: tuple[Op, ...]
    trace: Trace
    ends: tuple[int, ...] = ()
    steps_by: str = ""
    named: Step | None = None
    matched: float = 1.0

    @property
    def on_cpu(self) -> bool:
        """Whether nothing ran on a device, so that the CPU's operators are the work."""
        return not self.trace.spans[WORK]

    @property
    def with_names(self) -> Step:
        """The step that has operators."""
        return self.named or self

    @cached_property
    def recorded(self) -> Mapping[str, int]:
        """Nanoseconds in all steps by term, as recorded; they add up to the window."""
        terms: Counter[str] = Counter()
        for op in self.ops:
            terms[op.term] += op.ns
        return terms

    def spans(self, kind: str) -> Iterator[Span]:
        """The spans of a kind that begin in the steps."""
        return (s for s in self.trace.spans[kind] if self.start <= s.start < self.end)


def step_of(trace: Trace) -> Step:
    """The steps of a trace. NothingSeen where nothing ran, or the profiler lost too much."""
    _check(trace)
    callers = dict(_callers(trace))
    if work := trace.spans[WORK]:
        ran = [_on_device(n, w, callers.get(w.correlation, _NOBODY)) for n, w in enumerate(work)]
    else:
        ran = list(_on_cpu(trace, callers))
    return _divided(trace, ran, _Idle(trace, ran, callers))


def timed_by(named: Step, alone: Trace) -> Step:
    """The steps in the times of a recording of kernels alone, with the names of the other one.

    Kernels match by their name and their order in a step. NothingSeen as of `step_of`.
    """
    _check(alone)
    work, theirs = alone.spans[WORK], _in_order(named.trace, named.ends)
    ours = _in_order(alone, _step_ends(alone)[0])
    by_kernel = _by_kernel(named)
    ran = [_on_device(number, span, _NOBODY) for number, span in enumerate(work)]
    carried: dict[int, Mapping[str, int]] = {}
    matched_ns = all_ns = 0
    for key, number in ours.items():
        span = work[number]
        all_ns += span.ns
        step, *rest = key
        match = theirs.get(key)
        if match is None:  # it may be in another step
            others = (theirs.get((other, *rest)) for other in range(1, named.steps + 1))
            match = next((n for n in others if n is not None), None)
        if match is None:
            continue
        matched_ns += span.ns
        by, before = by_kernel[match]
        ran[number] = replace(by, start=span.start, end=span.end, number=number)
        carried[number] = before
    callers = {w.correlation: op for w, op in zip(work, ran, strict=True)}
    step = _divided(alone, ran, _Idle(alone, ran, callers, carried))
    return replace(step, named=named, matched=matched_ns / all_ns if all_ns else 0.0)


def _in_order(trace: Trace, ends: Sequence[int]) -> dict[tuple[object, ...], int]:
    """The place of each kernel by (step, name, how often it was launched before in the step)."""
    launched = {span.correlation: span.start for span in trace.spans[LAUNCH]}
    work = trace.spans[WORK]
    order = sorted(
        range(len(work)), key=lambda n: (launched.get(work[n].correlation, 0), work[n].start)
    )
    count: Counter[tuple[object, ...]] = Counter()
    places: dict[tuple[object, ...], int] = {}
    for number in order:
        key = bisect_left(ends, work[number].end), work[number].name
        places[*key, count[key]] = number
        count[key] += 1
    return {key: n for key, n in places.items() if 0 < key[0] < len(ends)}  # type: ignore[operator]


def _by_kernel(step: Step) -> dict[int, tuple[Op, Mapping[str, int]]]:
    """Each kernel of the trace as an operation, and what the CPU alone knows of the time before."""
    callers = dict(_callers(step.trace))
    before: dict[int, Counter[str]] = defaultdict(Counter)
    for op in step.ops:
        if op.term in CARRIED:
            before[op.number][op.term] += op.ns
    return {
        n: (_on_device(n, span, callers.get(span.correlation, _NOBODY)), before[n])
        for n, span in enumerate(step.trace.spans[WORK])
    }


def _check(trace: Trace) -> None:
    launched = sum(bool(LAUNCHES.search(span.name)) for span in trace.spans[LAUNCH])
    if trace.lost > MAX_LOST * max(launched, 1):
        raise NothingSeen(
            f"the profiler lost {trace.lost} of {launched} kernels: record again, fewer steps at a "
            "time"
        )


def _divided(trace: Trace, ran: Sequence[Op], idle: _Idle) -> Step:
    ends, steps_by = _step_ends(trace)
    start, end = ends[0], ends[-1]
    inside = [
        replace(op, start=max(op.start, start), end=min(op.end, end))
        for op in ran if op.end > start and op.start < end
    ]  # fmt: skip
    if not inside:
        raise NothingSeen("nothing ran in the steps of this trace")
    ops: list[Op] = []
    at = start
    for op in [*_split_late(_uppermost(inside), trace, idle), Op(end, end, "")]:
        if op.start > at:
            ops += idle.between(at, op.start)
        ops.append(op)
        at = op.end
    return Step(start, end, len(ends) - 1, tuple(ops[:-1]), trace, tuple(ends), steps_by)


# ---------------------------------------------------------------- where steps end


def _step_ends(trace: Trace) -> tuple[list[int], str]:
    """When the work of each step is done, from that before the first, and how steps are known."""
    events = [*trace.spans[OP], *trace.spans[LAUNCH]]
    if not events:
        raise NothingSeen(
            "the trace has no operators and no calls: ask the profiler for ProfilerActivity.CPU too"
        )
    notes = [note for note in trace.spans[NOTE] if note.name.startswith(STEP)]
    begun = sorted(span.start for span in events)
    if "lead_in" in trace.facts:
        ends, steps_by = _of_ours(trace, [note.end for note in notes]), ""
        return _work_ends(trace, ends), steps_by
    whole = [n for n in notes if bisect_left(begun, n.end) > bisect_left(begun, n.start)]
    updates = [note for note in trace.spans[NOTE] if note.name.startswith(UPDATES)]
    first = min(begun)
    if len(whole) > 1:
        return _increasing(_work_ends(trace, [note.end for note in whole])), ""
    if len(whole) == 1:
        return [whole[0].start, *_work_ends(trace, [whole[0].end])], "one step"
    ends = [note.end for note in updates if note.name == updates[0].name]
    if len(ends) > 1:
        return _increasing(_work_ends(trace, ends)), "optimizer"
    last = max(span.end for span in (*events, *trace.spans[WORK]))
    return [first, last], "one step" if ends else "whole"


def _increasing(ends: list[int]) -> list[int]:
    return [*itertools.accumulate(sorted(set(ends)), max)]


def _of_ours(trace: Trace, ends: list[int]) -> list[int]:
    lead_in, traced = trace.facts.get("lead_in"), trace.facts.get("traced")
    if not isinstance(lead_in, int) or not isinstance(traced, int) or min(lead_in, traced) < 1:
        raise UserError("what halfway_watch wrote into this trace is damaged")
    ends = ends[lead_in - 1 : lead_in + traced]
    if len(ends) < 2 or ends[-1] <= ends[0]:
        raise NothingSeen("no whole step is in this trace: record it again with halfway_watch")
    return ends


def _work_ends(trace: Trace, cpu_ends: Sequence[int]) -> list[int]:
    """When the work that was launched up to each of these moments is done."""
    done: dict[int, int] = defaultdict(int)
    for span in trace.spans[WORK]:
        done[span.correlation] = max(done[span.correlation], span.end)
    launches = [span for span in trace.spans[LAUNCH] if span.correlation in done]
    begun = [span.start for span in launches]
    latest = list(itertools.accumulate((done[s.correlation] for s in launches), max))
    places = (bisect_left(begun, cpu_end) for cpu_end in cpu_ends)
    return [latest[at - 1] if at else end for at, end in zip(places, cpu_ends, strict=True)]


# ---------------------------------------------------------------- who launched it


_NOBODY = Op(0, 0, "")


def _callers(trace: Trace) -> Iterator[tuple[int, Op]]:
    """(correlation, caller) of each launch; without a device (id, caller) of each operator.

    Spans come in the order of time, so that an autograd node's maker is known before it runs.
    """
    spans, named = trace.spans, any(n.name.startswith(MODULE) for n in trace.spans[NOTE])
    nodes = {o.args.get("Sequence number") for o in spans[OP] if o.name.startswith(NODE)}
    open_now: dict[str, list[Span]] = defaultdict(list)
    makers: dict[object, str] = {}  # sequence number -> module; (thread, number) if recomputed
    every = [*spans[NOTE], *spans[OP], *spans[LAUNCH]]
    for span in sorted(every, key=lambda s: (s.start, -s.end)):
        # A module that an exception left may end after the node that it was entered in.
        around = open_now[span.lane] = [o for o in open_now[span.lane] if o.end > span.start]
        if span.kind == LAUNCH:
            if span.correlation:
                yield span.correlation, _caller(around, makers, named, nodes)
            continue
        around.append(span)
        if span.kind == OP:
            if not spans[WORK] and not any(o.name.startswith(LOADING) for o in around):
                yield id(span), _caller(around, makers, named, nodes)
            if _makes_node(span):
                place = _innermost(around, NODE)
                number = span.args["Sequence number"]
                if place is None:
                    makers[number] = _module(around)
                elif _recomputed(around[place:], named):
                    makers[span.lane, number] = _module(around)


def _caller(
    around: Sequence[Span], makers: Mapping[object, str], named: bool, nodes: Collection[object]
) -> Op:
    def is_forward(some: Sequence[Span]) -> bool:
        made = (o for o in some if o.args.get("Sequence number") in nodes and _makes_node(o))
        return _in_module(some) or any(map(is_compiled_code, some)) or next(made, None) is not None

    ops = tuple(span for span in around if not span.name.startswith(NO_OPERATORS))
    node, update = _innermost(around, NODE), _innermost(around, OPTIMIZER)
    if update is not None and (node is None or update > node):
        # Of a closure that the optimizer calls, the forward pass is no update of weights.
        if not is_forward(around[update + 1 :]):
            return Op(0, 0, "", ops, "", UPDATE)
    elif node is not None:
        number, lane = around[node].args.get("Sequence number"), around[node].lane
        module = makers.get(number, "")
        if any(span.name.startswith(NODE) for span in around[:node]):
            module = makers.get((lane, number), module)
        if _recomputed(around[node:], named):
            again = _module(around[node:]) or makers.get((lane, number), module)
            return Op(0, 0, "", ops, again, terms.RECOMPUTATION)
        return Op(0, 0, "", ops, module, BACKWARD)
    return Op(0, 0, "", ops, _module(around), FORWARD if is_forward(around) else ELSEWHERE)


def _innermost(around: Sequence[Span], name: str) -> int | None:
    """The place of the innermost span whose name begins like this."""
    places = (i for i in reversed(range(len(around))) if around[i].name.startswith(name))
    return next(places, None)


def _makes_node(op: Span) -> bool:
    number = op.args.get("Sequence number", -1)
    forward = isinstance(number, int) and number >= 0 and not op.args.get("Fwd thread id")
    return forward and not op.name.startswith(NODE) and not _BACKWARD.search(op.name)


def _recomputed(inside: Sequence[Span], named: bool) -> bool:
    """Whether checkpointing does forward work again inside a node, the first of `inside`."""
    node, *spans = inside
    if _in_module(spans):
        return True
    # A node of a node: gradients of gradients make nodes too.
    return (not named or "Checkpoint" in node.name) and any(map(_makes_node, spans))


def _module(around: Sequence[Span]) -> str:
    names = [span.name for span in around if span.name.startswith(MODULE)]
    return names[-1].removeprefix(MODULE) if names else ""


def _in_module(around: Sequence[Span]) -> bool:
    return any(span.name.startswith(MODULE) for span in around)


# ---------------------------------------------------------------- terms of work


def _on_device(number: int, span: Span, by: Op) -> Op:
    name = span.name
    if is_communication(name):
        term = terms.COMMUNICATION
    elif fused := fused_term(name):
        term = TERMS["optimizer"] if by.phase == UPDATE else fused
    elif name.startswith("Memcpy"):
        term = TERMS["copy"] if "DtoD" in name else terms.COPIES
    elif name.startswith("Memset"):
        term = terms.FILLS
    elif is_conversion(name) and by.phase != terms.RECOMPUTATION:
        term = terms.LAYOUT
    elif (term := _term(by)) == OTHER:
        term = term_of_library_kernel(name) or OTHER
    # Of a kernel in a CUDA graph torch 2.14 notes what it was captured for.
    module = by.module or str(span.args.get("name", ""))
    return replace(
        by, start=span.start, end=span.end, term=term, module=module, kernel=name, number=number
    )


def _on_cpu(trace: Trace, callers: Mapping[int, Op]) -> Iterator[Op]:
    for number, span in enumerate(s for s in trace.spans[OP] if id(s) in callers):
        by = callers[id(span)]
        term = COMPILATION if any(map(is_compiling, by.ops)) else _term(by)
        if term == OTHER and by.ops and is_compiled_code(by.ops[-1]):
            term = terms.FUSED_KERNELS  # its fused loops are no operators
        yield replace(
            by, start=span.start, end=span.end, term=term, kernel=span.name, number=number
        )


def _term(by: Op) -> str:
    if by.phase == UPDATE:
        return TERMS["optimizer"]
    return by.phase if by.phase == terms.RECOMPUTATION else term_of_operators(by.ops)


# torchao's autograd function of a linear layer; its backward begins with the name too.
FLOAT8_PRODUCT = "matmul_with_hp_or_float8_args"


def term_of_operators(ops: Sequence[Span]) -> str:
    """The term of the innermost of these operators that is known."""
    for op in reversed(ops):
        name = op.name.removeprefix("aten::").removeprefix(NODE)
        kind = kind_of_name(name, tuple(map(str, op.noted("Input type"))))
        if kind == "product":
            if "conv" in name:
                return terms.CONVOLUTIONS
            return terms.ATTENTION if "attention" in name else terms.MATRIX_PRODUCTS
        if kind == "optimizer" and name.startswith("_foreach_"):
            return TERMS["elementwise"]  # outside of an optimizer: clipping, an average of weights
        if kind in TERMS and kind != "other":
            float8 = any(op.name.startswith(FLOAT8_PRODUCT) for op in ops)
            return terms.FLOAT8 if float8 else TERMS[kind]
    return OTHER


# ---------------------------------------------------------------- one at a time


def _uppermost(ops: Sequence[Op]) -> Iterator[Op]:
    """The operations cut so that none overlaps another."""

    def rank(op: Op) -> tuple[int, int]:  # of nested operators the innermost, which started last
        group = {terms.COMMUNICATION: 1, terms.COPIES: 2, terms.FILLS: 2}.get(op.term, 0)
        return group, -op.start

    waiting = sorted(ops, key=lambda o: (o.start, o.end, o.term, o.kernel, o.module))
    edges = sorted({edge for op in ops for edge in (op.start, op.end)})
    heap: list[tuple[tuple[int, int], int, Op]] = []
    number = 0
    last: Op | None = None
    for at, until in itertools.pairwise(edges):
        while number < len(waiting) and waiting[number].start <= at:
            heapq.heappush(heap, (rank(waiting[number]), number, waiting[number]))
            number += 1
        while heap and heap[0][2].end <= at:
            heapq.heappop(heap)
        top = heap[0][2] if heap else None
        if last and top and last.end == at and last.number == top.number:
            last = replace(last, end=until)
            continue
        if last:
            yield last
        last = replace(top, start=at, end=until) if top else None
    if last:
        yield last


def _split_late(ops: Iterator[Op], trace: Trace, idle: _Idle) -> Iterator[Op]:
    """Communication that nothing hides, cut where the CPU launches the next computation.

    Until then it is not what the device waits for: the CPU is late.
    """
    computing = [w for w in trace.spans[WORK] if not is_communication(w.name)]
    starts = [work.start for work in computing]
    for op in ops:
        place = bisect_left(starts, op.start)
        if op.term != terms.COMMUNICATION or place == len(starts):
            yield op
            continue
        launch = idle.launches.get(computing[place].correlation)
        late = min(max(launch.start, op.start), op.end) if launch else op.start
        if late > op.start:
            yield replace(op, end=late, term=terms.LATE)
        if op.end > late:
            yield replace(op, start=late)


# ---------------------------------------------------------------- idle time


_ALLOCATES = re.compile(r"Malloc|Free|HostAlloc|HostRegister|Mem(Create|Map|Unmap|Release)")
_LOADS = re.compile(r"ModuleLoad|LibraryLoad|LibraryGet")
_WAITS = re.compile(r"Synchronize|(cuda|cu|hip)Memcpy")


def idle_term(span: Span) -> str | None:
    """The term of the CPU's time in a call of the runtime or a note; None for others."""
    if span.name.startswith(LOADING):
        return LOADER
    if is_compiling(span):
        return COMPILATION
    if span.kind != LAUNCH:
        return None
    if _ALLOCATES.search(span.name):
        return terms.ALLOCATION
    if _LOADS.search(span.name):
        return terms.MODULES
    return SYNC if "Async" not in span.name and _WAITS.search(span.name) else None


class _Idle:
    """Divides the time in which nothing runs by what the CPU did until the next launch.

    The main thread and autograd's work in turn, so a wait of one is a wait for what the other
    launches; those of other threads delay no other. `carried` is, by kernel, what another recording
    knows of the time before it that this one cannot see: nanoseconds by term.
    """

    def __init__(
        self, trace: Trace, ran: Sequence[Op], callers: Mapping[int, Op],
        carried: Mapping[int, Mapping[str, int]] | None = None,
    ) -> None:  # fmt: skip
        spans = trace.spans
        self._work, self._ran, self._callers, self._carried = spans[WORK], ran, callers, carried
        self._starts = [span.start for span in self._work]
        self.launches = {s.correlation: s for s in spans[LAUNCH] if s.correlation}
        self._main = next((n.lane for n in spans[NOTE] if n.name.startswith(STEP)), "")
        self._trainers = {o.lane for o in spans[OP] if o.name.startswith(NODE)} | {self._main}
        self._waits: dict[str, list[tuple[Span, str]]] = defaultdict(list)
        every = (*spans[LAUNCH], *spans[NOTE], *filter(is_compiling, spans[OP]))
        for span in sorted(every, key=lambda s: s.start):
            if term := idle_term(span):
                self._waits[self._group(span.lane)].append((span, term))
        self._past: dict[str, int] = defaultdict(int)  # waits that end before the gap
        self._busy = {} if carried is not None else self._launching(trace)

    def between(self, start: int, end: int) -> Iterator[Op]:
        """The gap as operations without gap or overlap. Gaps come in the order of time."""
        if not self._work:
            yield from self._until(start, end, self._main, Op(0, 0, PYTHON))
            return
        first, last = bisect_left(self._starts, end), bisect_right(self._starts, end)
        known = {w.correlation: n for n, w in enumerate(self._work[first:last]) if w.correlation}
        launch = self.launches.get(min(known, default=0))
        if launch is None:
            yield Op(start, end, terms.LAUNCH)
            return
        number = first + known[launch.correlation]
        by = replace(self._ran[number], kernel="")
        of_graph = first > 0 and self._work[first - 1].correlation == launch.correlation
        if of_graph and end - start > HOLE_NS:
            yield replace(by, start=start, end=end, term=terms.NOT_RECORDED)
            return
        ready = min(max(launch.start, start), end)
        yield from self._until(start, ready, launch.lane, replace(by, term=terms.LAUNCH))
        if ready < end:
            # Launched, and not yet begun: the way to the device, or what it waits for there. Where
            # the call had not returned when the device ran dry, the CPU is late.
            term = terms.LAUNCH if launch.end > start and not of_graph else BETWEEN
            yield replace(by, start=ready, end=end, term=term)

    def _group(self, lane: str) -> str:
        return self._main if lane in self._trainers else lane

    def _until(self, start: int, end: int, lane: str, usual: Op) -> Iterator[Op]:
        """What the thread did from `start` to `end`: `usual` where nothing else."""
        at, group = start, self._group(lane)
        waits, first = self._waits.get(group, []), self._past[group]
        while first < len(waits) and waits[first][0].end <= start:
            first += 1
        self._past[group] = first
        left = dict(self._carried.get(usual.number, {})) if self._carried else {}
        for span, term in itertools.islice(waits, first, None):
            if span.start >= end:
                break
            since, until = max(span.start, at), min(span.end, end)
            if until <= at:
                continue  # before the gap, or inside of what came before
            if since > at:
                yield from self._own(replace(usual, start=at, end=since), group, left)
            yield replace(usual, start=since, end=until, term=term, kernel=span.name)
            if term == SYNC:
                # The device ran dry while the CPU waited; what follows is its price.
                usual = replace(usual, term=SYNC)
            at = until
        if at < end:
            yield from self._own(replace(usual, start=at, end=end), group, left)

    # ------------------------------------------------------------ the script's own code

    def _own(self, gap: Op, group: str, left: dict[str, int]) -> Iterator[Op]:
        """Launching, but for what the script did meanwhile without operator or call."""
        if not self._work:
            yield gap
            return
        at = gap.start
        if self._carried is not None:
            for term, ns in left.items():
                until = min(gap.end, at + ns)
                left[term] = ns - (until - at)
                if until > at:
                    yield replace(gap, start=at, end=until, term=term)
                at = until
        else:
            for since, until in self._quiet(group, gap.start, gap.end):
                if since > at:
                    yield replace(gap, start=at, end=since)
                yield replace(gap, start=since, end=until, term=PYTHON)
                at = until
        if at < gap.end:
            yield replace(gap, start=at)

    def _quiet(self, group: str, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The long stretches in which the threads of a group launch nothing and prepare nothing."""
        busy = self._busy.get(group, [])
        at = start
        for since, until in busy[bisect_right(busy, (start, 0)) - 1 if busy else 0 :]:
            if since >= end:
                break
            if since - at >= OWN_NS:
                yield at, since
            at = max(at, until)
        if end - at >= OWN_NS:
            yield at, end

    def _launching(self, trace: Trace) -> dict[str, list[tuple[int, int]]]:
        """When the threads of each group are at work for the device, merged.

        They are in an operator that launches something, in the optimizer, and in any operator of a
        module or a node. Outside of those, operators that launch nothing are the script's own: they
        make its data.
        """
        calls = sorted(span.start for span in trace.spans[LAUNCH])
        by_lane: dict[str, list[tuple[int, int]]] = defaultdict(list)
        closed: dict[str, int] = defaultdict(int)  # end of the module, node or update around
        spans = (*trace.spans[NOTE], *trace.spans[OP], *trace.spans[LAUNCH])
        for span in sorted(spans, key=lambda s: (s.start, -s.end)):
            if span.name.startswith((MODULE, NODE)):
                closed[span.lane] = max(closed[span.lane], span.end)
            inside = span.start < closed[span.lane]
            if span.kind == NOTE and not span.name.startswith(OPTIMIZER):
                continue
            launches = bisect_left(calls, span.start) < bisect_left(calls, span.end)
            if span.kind != OP or inside or launches:
                by_lane[self._group(span.lane)].append((span.start, span.end))
        return {group: _merged(some) for group, some in by_lane.items()}


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
