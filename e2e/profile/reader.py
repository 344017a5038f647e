"""Reads a trace of torch's profiler (kineto's Chrome format), event by event.

Times become whole nanoseconds, taken from the text: as floats of microseconds since a base they
would lose digits, and sums would not be exact. Nothing is needed of torch or of a GPU. A trace is
read as a stream, so that a large one takes the memory of its events, not of its text.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from statistics import median
from typing import IO, Any, cast

from kernels.files import MAX_DEPTH, bounded_int, check_depth, open_regular
from microbench.errors import UserError

Json = Mapping[str, Any]

BLOCK = 1 << 20  # characters read at a time
MAX_EVENT = 1 << 24  # characters of one event
MAX_TEXT = 2 << 30  # characters of a trace, unpacked
MAX_EVENTS = 5_000_000
MAX_RATIO = 100  # of a packed trace's text and size; traces are packed 10 to 30 times
SMALL_TEXT = 64 << 20  # characters that a trace may have however small it is packed
MAX_POWER = 300  # of ten, in a number
# Categories of old and new kineto: what ran on the device, and what launched it.
DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
RUNTIME = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime"})
OPS = frozenset({"cpu_op", "Operator", "cpu_op_with_shapes"})
# Annotations that older profilers put among the operators.
NOTED = ("ProfilerStep#", "enumerate(DataLoader)", "Optimizer.", "halfway::")
# Arguments that are looked at, and what older profilers call them; the others are not kept.
KEPT = {
    "Input Dims": "Input dims", "Input Strides": "", "Input type": "", "Concrete Inputs": "",
    "Sequence number": "", "Fwd thread id": "", "CallFrom": "", "dtype": "", "graph node id": "",
}  # fmt: skip
NOTES = frozenset({"user_annotation"})
STACK = "python_function"
OUR_KEY = "halfway"
LONGEST_S = 1e6  # of a step: a longer one is no measurement
SEQUENCE = "Sequence number"  # of an autograd node: no two operators' arguments are alike


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasted from `start` to `end`, in ns, on a CPU thread or a device's stream.

    `correlation` joins a launch and what it launched; 0 for none.
    """

    name: str
    start: int
    end: int
    lane: str
    correlation: int = 0
    args: Json = field(default_factory=dict[str, Any])

    @property
    def ns(self) -> int:
        """How long it lasted, in nanoseconds."""
        return self.end - self.start


@dataclass(frozen=True)
class Recording:
    """The events of a trace by kind, each sorted by start; `facts` are those of halfway_watch.

    `work` ran on a device: kernels, copies and fills. `header` is what the trace says of itself:
    the device's properties, the profiler's options.
    """

    ops: tuple[Span, ...]
    launches: tuple[Span, ...]
    work: tuple[Span, ...]
    notes: tuple[Span, ...]
    stack: tuple[Span, ...]
    header: Json
    facts: Json

    @property
    def dropped(self) -> int:
        """What was launched and has no time: the profiler lost it, or wrote zeros (kineto#109).

        A copy or fill that has no work at all is not counted: one of 0 bytes does nothing.
        """
        timed = {span.correlation: bool(span.start or span.ns) for span in self.work}
        return sum(
            not timed.get(span.correlation, bool(_MOVES.search(span.name)))
            for span in self.launches
            if span.correlation and launches_work(span.name)
        )

    @property
    def bare_step_s(self) -> float | None:
        """The median step without the profiler, in seconds; None where it was not measured."""
        found: object = self.facts.get("bare_s")
        times = cast(list[object], found) if isinstance(found, list) else []
        numbers = [
            one for one in times if isinstance(one, int | Decimal) and not isinstance(one, bool)
        ]
        seconds = [float(one) for one in numbers if 0 < one < LONGEST_S]
        return median(seconds) if seconds else None


def listed(span: Span, name: str) -> list[object]:
    """What the profiler noted of each input of an operator under this name; [] without."""
    found: object = span.args.get(name)
    return cast(list[object], found) if isinstance(found, list) else []


def launches_work(call: str) -> bool:
    """Whether a call of the runtime puts a kernel, a copy, a fill or a graph on a stream."""
    return bool(_LAUNCHES.search(call))


_LAUNCHES = re.compile(
    r"LaunchKernel|LaunchCooperativeKernel|GraphLaunch|Memcpy\w*Async|MemsetAsync"
)
_MOVES = re.compile(r"Memcpy|Memset")


def read_trace(path: Path) -> Recording:
    """The recording in a trace file, .json or .json.gz.

    UserError in one line for a file that cannot be read, is no trace, or is cut off or damaged.
    """
    events = _Events()
    header: dict[str, Any] = {}
    try:
        with _open(path) as text:
            for key, value in _items(text):
                if key is not None:
                    header[key] = value
                else:
                    events.add(value)
    except FileNotFoundError:
        raise UserError(f"no such trace file: {path}") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({_reason(error)})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not a trace of torch's profiler: {_reason(error)}") from None
    facts: Any = header.pop(OUR_KEY, {})
    facts = cast(Json, facts) if isinstance(facts, dict) else {}
    parts = {  # what is around comes before what is inside
        name: tuple(sorted(found, key=lambda span: (span.start, -span.end)))
        for name, found in events.spans.items()
    }
    return Recording(header=header, facts=facts, **parts)


_GROUPS = ("ops", "launches", "work", "notes", "stack")


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error).split("\n")[0] or type(error).__name__


# ---------------------------------------------------------------- events


class _Events:
    """The events by kind. Names and arguments that come again are kept once: most do, each step."""

    def __init__(self) -> None:
        self.spans: dict[str, list[Span]] = {name: [] for name in _GROUPS}
        self._known: dict[str, Any] = {}

    def add(self, event: Json) -> None:
        """Put an event where it belongs; those that last no time of their own are left out."""
        category = event.get("cat")
        if event.get("ph") != "X" or not isinstance(category, str):
            return
        name = str(event.get("name", ""))
        group = _group(category, name)
        if group is None:
            return
        start = _ns(event.get("ts"), "ts")
        found: object = event.get("args") or {}
        if not isinstance(found, dict):
            raise ValueError("args of an event are no object")
        args = cast(Json, found)
        correlation = args.get("correlation", 0)
        lane = f"{event.get('pid')}/{event.get('tid')}"
        if group == "work":
            device = args.get("device", event.get("pid"))
            lane = f"device {device}/{args.get('stream', event.get('tid'))}"
        end = start + max(0, _ns(event.get("dur", 0), "dur"))
        number = correlation if isinstance(correlation, int) else 0
        name, lane = self._once(name), self._once(lane)
        self.spans[group].append(Span(name, start, end, lane, number, self._kept(args)))

    def _kept(self, args: Json) -> Json:
        """The arguments that are looked at."""
        found: dict[str, Any] = {}
        for name, older in KEPT.items():
            value = args.get(name, args.get(older))
            if value is not None:
                found[name] = self._once(value)
        return found if not found or SEQUENCE in found else self._once(found)

    def _once(self, value: Any) -> Any:
        """The first value that was equal to this."""
        if isinstance(value, int):
            return value
        key = value if isinstance(value, str) else f"\0{value!r}"
        return self._known.setdefault(key, value)


def _group(category: str, name: str) -> str | None:
    if category in DEVICE:
        return "work"
    if category in RUNTIME:
        return "launches"
    if category in OPS:
        return "notes" if name.startswith(NOTED) else "ops"
    if category in NOTES:
        return "notes"
    return "stack" if category == STACK else None


def _ns(value: object, name: str) -> int:
    """Nanoseconds from microseconds. ValueError for what is no number or not of this universe."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError(f"{name} of an event is no number")
    try:
        found = int(Decimal(value) * 1000)
    except (InvalidOperation, OverflowError):
        raise ValueError(f"{name} of an event is no time") from None
    if abs(found) >= 1 << 63:
        raise ValueError(f"{name} of an event is no time")
    return found


# ---------------------------------------------------------------- JSON as a stream


@contextmanager
def _open(path: Path) -> Generator[_Text]:
    """The text of a regular file, packed or not."""
    with os.fdopen(open_regular(path, MAX_TEXT), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        most = min(MAX_TEXT, SMALL_TEXT + MAX_RATIO * size) if packed else MAX_TEXT
        content = gzip.GzipFile(fileobj=file) if packed else file
        with io.TextIOWrapper(cast(IO[bytes], content), encoding="utf-8") as text:
            yield _Text(text, most)


def _items(text: _Text) -> Iterator[tuple[str | None, Any]]:
    """(key, value) of what a trace says of itself, and (None, event) for each of its events.

    ValueError where the text is no JSON object, breaks off, or has no list of events.
    """
    if text.next_character() == "[":  # a bare list of events is a trace too
        text.position += 1
        yield from ((None, event) for event in text.elements())
        return
    text.expect("{")
    has_events = False
    while text.next_character() != "}":
        key = text.value()
        if not isinstance(key, str):
            raise ValueError("a key is missing")
        text.expect(":")
        if key == "traceEvents":
            text.expect("[")
            has_events = True
            yield from ((None, event) for event in text.elements())
        else:
            yield key, text.value()
        if text.next_character() == ",":
            text.position += 1
    if not has_events:
        raise ValueError("it has no traceEvents")


def _decimal(digits: str) -> Decimal:
    """The number. ValueError for one that no program works with."""
    found = Decimal(digits)
    if found and abs(found.adjusted()) > MAX_POWER:
        raise ValueError(f"the number {digits[:20]} is too large or too small")
    return found


class _Text:
    """Text that is read as it is needed; `position` is where the next value begins.

    It has at most `most` characters.
    """

    def __init__(self, file: IO[str], most: int) -> None:
        self._file = file
        self._most = self._left = most
        self._text, self.position = "", 0
        self._decoder = json.JSONDecoder(parse_float=_decimal, parse_int=bounded_int)

    def next_character(self) -> str:
        """The next character that is no space. ValueError at the end of the text."""
        while True:
            found = _NOT_SPACE.search(self._text, self.position)
            if found:
                self.position = found.start()
                return found[0]
            self.position = len(self._text)
            if not self._more():
                raise ValueError("it breaks off")

    def expect(self, character: str) -> None:
        """Go past this character. ValueError if another one is next."""
        if self.next_character() != character:
            raise ValueError(f"{character!r} is missing")
        self.position += 1

    def value(self) -> Any:
        """The next JSON value. ValueError where it is none."""
        self.next_character()
        while True:
            try:
                found, end = self._decoder.raw_decode(self._text, self.position)
            except json.JSONDecodeError as error:
                # It may be whole in the text to come.
                if len(self._text) - self.position > MAX_EVENT or not self._more():
                    raise ValueError(error.msg.lower()) from None
                continue
            if end == len(self._text) and self._more():
                continue  # a number may go on in the text to come
            opened = sum(self._text.count(one, self.position, end) for one in "[{")
            if opened > MAX_DEPTH:
                check_depth(found)
            self.position = end
            return found

    def elements(self) -> Iterator[Json]:
        """The objects of the list that is open, up to and past its end."""
        number = 0
        while (character := self.next_character()) != "]":
            if character == ",":
                self.position += 1
                continue
            found = self.value()
            if not isinstance(found, dict):
                raise ValueError("an event is no object")
            if (number := number + 1) > MAX_EVENTS:
                raise ValueError(f"more than {MAX_EVENTS:,} events; record fewer steps")
            yield cast(Json, found)
        self.position += 1

    def _more(self) -> bool:
        block = self._file.read(BLOCK)
        self._left -= len(block)
        if self._left < 0:
            raise ValueError(f"more than {self._most >> 20:,} MiB of text; record fewer steps")
        self._text = self._text[self.position :] + block
        self.position = 0
        return bool(block)


_NOT_SPACE = re.compile(r"[^\s]")
