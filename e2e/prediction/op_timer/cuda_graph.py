"""Times a CUDA graph of a step: its calls are captured together in order, and replayed.

In a graph a kernel starts sooner after the one before than when each is launched. By how much
depends on both, and on what the L2 cache still holds. The host launches all of them at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from e2e.aten import Call
from e2e.aten.call import named_arguments
from e2e.prediction.op_timer.cuda import GATED_COMMANDS, CudaStopwatch
from e2e.prediction.op_timer.launch_times import Threads, by_thread, in_backward, in_order
from e2e.prediction.op_timer.op_costs import CallTimer, key_of
from e2e.prediction.op_timer.op_timer import OpTime, PlacedCall, is_steady
from e2e.prediction.queue_model import GraphCosts
from e2e.prediction.trace.fake_trace import Trace
from e2e.training.speed_readings import HostSpeed, SpeedBetween
from e2e.training.step_timer import busy_time, host_time
from e2e.training.trainer import capture_stream
from kernels.error_words import one_line
from microbench.timing.stats import median

SETTLE_S, BLOCKS = 0.3, 15
MOST_GAP_S = 1e-6  # between kernels of a graph; more than that is a difference of clocks


class CaptureFailed(Exception):
    """A capture broke off; this process cannot use the device reliably any more."""


def measure_graph(
    calls: CallTimer, traced: Trace, known: Mapping[str, OpTime], host_speed: HostSpeed
) -> tuple[GraphCosts, bool]:
    """The costs of a captured step, and whether they were steady enough to keep. CUDA only.

    `known` has the times of its calls by `key_of`; calls without one, which cannot be launched
    alone, are left out. Call `check_capturable` before. RuntimeError, with the reason, when the
    graph does not fit the memory or the profiler sees no kernel; CaptureFailed, or what a launch
    raises.
    """
    stopwatch = calls.stopwatch
    assert isinstance(stopwatch, CudaStopwatch), "only a GPU captures steps"
    counted = calls.counted(traced, known)
    graph = graph_of(counted, calls.device)
    _settle(graph)
    busy_s, kernels = busy_time(graph.replay)
    if not kernels:
        raise RuntimeError("no kernel of its graph was seen")
    _settle(graph)
    steps_s = _steps_s(graph, stopwatch, max(1, GATED_COMMANDS // (kernels + 2)))
    captured = graph_costs(median(steps_s), busy_s, kernels, _launch_s(graph.replay, host_speed))
    return captured, is_steady(steps_s, "cuda")


def graph_costs(step_s: float, busy_s: float, kernels: int, launch_s: float) -> GraphCosts:
    """Costs of a graph that takes `step_s`, its `kernels` kernels running for `busy_s`: seconds.

    `launch_s` is what launching the graph takes the host.
    """
    gap_s = (step_s - busy_s) / kernels
    return GraphCosts(step_s, min(max(0.0, gap_s), MOST_GAP_S), launch_s / kernels)


def _settle(graph: torch.cuda.CUDAGraph) -> None:
    """Replay it until the clock is the step's."""
    until_s = time.perf_counter() + SETTLE_S
    while time.perf_counter() < until_s:
        graph.replay()
        torch.cuda.synchronize()


def _steps_s(graph: torch.cuda.CUDAGraph, stopwatch: CudaStopwatch, together: int) -> list[float]:
    """Device seconds of a replay, in BLOCKS of `together` replays, or of one if the host has to
    wait before it has launched them all. An event follows each, as when steps are timed.
    """
    event = torch.cuda.Event(enable_timing=True)

    def step() -> None:
        graph.replay()
        event.record()

    for count in dict.fromkeys((together, 1)):
        steps_s: list[float] = []
        while len(steps_s) < BLOCKS:
            steps_s.append(stopwatch.behind_gate(step, count)[1])
            if stopwatch.gate_expired:
                break
        else:
            return steps_s
    raise RuntimeError("launching its graph waits for the device")


def check_capturable(traced: Trace, known: Mapping[str, OpTime]) -> None:
    """RuntimeError for a step that no graph can hold, with the reason.

    A call waits for the device, or is the backward pass of attention with dropout.
    """
    for op in traced.ops:
        taken = known.get(key_of(traced.case, op))
        if op.waits or (taken is not None and taken.waits):
            raise RuntimeError(f"{op.call.name} waits for the device: no graph can hold it")
        if _has_dropout(op.call):
            raise RuntimeError(f"{op.call.name} with dropout is not captured as it is launched")


def _has_dropout(call: Call) -> bool:
    """Whether it is the backward pass of attention with dropout: the forward pass leaves its seed
    on the host when it is launched, on the device when it is captured.
    """
    name = call.operator
    if "attention" not in name or not name.endswith("backward"):
        return False
    return bool(named_arguments(call).get("dropout_p"))


def graph_of(counted: Sequence[PlacedCall], device: torch.device) -> torch.cuda.CUDAGraph:
    """A graph of every launch of the calls, in the step's order and from the step's threads.

    It reads and writes the calls' arguments: keep them alive. CaptureFailed when capturing fails.
    """
    stream = capture_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        first, again = (rows_of(counted, device) for _ in range(2))
        for launch in first:  # algorithms and workspaces must be there before
            launch()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for launch in again:
                launch()
    except torch.OutOfMemoryError:
        raise  # the capture has ended as it should
    except Exception as error:
        # Ending a capture that broke off raises too, about that alone.
        raise CaptureFailed(one_line(error.__context__ or error)) from error
    return graph


def rows_of(counted: Sequence[PlacedCall], device: torch.device) -> list[Callable[[], object]]:
    """The step's launches, one function per run of launches of one thread; each works once."""
    ready: Threads = (lambda work: work, partial(in_backward, device=device))
    rows = by_thread(in_order(counted), lambda launch: launch.backward, ready)
    return [
        make(partial(_launch, [counted[launch.which] for launch in some])) for make, some in rows
    ]


def _launch(counted: Sequence[PlacedCall]) -> None:
    for one in counted:
        one.replay.launch_cold()


def _launch_s(step: Callable[[], object], host_speed: HostSpeed) -> float:
    """Seconds of the host to launch a step, at the reference speed."""
    between = SpeedBetween(host_speed)
    launch_s = host_time(step)
    return launch_s / between.ends()
