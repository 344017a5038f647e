"""Random traces: operators with shapes, in modules, in nodes of backward, and recomputed there."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from samples.traces import BACKWARD, MAIN, US, Made

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
