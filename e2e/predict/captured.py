"""What a captured step takes: its calls, captured in the step's order and played again together.

In a graph a kernel follows the one before sooner than when each is launched, how much sooner
depends on both of them; and the host launches all of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from statistics import fmean

import torch

from e2e.learner import capture_stream
from e2e.predict.calls import Calls, key_of
from e2e.predict.cuda_replay import GATED_COMMANDS, CudaStopwatch
from e2e.predict.host_times import in_order
from e2e.predict.model import Captured
from e2e.predict.pace import HostPace
from e2e.predict.replay import Counted, OpTime, is_steady
from e2e.predict.threads import in_backward
from e2e.predict.trace import Trace
from e2e.steps import host_time
from microbench.stats import median

WARM_REPLAYS, BLOCKS = 5, 15


@dataclass(frozen=True)
class Learnt:
    """What a captured step takes beside its kernels, and whether it was steady enough to keep."""

    captured: Captured
    steady: bool


def measure(calls: Calls, traced: Trace, known: Mapping[str, OpTime], pace: HostPace) -> Learnt:
    """Of a step whose calls are `known` by `key_of`, on a CUDA device.

    Raises what launching or capturing the calls raises, and RuntimeError where one of them cannot
    be launched alone.
    """
    stopwatch = calls.stopwatch
    assert isinstance(stopwatch, CudaStopwatch), "only a GPU captures steps"
    found = (known.get(key_of(traced.case, op)) for op in traced.ops)
    taken = [time for time in found if time is not None]  # views have none
    counted = calls.counted(traced)
    graph = graph_of(counted, calls.device)
    for _ in range(WARM_REPLAYS):
        graph.replay()
    together = max(1, GATED_COMMANDS // (_kernels(taken) + 1))
    steps_s = [stopwatch.behind_gate(graph.replay, together)[1] for _ in range(BLOCKS)]
    captured = learnt(taken, median(steps_s), _launch_s(graph.replay, pace))
    return Learnt(captured, is_steady(steps_s, "cuda"))


def learnt(taken: Sequence[OpTime], step_s: float, launch_s: float) -> Captured:
    """From the calls of a step alone, the captured step, and the host's time to launch that."""
    busy_s = math.fsum(time.gpu_s if time.busy_s is None else time.busy_s for time in taken)
    between = _kernels([time for time in taken if time.busy_s is not None])
    return Captured((step_s - busy_s) / max(1, between), launch_s / max(1, _kernels(taken)))


def _kernels(taken: Sequence[OpTime]) -> int:
    return sum(time.kernels for time in taken if time.gpu_s)


def graph_of(counted: Sequence[Counted], device: torch.device) -> torch.cuda.CUDAGraph:
    """Every launch of the calls, in the step's order and from the thread that the step has for it.

    It reads and writes the calls' arguments. On a CUDA device; raises what capturing raises.
    """
    stream = capture_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        first, again = (rows_of(counted, device) for _ in range(2))
        for launch in first:  # algorithms and workspaces must be there before
            launch()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for launch in again:
            launch()
    return graph


def rows_of(counted: Sequence[Counted], device: torch.device) -> list[Callable[[], object]]:
    """The step's launches, as many together as one thread has in a row; each row runs once."""
    launches = [counted[i] for i in in_order(counted)]
    rows = [(so, partial(_launch, list(some))) for so, some in groupby(launches, _is_backward)]
    return [in_backward(row, device) if backward else row for backward, row in rows]


def _is_backward(one: Counted) -> bool:
    return one.backward


def _launch(counted: Sequence[Counted]) -> None:
    for one in counted:
        one.replay.launch_distant()


def _launch_s(step: Callable[[], object], pace: HostPace) -> float:
    """Seconds of the host to launch a step, at pace 1."""
    before = pace.now()
    launch_s = host_time(step)
    return launch_s / fmean((before, pace.now()))
