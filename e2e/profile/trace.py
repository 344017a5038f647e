"""A trace of torch's profiler (kineto's Chrome JSON): its spans by kind, in whole nanoseconds.

Times are taken from the text: as floats of microseconds they would lose digits, and sums would not
be exact. Nothing is needed of torch or of a GPU.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, DecimalException
from pathlib import Path
from typing import Any, cast

from e2e.profile.halfway_watch import OURS
from kernels.files import bounded_int, open_regular
from microbench.errors import UserError

WORK, LAUNCH, OP, NOTE, STACK = KINDS = "work", "launch", "op", "note", "stack"
# Kineto's categories, old and new: what ran on a device, what launched it, operators, notes.
KIND_OF_CATEGORY = {
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"), WORK),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "Runtime", "hip_runtime"), LAUNCH),
    **dict.fromkeys(("cpu_op", "Operator", "cpu_op_with_shapes"), OP),
    "user_annotation": NOTE,
    "python_function": STACK,
}
STEP, LOADING, OPTIMIZER, MODULE = (
    "ProfilerStep#", "enumerate(DataLoader)", "Optimizer.", "halfway::",
)  # fmt: skip
NOTES = (STEP, LOADING, OPTIMIZER, MODULE)  # which older profilers put among the operators
KEPT = (
    "Input Dims", "Input Strides", "Input type", "Concrete Inputs", "Sequence number",
    "Fwd thread id", "CallFrom", "dtype", "In msg nelems", "Group size", "Collective name",
    "Process Group Name", "name",
)  # fmt: skip
LAUNCHES = re.compile(
    r"LaunchKernel|LaunchCooperativeKernel|GraphLaunch|Memcpy\w*Async|MemsetAsync"
)
FACTS = "halfway"  # the key of what halfway_watch knows
MAX_BYTES = 4 << 30  # of a trace's text


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Something from `start` to `end` in ns on a CPU thread or a device's stream (`lane`).

    `correlation` joins a launch and what it launched; 0 for none.
    """

    kind: str
    name: str
    start: int
    end: int
    lane: str
    correlation: int = 0
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def ns(self) -> int:
        """How long it lasted."""
        return self.end - self.start

    def noted(self, name: str) -> list[Any]:
        """What the profiler noted of each input of an operator under this name; [] without."""
        value: object = self.args.get(name)
        return cast(list[Any], value) if isinstance(value, list) else []


@dataclass(frozen=True)
class Trace:
    """Spans by kind, each sorted by start; `facts` are the recorder's, `header` the profiler's."""

    spans: Mapping[str, Sequence[Span]]
    header: Mapping[str, Any] = field(default_factory=dict[str, Any])
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def lost(self) -> int:
        """Launches whose work has no time: the profiler lost it, or wrote zeros (kineto#109).

        A copy or fill that has no work at all is not counted: one of 0 bytes does nothing.
        """
        timed = {work.correlation: bool(work.start or work.ns) for work in self.spans[WORK]}
        return sum(
            not timed.get(span.correlation, "Memcpy" in span.name or "Memset" in span.name)
            for span in self.spans[LAUNCH]
            if span.correlation and LAUNCHES.search(span.name)
        )

    @property
    def devices(self) -> int:
        """How many GPUs worked."""
        return len({span.lane.partition("/")[0] for span in self.spans[WORK]})

    @property
    def device(self) -> str:
        """The name of the (first) GPU; "cpu" or "unknown" where the trace does not say."""
        if isinstance(named := self.facts.get("device"), str):
            return named
        devices: Any = self.header.get("deviceProperties")
        try:
            return str(devices[0]["name"])
        except (LookupError, TypeError):
            return "unknown" if self.spans[WORK] else "CPU"

    def seconds(self, name: str) -> list[float]:
        """A list of seconds among the facts; [] for none, or a damaged one."""
        values: object = self.facts.get(name)
        if not isinstance(values, list):
            return []
        times = [
            float(second) for second in cast(list[Any], values)
            if isinstance(second, int | Decimal) and 0 <= second < 1e6
        ]  # fmt: skip
        return times if len(times) == len(cast(list[Any], values)) else []


def read_trace(path: Path) -> Trace:
    """The trace in a .json or .json.gz file.

    UserError in one line for a file that cannot be read, is no trace, or is cut off or damaged.
    """
    spans: dict[str, list[Span]] = {kind: [] for kind in KINDS}

    def keep(event: dict[str, Any]) -> dict[str, Any] | None:
        if "ph" not in event:
            return event  # arguments, the header
        if span := _span(event):
            spans[span.kind].append(span)
        return None  # an event is needed as a span alone

    try:
        text = _content(path).decode()
        header: Any = json.loads(text, object_hook=keep, parse_float=Decimal, parse_int=bounded_int)
    except FileNotFoundError:
        raise UserError(f"no such trace file: {path}") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UserError(f"{path}: cannot be read ({reason.lower()})") from None
    except (ValueError, TypeError, DecimalException, RecursionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{path} is not a trace of torch's profiler: {reason}") from None
    if isinstance(header, list):
        header = {"traceEvents": cast(list[Any], header)}  # a bare list of events is a trace too
    if not isinstance(header, dict) or not isinstance(
        cast(dict[str, Any], header).pop("traceEvents", None), list
    ):
        raise UserError(f"{path} is not a trace of torch's profiler: it has no traceEvents")
    spans[NOTE] = _without_others(spans[NOTE])
    for some in spans.values():
        some.sort(key=lambda span: (span.start, -span.end))
    head = cast(dict[str, Any], header)
    facts: Any = head.pop(FACTS, {})
    return Trace(spans, head, cast(dict[str, Any], facts) if isinstance(facts, dict) else {})


def _without_others(notes: list[Span]) -> list[Span]:
    """Without the steps that the script's own profiler marks, where the recorder marked them."""
    if not any(note.name.startswith(OURS) for note in notes):
        return notes
    return [n for n in notes if n.name.startswith(OURS) or not n.name.startswith(STEP)]


def _content(path: Path) -> bytes:
    """The text of a trace. OSError for a file that cannot be read, or holds too much."""
    with os.fdopen(open_regular(path, MAX_BYTES), "rb") as file:
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        data = (gzip.GzipFile(fileobj=file) if packed else file).read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return data


def _span(event: dict[str, Any]) -> Span | None:
    """The event as a span; None for what lasts no time of its own, or is of no kind of ours."""
    kind = KIND_OF_CATEGORY.get(str(event.get("cat"))) if event["ph"] == "X" else None
    if kind is None:
        return None
    name = str(event.get("name", ""))
    args: Any = event.get("args") or {}
    if not isinstance(args, dict):
        raise ValueError("args of an event are no object")
    args = cast(dict[str, Any], args)
    if kind == OP and name.startswith(NOTES):
        kind = NOTE
    start = _ns(event.get("ts"))
    lane = f"{event.get('pid')}/{event.get('tid')}"
    if kind == WORK:
        lane = f"device {args.get('device', event.get('pid'))}/{args.get('stream')}"
    kept = {name: args[name] for name in KEPT if name in args}
    if "Input dims" in args:  # of older profilers
        kept["Input Dims"] = args["Input dims"]
    if not isinstance(kept.get("Sequence number"), int):
        kept.pop("Sequence number", None)
    correlation = args.get("correlation", 0)
    number = correlation if isinstance(correlation, int) else 0
    return Span(kind, name, start, start + max(0, _ns(event.get("dur", 0))), lane, number, kept)


def _ns(value: object) -> int:
    """Nanoseconds from microseconds. ValueError for what is no time of this universe."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError("a time of an event is no number")
    ns = Decimal(value) * 1000
    if not ns.is_finite() or abs(ns) >= 1 << 63:
        raise ValueError("a time of an event is no time")
    return int(ns)


# ---------------------------------------------------------------- kernels alone


def kernels_alone(trace: Trace) -> Trace | None:
    """The recording of kernels and runtime calls alone that halfway_watch made too.

    None where it made none, or where it is damaged.
    """
    times: Any = trace.facts.get("times")
    main = next((n.lane for n in trace.spans[NOTE] if n.name.startswith(STEP)), "")
    process = main.partition("/")[0]
    spans: dict[str, list[Span]] = defaultdict(list)
    try:
        names: list[str] = list(map(str, times["names"]))
        ends: list[int] = list(map(int, times["ends"]))
        work = [(WORK, n, at, ns, f"device {lane}", c) for n, _, at, ns, lane, c in times["work"]]
        calls = [(LAUNCH, n, at, ns, f"{process}/{t}", c) for n, at, ns, t, c in times["calls"]]
        for kind, name, at, ns, lane, correlation in (*work, *calls):
            start, end = int(at), int(at) + max(0, int(ns))
            spans[kind].append(Span(kind, names[int(name)], start, end, lane, int(correlation)))
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None
    if not spans[WORK] or len(ends) < 2:
        return None
    begin = min(span.start for span in (*spans[WORK], *spans[LAUNCH]))
    for number, (start, end) in enumerate(zip([begin, *ends], ends, strict=False)):
        spans[NOTE].append(Span(NOTE, f"{STEP}{number}", start, end, main))
    for some in spans.values():
        some.sort(key=lambda span: (span.start, -span.end))
    return Trace({kind: spans[kind] for kind in KINDS}, trace.header, trace.facts)
