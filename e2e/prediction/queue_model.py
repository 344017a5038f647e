"""A training step as a queue: the host launches ops in order, the device executes them.

Pure functions of costs. They compute the steady state: the time from one step to the next when the
same step is launched over and over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from e2e.training.speedups import IDLE_SHARE

# CUDA's launch queue: with this many kernels pending, the next one holds the host until the oldest
# of them has ended.
QUEUE_DEPTH = 1024
CONVERGED = 1e-9  # of the period: less is rounding
SWEEPS = 12  # over the step, a round: whole cycles of 1, 2, 3, 4, 6 or 12 steps
MAX_ROUNDS = 8


@dataclass(frozen=True)
class OpCost:
    """One op of a step, in order of launch, and its costs in seconds.

    `gpu_s` is device time, of which `conversion_s` goes into kernels that only change the layout
    inside a GEMM or convolution; `busy_s` is the part in which a kernel runs, None if unknown. An
    op of kind "view" has no device time. `host_s` is what the host needs to launch it; in one that
    `waits` the host waits for the device. `kernels` is how many it launches, if it has device time.

    `name` is ATen's ("aten.convolution.default"), `dtype` that of its input, `misaligned` the sizes
    that miss the fast kernels ("60 channels"), `padded` how they were padded ("60 to 64 channels");
    each is "" if unknown.
    """

    kind: str
    phase: str
    layer: str
    gpu_s: float
    host_s: float
    waits: bool = False
    conversion_s: float = 0.0
    name: str = ""
    dtype: str = ""
    misaligned: str = ""
    busy_s: float | None = None
    padded: str = ""
    kernels: int = 1

    @property
    def device_s(self) -> float:
        """Device seconds, layout changes included; 0 for a view."""
        return 0.0 if self.kind == "view" else self.gpu_s


@dataclass(frozen=True)
class GraphCosts:
    """Seconds of a step captured as a graph; of the host at the reference speed.

    `step_s` is the whole step, `gap_s` from a kernel's end to the next one's start, `launch_s` the
    host's time to launch the graph, per kernel.
    """

    step_s: float
    gap_s: float
    launch_s: float

    def ops(self, alone: Sequence[OpCost], ops: Sequence[OpCost]) -> tuple[OpCost, ...]:
        """The ops as they run in a graph, where the captured ones take `step_s`.

        `alone` are those as measured alone; `ops` the same, or their padded versions. An op of
        unknown kernel time takes as long as alone; the others' kernels are scaled by one factor so
        that the sum is right.
        """
        seen = [op for op in alone if op.device_s and op.busy_s is not None]
        unseen_s = math.fsum(op.device_s for op in alone if op.busy_s is None)
        gaps_s = self.gap_s * sum(op.kernels for op in seen)
        busy_s = math.fsum(op.busy_s or 0.0 for op in seen)
        share = max(0.0, self.step_s - unseen_s - gaps_s) / busy_s if busy_s else 1.0
        return tuple(
            op
            if op.busy_s is None or not op.device_s
            else _lasting(op, share * op.busy_s, self.gap_s * op.kernels)
            for op in ops
        )

    def host_s(self, ops: Iterable[OpCost]) -> float:
        """Host seconds to launch a graph of these ops, at the reference speed."""
        return self.launch_s * sum(op.kernels for op in ops if op.device_s)


def _lasting(op: OpCost, busy_s: float, gaps_s: float) -> OpCost:
    gpu_s = busy_s + gaps_s
    return replace(op, busy_s=busy_s, gpu_s=gpu_s, conversion_s=op.conversion_s * gpu_s / op.gpu_s)


@dataclass(frozen=True)
class Simulated:
    """A step in steady state; times in seconds.

    `idle_s` is the part of `step_s` in which the device has no work; `gpu_s` and `host_s` are what
    device and host need without each other. `limit` is "host" when no kernel runs in more than
    IDLE_SHARE of the step, as for measured steps (of a captured step the gaps between its kernels
    do not count), else "gpu".
    """

    step_s: float
    gpu_s: float
    host_s: float
    idle_s: float
    limit: str


def launched_at(slowdown: float, ops: Iterable[OpCost]) -> tuple[OpCost, ...]:
    """The same ops on a host whose launches take `slowdown` times as long (a ratio)."""
    return tuple(replace(op, host_s=slowdown * op.host_s) for op in ops)


Launch = tuple[float, float, bool]  # host seconds, device seconds, whether the host waits for it


def simulate(
    ops: Sequence[OpCost],
    *,
    framework_s: float = 0.0,
    captured: bool = False,
    queue_depth: int = QUEUE_DEPTH,
) -> Simulated:
    """The steady state of a step; times in seconds.

    `framework_s` is host time outside the ops, spread evenly over them. `captured`: the step is one
    CUDA graph, which costs the host `framework_s` and nothing per op. The host may be `queue_depth`
    kernels ahead; kernels of one op share its times evenly.
    """
    gpu_s = math.fsum(op.device_s for op in ops)
    if captured:
        # Between its kernels nothing waits for the host.
        return _simulated(max(gpu_s, framework_s), gpu_s, framework_s, gpu_s)
    busy_s = math.fsum(op.device_s if op.busy_s is None else op.busy_s for op in ops)
    launches = _launches(ops, framework_s)
    host_s = math.fsum(launch[0] for launch in launches)
    return _simulated(_period(launches, gpu_s, host_s, queue_depth), gpu_s, host_s, busy_s)


def _simulated(step_s: float, gpu_s: float, host_s: float, busy_s: float) -> Simulated:
    idle_s = max(0.0, step_s - gpu_s)
    limit = "host" if max(idle_s, step_s - busy_s) > IDLE_SHARE * step_s else "gpu"
    return Simulated(gpu_s + idle_s, gpu_s, host_s, idle_s, limit)


def _launches(ops: Sequence[OpCost], framework_s: float) -> list[Launch]:
    """The ops, each with its share of the framework's time."""
    assert all(op.gpu_s >= 0 and op.host_s >= 0 for op in ops), "costs are no negative times"
    assert all(op.kernels >= 1 for op in ops), "what takes time launches a kernel"
    if not ops:
        return [(framework_s, 0.0, False)] if framework_s else []
    share_s = framework_s / len(ops)
    return [launch for op in ops for launch in _kernels(op, op.host_s + share_s)]


def _kernels(op: OpCost, host_s: float) -> list[Launch]:
    """An op's launches; an op without kernels is one launch without device time."""
    count = op.kernels if op.device_s else 1
    each = (host_s / count, op.device_s / count)
    return [(*each, False)] * (count - 1) + [(*each, op.waits)]


def _period(launches: list[Launch], gpu_s: float, host_s: float, queue_depth: int) -> float:
    """Seconds from one step to the next."""
    waiting = [i for i, (_, _, waits) in enumerate(launches) if waits]
    if waiting:
        # When the host has waited nothing is pending: every round from there on is the same.
        turn = waiting[-1] + 1
        return _go_through(launches[turn:] + launches[:turn], 0.0, 0.0, [], queue_depth)[0]
    if sum(device_s > 0 for _, device_s, _ in launches) < queue_depth:
        # The host may be a whole step ahead: neither ever waits for the other's slow places.
        return max(gpu_s, host_s)
    return _period_of_full_queue(launches, max(gpu_s, host_s), queue_depth)


def _period_of_full_queue(launches: list[Launch], lower_s: float, queue_depth: int) -> float:
    """The period of a step of more kernels than the queue holds, in which nothing waits.

    It is the largest mean cycle of a max-plus system. No period is below `lower_s`: times told from
    the start of their step, taken to be that far apart, stay bounded when it is the period, and
    grow by what is missing, a step, when it is too short. The largest growth only ever falls.
    """
    host_s, ends = 0.0, [0.0] * sum(device_s > 0 for _, device_s, _ in launches)
    missing_s = math.inf
    for _ in range(MAX_ROUNDS):
        first = [host_s, *ends]
        for _ in range(SWEEPS):
            before = [end - lower_s for end in ends]
            later_s, later = _go_through(
                launches, host_s - lower_s, before[-1], before[-queue_depth:], queue_depth
            )
            if _growth([host_s, *ends], [later_s, *later]) <= CONVERGED * lower_s:
                return lower_s
            host_s = max(host_s, later_s)
            ends = [max(old, new) for old, new in zip(ends, later, strict=True)]
        growth_s = _growth(first, [host_s, *ends]) / SWEEPS
        if missing_s - growth_s <= CONVERGED * lower_s:
            return lower_s + growth_s
        missing_s = growth_s
    return lower_s + missing_s


def _growth(before: Sequence[float], after: Sequence[float]) -> float:
    return max(new - old for old, new in zip(before, after, strict=True))


def _go_through(
    launches: Sequence[Launch],
    host_s: float,
    end_s: float,
    before: Sequence[float],
    queue_depth: int,
) -> tuple[float, list[float]]:
    """One step from this state of host and device: the host's time after it, and every end.

    `before` are the ends of earlier launches that may be pending.
    """
    ends = list(before)
    for launch_s, device_s, waits in launches:
        if device_s > 0:
            oldest = len(ends) - queue_depth
            if oldest >= 0 and ends[oldest] > host_s:
                host_s = ends[oldest]
            host_s += launch_s
            end_s = (end_s if end_s > host_s else host_s) + device_s
            ends.append(end_s)
        else:
            host_s += launch_s
        if waits and end_s > host_s:
            host_s = end_s
    return host_s, ends[len(before) :]
