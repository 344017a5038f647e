"""Makes a trace small enough to keep: one to three steps, and of them what a diagnosis reads.

Times, names, shapes and who called whom stay as they were recorded.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from e2e.profile.calls import LOADING, MADE_BY, MODULE, NO_SEQUENCE, NODE, SEQUENCE, STEP, Caller
from e2e.profile.compiled import GUARDS, is_compiled_code, is_compiling
from e2e.profile.operands import shapes_of
from e2e.profile.partition import Partition, partition, term_of_ops
from e2e.profile.products import product_operator
from e2e.profile.reader import OUR_KEY, Recording, Span, launches_work, read_trace
from e2e.results.terms import OTHER

MOST_BYTES, MOST_STEPS = 60_000, 3
# Operators that are counted or tell a phase, wherever they are in the stack.
_ALWAYS = re.compile(rf"{re.escape(NODE)}|convolution|_foreach_|_fused_|::item$|::nonzero$")
_NOTES = (MODULE, STEP, LOADING, "Optimizer.")
_SHAPES = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")
_ARGS = {"cpu_op": (*_SHAPES, SEQUENCE, MADE_BY), "kernel": ("device", "stream")}


def pack(source: Path, target: Path, most_bytes: int = MOST_BYTES) -> int:
    """Write as many steps of a trace as fit in `most_bytes`, at least one; return the file's size.

    UserError as of `read_trace`, NothingSeen as of `partition`.
    """
    recording = read_trace(source)
    data = b""
    recorded = partition(recording).steps
    for steps in range(min(MOST_STEPS, recorded), 0, -1):
        cut = replace(recording, facts={**recording.facts, "traced": steps})
        parts = partition(cut)
        data = gzip.compress(_text(slim(cut, parts)).encode(), 9, mtime=0)
        if len(data) <= most_bytes:
            break
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return len(data)


def slim(recording: Recording, parts: Partition) -> Recording:
    """The recording without what does not matter to these steps."""
    work = [w for w in recording.work if w.end >= parts.start and w.start < parts.end]
    known = {span.correlation for span in work}
    launched = [s for s in recording.launches if s.correlation and s.correlation in known]
    since = min((span.start for span in launched), default=parts.start)
    launches = [
        span for span in recording.launches
        if span.correlation in known
        or (not launches_work(span.name) and _meets(span, since, parts.end))
    ]  # fmt: skip
    notes = [
        note for note in recording.notes
        if note.name.startswith(STEP) or _meets(note, since, parts.end)
    ]  # fmt: skip
    ops = [op for op in recording.ops if _meets(op, since, parts.end)]
    if recording.work:
        notes, ops = _callers(notes, ops, launches)
    return replace(
        recording, ops=tuple(ops), launches=tuple(launches), work=tuple(work), notes=tuple(notes),
        stack=(), header={name: recording.header[name] for name in ("deviceProperties",)
                          if name in recording.header},
    )  # fmt: skip


def _meets(span: Span, start: int, end: int) -> bool:
    return span.end > start and span.start < end


def _callers(
    notes: list[Span], ops: list[Span], launches: list[Span]
) -> tuple[list[Span], list[Span]]:
    """Of both, those that say what a launch belongs to, and what made the nodes among them."""
    open_at = _open_at([*notes, *ops, *launches], {id(launch) for launch in launches})
    kept = {id(span) for around in open_at.values() for span in _telling(around)}
    nodes = {op.args.get(SEQUENCE) for op in ops if id(op) in kept and op.name.startswith(NODE)}
    makers: dict[tuple[str, Any], Span] = {}
    for op in ops:
        number = op.args.get(SEQUENCE, NO_SEQUENCE)
        if number in nodes and not op.args.get(MADE_BY) and not op.name.startswith(NODE):
            makers[op.lane, number] = op  # the last one
    made = {id(op) for op in makers.values()}
    for around in _open_at([*notes, *ops], made).values():
        kept |= {id(span) for span in _telling(around) if span.name.startswith(MODULE)}
    kept |= {id(op) for op in ops if _of_compilation(op)}
    kept |= made | {id(note) for note in notes if not note.name.startswith(MODULE)}
    return [n for n in notes if id(n) in kept], [op for op in ops if id(op) in kept]


def _of_compilation(op: Span) -> bool:
    """Whether it counts by itself: it need not launch anything."""
    return is_compiling(op) or is_compiled_code(op) or op.name == GUARDS


def _open_at(spans: list[Span], wanted: set[int]) -> dict[int, list[Span]]:
    """What is open on the thread where each of the wanted spans begins, the innermost last."""
    found: dict[int, list[Span]] = {}
    open_now: dict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        around = [other for other in open_now[span.lane] if other.end > span.start]
        if id(span) in wanted:
            found[id(span)] = list(around)
        open_now[span.lane] = [*around, span]
    return found


def _telling(around: list[Span]) -> Iterator[Span]:
    """Of what is open at a launch: what a diagnosis looks at."""
    modules = [span for span in around if span.name.startswith(MODULE)]
    ops = [span for span in around if not span.name.startswith(_NOTES)]
    yield from modules[-1:]
    yield from ops[-1:]
    yield from [op for op in ops if shapes_of(op)][-1:]
    yield from [op for op in ops if term_of_ops([op]) != OTHER][-1:]
    if product := product_operator(Caller(tuple(ops), "", "")):
        yield product
    yield from (op for op in ops if _ALWAYS.search(op.name))


# ---------------------------------------------------------------- as text


@dataclass
class _Numbers:
    """Small numbers in place of large ones: of threads, of launches, of autograd nodes."""

    found: dict[Any, int]

    def __call__(self, key: Any) -> int:
        return self.found.setdefault(key, len(self.found) + 1)


def _text(recording: Recording) -> str:
    lanes, numbers = _Numbers({}), _Numbers({})
    groups = (
        ("user_annotation", recording.notes), ("cpu_op", recording.ops),
        ("cuda_runtime", recording.launches), ("kernel", recording.work),
    )  # fmt: skip
    everything = [span for _, spans in groups for span in spans]
    base = min(span.start for span in everything)
    events = [
        line for category, spans in groups
        for line in _events(category, spans, base, lanes, numbers)
    ]  # fmt: skip
    header = {**recording.header, OUR_KEY: recording.facts}
    head = "".join(f"{_json(key)}:{_json(value)},\n" for key, value in header.items())
    return "{" + head + '"traceEvents":[\n' + ",\n".join(events) + "\n]}\n"


def _events(
    category: str, spans: Iterable[Span], base: int, lanes: _Numbers, numbers: _Numbers
) -> Iterator[str]:
    for span in spans:
        args = {name: span.args[name] for name in _ARGS.get(category, ()) if name in span.args}
        if span.correlation:
            args["correlation"] = numbers(span.correlation)
        event = {"ph": "X", "cat": category, "name": span.name, "pid": 1, "tid": lanes(span.lane)}
        yield (
            f'{_json(event)[:-1]},"ts":{_us(span.start - base)},"dur":{_us(span.ns)},'
            f'"args":{_json(args)}}}'
        )


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=float)
