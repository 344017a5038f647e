"""Traces as torch's profiler writes them: made by hand, event by event, with known times."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAIN, BACKWARD = 100, 200  # CPU threads
US, MS = 1000, 1_000_000  # ns


@dataclass
class Made:
    """A trace in the making. Times are ns; `shift_ns` is added to all of them when written."""

    events: list[dict[str, Any]] = field(default_factory=list)
    header: dict[str, Any] = field(default_factory=dict)
    correlation: int = 0

    def span(self, category: str, name: str, start: int, end: int, tid: Any = MAIN,
             **args: Any) -> None:  # fmt: skip
        """One event that lasts from `start` to `end`."""
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": start,
             "dur": end - start, "args": args}
        )  # fmt: skip

    def op(self, name: str, start: int, end: int, tid: int = MAIN, **args: Any) -> None:
        """An operator of the CPU."""
        self.span("cpu_op", name, start, end, tid, **args)

    def note(self, name: str, start: int, end: int, tid: int = MAIN) -> None:
        """An annotation: a step, a module, a loader."""
        self.span("user_annotation", name, start, end, tid)

    def kernel(
        self, name: str, start: int, end: int, launched: int, tid: int = MAIN, stream: int = 7,
        category: str = "kernel",
    ) -> None:  # fmt: skip
        """A kernel, and the call that launched it 1 us long from `launched`."""
        self.correlation += 1
        number = self.correlation
        self.span("cuda_runtime", "cudaLaunchKernel", launched, launched + US, tid,
                  correlation=number)  # fmt: skip
        self.span(category, name, start, end, stream, correlation=number, stream=stream, device=0)

    def steps(self, *ends: int) -> None:
        """Steps that follow one another on the main thread; the first begins at 0."""
        begin = 0
        for number, end in enumerate(ends):
            self.note(f"ProfilerStep#{number}", begin, end)
            begin = end

    def text(self, shift_ns: int = 0) -> str:
        """The trace as JSON; times in us with three decimals, as kineto writes them."""
        lines = []
        for event in self.events:
            timed = event | {"ts": _Us(event["ts"] + shift_ns), "dur": _Us(event["dur"])}
            lines.append(_dumps(timed))
        head = "".join(f"{json.dumps(k)}: {json.dumps(v)},\n" for k, v in self.header.items())
        return "{" + head + '"traceEvents": [\n' + ",\n".join(lines) + "\n]}"

    def write(self, path: Path, shift_ns: int = 0) -> Path:
        """The trace in a file, packed if its name ends in .gz."""
        data = self.text(shift_ns).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        return path


def begun(*ends: int, **facts: Any) -> Made:
    """Steps that end there on the CPU. The work of the first, a product, is over at 10 ms.

    `facts` are what halfway's recorder knows; without any it is another's trace.
    """
    made = Made()
    if facts:
        made.header = {"halfway": {"lead_in": 1, "traced": len(ends) - 1, **facts}}
    made.steps(*ends)
    made.op("aten::mm", 8 * MS, 8 * MS + 50 * US)
    made.kernel("gemm", 9 * MS, 10 * MS, 8 * MS + 10 * US)
    return made


class _Us:
    """Microseconds of some ns, in digits."""

    def __init__(self, ns: int) -> None:
        self.ns = ns

    def __str__(self) -> str:
        sign = "-" if self.ns < 0 else ""
        return f"{sign}{abs(self.ns) // 1000}.{abs(self.ns) % 1000:03d}"


def _dumps(event: dict[str, Any]) -> str:
    plain = {k: v for k, v in event.items() if not isinstance(v, _Us)}
    times = ", ".join(f'"{k}": {v}' for k, v in event.items() if isinstance(v, _Us))
    return json.dumps(plain)[:-1] + ", " + times + "}"
