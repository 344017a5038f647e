"""The lines of the user's script that cost time: where it waits, where its own code is."""

from __future__ import annotations

import re
import sys
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import PurePath
from typing import Any, cast

from e2e.profile.step import Step, idle_term
from e2e.profile.trace import LAUNCH, STACK, WORK, Span
from e2e.results.terms import SYNC

CALLED_FROM = "CallFrom"  # "train.py:88", since torch 2.11 or so
MOST_LINES = 3
# "train.py(80): forward" has the line where the function begins.
_LINE = re.compile(r"(?P<file>[^<].*\.py)(?:\((?P<first>\d+)\): .*|:(?P<line>\d+))", re.DOTALL)
_PACKAGES = re.compile(r"(^|/)(site-packages|dist-packages|python3[.\d]*)/|^torch/")
_OURS = "halfway_watch.py"


def lines_of_samples(step: Step, what: str) -> str:
    """Where the script was most in idle time of a term, or while it launched work of a phase.

    "train.py:12, train.py:80"; "" where the recorder took no samples.
    """
    named = step.with_names
    samples = list(_samples(named))
    times = [at for at, _ in samples]
    counts: Counter[str] = Counter()
    for op in named.ops:
        if op.term == what:
            inside = samples[bisect_left(times, op.start) : bisect_right(times, op.end)]
            counts.update(line for _, line in inside)
    if not counts:
        phases = {op.number: op.phase for op in named.ops}
        launched = {s.correlation: s.start for s in named.trace.spans[LAUNCH]}
        starts = sorted(
            (launched[work.correlation], phases[number])
            for number, work in enumerate(named.trace.spans[WORK])
            if number in phases and work.correlation in launched
        )
        for at, line in samples:
            place = bisect_left(starts, (at, ""))
            if place < len(starts) and starts[place][1] == what:
                counts[line] += 1
    return ", ".join(line for line, _ in counts.most_common(MOST_LINES - 1))


def _samples(step: Step) -> Iterator[tuple[int, str]]:
    """(ns on the trace's clock, line) of the samples in the steps, in order."""
    base: object = step.trace.header.get("baseTimeNanoseconds", 0)
    rows: object = step.trace.facts.get("samples")
    if not isinstance(rows, list) or not isinstance(base, int):
        return
    for row in cast(list[Any], rows):
        try:
            at, line = int(row[0]) - base, str(row[1])
        except (LookupError, TypeError, ValueError):
            continue
        if step.start <= at <= step.end:
            yield at, line


def lines_of_waits(step: Step) -> str:
    """The lines that wait for the GPU: "train.py:88 0.31 ms, …"; "" where nothing tells."""
    reads = timed_reads(step) or _from_stack(step.with_names)
    if not reads:
        return lines_of_samples(step, SYNC)
    most = sorted(reads.items(), key=lambda item: (-item[1], item[0]))[:MOST_LINES]
    return ", ".join(f"{line} {ms:.3g} ms" for line, ms in most)


def lines_of_long_steps(step: Step, long: Collection[int]) -> tuple[Counter[str], bool]:
    """Where the script was in these steps without the profiler: looks by line; and whether it
    compiled most of the time.
    """
    rows: object = step.trace.facts.get("long_steps")
    lines: Counter[str] = Counter()
    compiling = 0
    for row in cast(list[Any], rows) if isinstance(rows, list) else ():
        match row:
            case [int(number), str(line), bool(compiles), int(looks)] if number in long:
                lines[line] += looks
                compiling += looks * compiles
            case _:
                pass
    return lines, 2 * compiling > lines.total()


def timed_reads(step: Step) -> Mapping[str, float]:
    """Milliseconds a step by line of the reads that halfway_watch timed without the profiler."""
    rows: object = step.trace.facts.get("reads")
    steps = len(step.trace.seconds("bare_s"))
    reads: Counter[str] = Counter()
    for row in cast(list[Any], rows) if isinstance(rows, list) and steps else ():
        match row:
            case [str(line), _, _, int() | Decimal() as seconds]:
                reads[line] += 1e3 * float(seconds) / steps  # type: ignore[assignment]
            case _:
                pass
    return reads


def _from_stack(step: Step) -> Mapping[str, float]:
    """Milliseconds a step by line, from the Python stack that a profiler recorded."""
    waits = [span for span in step.trace.spans[LAUNCH] if idle_term(span) == SYNC]
    lanes = {span.lane for span in waits}
    stack = [span for span in step.trace.spans[STACK] if span.lane in lanes]
    lines: dict[int, str] = {}
    open_now: dict[str, list[Span]] = defaultdict(list)
    for span in sorted([*stack, *waits], key=lambda s: (s.start, -s.end)):
        around = open_now[span.lane] = [o for o in open_now[span.lane] if o.end > span.start]
        if span.kind == STACK:
            around.append(span)
        elif line := _users_line(around):
            lines[id(span)] = line
    starts = [span.start for span in waits]
    by_line: dict[str, float] = defaultdict(float)
    for op in step.ops if lines else ():
        last = bisect_left(starts, op.end) - 1  # the call that this time is the price of
        if op.term == SYNC and last >= 0 and (line := lines.get(id(waits[last]))):
            by_line[line] += op.ns / step.steps / 1e6
    return by_line


def _users_line(stack: Sequence[Span]) -> str:
    """The innermost line outside torch, the standard library and other packages; "" for none."""
    for span in reversed(stack):
        for text in (span.args.get(CALLED_FROM), span.name):
            match = _LINE.fullmatch(text) if isinstance(text, str) else None
            if match and _is_users(match["file"]):
                return f"{PurePath(match['file']).name}:{match['line'] or match['first']}"
    return ""


def _is_users(file: str) -> bool:
    path = PurePath(file)
    library = len(path.parts) == 1 and path.stem in sys.stdlib_module_names
    return not (library or path.name == _OURS or _PACKAGES.search(file))
