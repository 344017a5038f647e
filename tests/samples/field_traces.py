"""Training loops as a profiler would record them, made by hand: a tape on which a step is played.

`recorded` plays a step several times, and adds what halfway's recorder says. Times are in ns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from samples.traces import BACKWARD, MAIN, US, Made

MS = 1_000_000
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
