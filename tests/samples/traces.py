"""Traces as torch's profiler writes them: made by hand with known times, played, and random."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

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


# ---------------------------------------------------------------- loops played on a tape

BASE = 1_760_000_000_000_000_000  # ns since the epoch, to which a trace's times are added
BF16, FLOAT = "c10::BFloat16", "float"
H200, A100, V100 = "NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB"
CARDS = {H200: (9, 132), A100: (8, 108), V100: (7, 80)}
SQUARE = [[4096, 4096]] * 2
WORK = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass
class Tape(Made):
    """A trace, where the CPU and the device's streams are in it, and what a profiler adds.

    An operator takes the CPU `slow` times as long, a kernel `long` times.
    """

    slow: float = 1
    long: float = 1
    now: int = 0
    free: dict[int, int] = field(default_factory=dict)
    ended: list[int] = field(default_factory=list)  # when the CPU was through with each step
    lines: list[tuple[int, str]] = field(default_factory=list)

    def work(
        self, name: str, gpu_ns: float, cpu_ns: int = 20 * US, *, kernel: str = "k",
        tid: int = MAIN, dims: Any = ([64, 64],), kind: Any = FLOAT, stream: int = 7,
        after: int = 0, number: int = 0, **args: Any,
    ) -> int:  # fmt: skip
        """An operator, `number` of a node, with a kernel that begins `after` or later; its end."""
        start, self.now = self.now, self.now + round(self.slow * cpu_ns)
        launched = (start + self.now) // 2
        begin = max(self.free.get(stream, 0), launched + 3 * US, after)
        self.free[stream] = end = begin + round(self.long * gpu_ns)
        kinds = [kind] * len(dims) if isinstance(kind, str) else kind
        args |= {"Input Dims": list(dims), "Input type": kinds}
        args |= {"Sequence number": number} if number else {}
        self.op(name, start, self.now, tid, **args)
        self.kernel(kernel, begin, end, launched, tid, stream)
        return end

    def product(self, gpu_ns: float, **more: Any) -> int:
        """A matrix multiplication."""
        return self.work("aten::mm", gpu_ns, **({"dims": SQUARE, "kind": BF16} | more))

    @contextmanager
    def inside(
        self, name: str, tid: int = MAIN, category: str = "user_annotation", **args: Any
    ) -> Iterator[None]:
        """A note or an operator around what follows."""
        start, self.now = self.now, self.now + US
        yield
        self.now += US
        self.span(category, name, start, self.now, tid, **args)

    def operator(self, name: str, **args: Any) -> Any:
        """An operator that calls others."""
        return self.inside(name, MAIN, "cpu_op", **args)

    def node(self, name: str, number: int) -> Any:
        """A node of the backward pass."""
        place = f"autograd::engine::evaluate_function: {name}Backward0"
        args = {"Sequence number": number, "Fwd thread id": 1}
        return self.inside(place, BACKWARD, "cpu_op", **args)

    def call(self, name: str, ns: int) -> None:
        """A call of the runtime that launches nothing."""
        self.span("cuda_runtime", name, self.now, self.now + ns)
        self.now += ns

    def read(self) -> None:
        """A scalar is read: the CPU waits until the device has done all that was launched."""
        with self.operator("aten::item"), self.operator("aten::_local_scalar_dense"):
            self.call("cudaStreamSynchronize", max(0, max(self.free.values()) - self.now) + 2 * US)

    def python(self, ns: int, line: str = "train.py:1") -> None:
        """The script runs code of its own: no operator, no call of the runtime."""
        self.lines += [(at, line) for at in range(self.now, self.now + ns, 2 * MS)]
        self.now += ns


def recorded(
    step: Callable[[Tape], object], *, traced: int = 2, card: str = H200, foreign: bool = False,
    slow: float = 1, long: float = 1, times: Tape | None = None, **facts: Any,
) -> Tape:  # fmt: skip
    """`traced` steps and the one before them; as long as without a profiler, or as `facts` say."""
    tape, done = Tape(slow=slow, long=long), []
    for number in range(traced + 1):
        with tape.inside(f"ProfilerStep#{number}"):
            step(tape)
        tape.ended.append(tape.now)
        done.append(max(tape.free.values()))
    major, processors = CARDS.get(card, (9, 0))
    properties = {"name": card, "computeMajor": major, "computeMinor": 0, "numSms": processors}
    tape.header = {
        "record_shapes": 1,
        "baseTimeNanoseconds": BASE,
        "deviceProperties": [properties],
    }
    step_s = (done[-1] - done[0]) / traced / 1e9
    ours = {
        "version": 2, "torch": "2.11.0+cu130", "device": card, "capability": [major, 0],
        "bare_s": [step_s] * 20, "loading_s": [], "lead_in": 1, "traced": traced,
        "allow_tf32": False, "cudnn_allow_tf32": True, "cudnn_benchmark": False,
        "matmul_precision": "highest", "compiled": False, "autocasts": 0.0, "reads": [],
        "unit": "optimizer step", "samples": [[BASE + at, line] for at, line in tape.lines],
    }  # fmt: skip
    if times is not None:
        ours["times"] = second_recording(times, times.ended)
    tape.header |= {} if foreign else {"halfway": ours | facts}
    tape.events = [e for e in tape.events if not (foreign and e["name"].startswith("halfway::"))]
    return tape


def second_recording(made: Made, ends: list[int]) -> dict[str, Any]:
    """Kernels and runtime calls alone, as recorded some time before the operators were."""
    base = BASE - 3_000 * MS
    names = sorted({event["name"] for event in made.events})
    rows = [(names.index(e["name"]), e["cat"], base + e["ts"], e["dur"], e["tid"],
             e["args"].get("correlation", 0)) for e in made.events]  # fmt: skip
    rows.sort(key=lambda row: row[2])
    work = [[n, kind, at, ns, f"0/{tid}", c] for n, kind, at, ns, tid, c in rows if kind in WORK]
    calls = [[n, at, ns, tid, c] for n, kind, at, ns, tid, c in rows if kind == "cuda_runtime"]
    return {"ends": [base + end for end in ends], "names": names, "work": work, "calls": calls}


# ---------------------------------------------------------------- random traces

NAMES = ["aten::mm", "aten::convolution", "aten::relu", "aten::copy_", "mine::op"]
NODE = "autograd::engine::evaluate_function: MmBackward0"


@st.composite
def traces(draw: st.DrawFn, types: str = "float") -> Made:
    """Three steps of random operators, kernels on two streams, waits and copies."""
    made = Made()
    now = draw(st.integers(0, 50)) * US
    ends: list[int] = []
    busy_until = [0, 0]
    for _ in range(3):
        for _ in range(draw(st.integers(1, 6))):
            cpu_us, gpu_us = draw(st.integers(5, 40)), draw(st.integers(1, 90))
            stream = draw(st.integers(0, 1))
            thread = _operator(draw, made, now, now + cpu_us * US, types)
            launched = now + 2 * US
            start = max(busy_until[stream], launched + US + draw(st.integers(0, 9)) * 137)
            busy_until[stream] = start + gpu_us * US + draw(st.integers(0, 999))
            made.kernel("k", start, busy_until[stream], launched, thread, 7 + stream)
            now += cpu_us * US + draw(st.integers(0, 30)) * US
            if draw(st.integers(0, 5)) == 0:
                end = max(now, max(busy_until)) + US
                made.span("cuda_runtime", "cudaStreamSynchronize", now, end)
                now = end
        now = _compilation(draw, made, now)
        now, busy_until[0] = _graph(draw, made, now, busy_until[0])
        # The step's last kernel ends after all others, so that each step has an end of its own.
        start = max(*busy_until, now) + US
        made.op("aten::mm", now, now + 5 * US)
        made.kernel("k", start, start + US, now + US)
        busy_until = [start + US] * 2
        now += 5 * US
        ends.append(now)
    made.steps(*ends)
    return made


def _compilation(draw: st.DrawFn, made: Made, now: int) -> int:
    """Perhaps a compilation, with a synchronisation inside; when it is over."""
    if draw(st.integers(0, 3)):
        return now
    end = now + draw(st.integers(9, 90)) * US
    made.op("dynamo", now, end)
    made.op("_compile.compile_inner (dynamo_timed)", now + US, end - US)
    made.span("cuda_runtime", "cudaDeviceSynchronize", now + 2 * US, end - 2 * US)
    return end


def _graph(draw: st.DrawFn, made: Made, now: int, busy_until: int) -> tuple[int, int]:
    """Perhaps a CUDA graph of several kernels; when its launch and its last kernel are over."""
    if draw(st.integers(0, 3)):
        return now, busy_until
    made.correlation += 1
    end = now + 5 * US
    made.span("cuda_runtime", "cudaGraphLaunch", now, end, correlation=made.correlation)
    at = max(busy_until, end)
    for node in range(draw(st.integers(1, 4))):
        at += draw(st.integers(0, 3)) * 211
        length = draw(st.integers(1, 9)) * US
        made.span("kernel", "k", at, at + length, 7, correlation=made.correlation, stream=7,
                  device=0, **{"graph id": 1, "graph node id": node})  # fmt: skip
        at += length
    return end, at


def _operator(draw: st.DrawFn, made: Made, start: int, end: int, types: str) -> int:
    """One operator, alone, in a module, in a node, or in a module in a node; and its thread."""
    size = draw(st.sampled_from([8, 64, 65]))
    args: dict[str, Any] = {"Input Dims": [[size, 8], [8, size]], "Input type": [types, types]}
    in_node, in_module = draw(st.booleans()), draw(st.booleans())
    thread = BACKWARD if in_node else MAIN
    if in_node:
        made.op(NODE, start, end, thread, **{"Sequence number": 1, "Fwd thread id": 1})
    if in_module:
        made.note(f"halfway::layer{draw(st.integers(0, 2))}", start + 1, end - 1, thread)
    made.op(draw(st.sampled_from(NAMES)), start + 2, end - 2, thread, **args)
    return thread
