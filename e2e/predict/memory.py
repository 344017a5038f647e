"""Peak memory of a step from what its calls allocate and when that is let go."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from e2e.predict.trace import Trace

# What torch gives cuBLAS as workspace when CUBLAS_WORKSPACE_CONFIG is not set: ":4096:2:16:8", from
# Hopper on 32 MiB (parseChosenWorkspaceSize in aten/src/ATen/cuda/CublasHandlePool.cpp).
WORKSPACE_BYTES, WORKSPACE_BYTES_HOPPER = (2 * 4096 + 8 * 16) << 10, 32 << 20
HOPPER = (9, 0)
CAPTURE_STREAMS = 2  # one on which steps are run before, one that is captured
CUBLAS = ("mm", "addmm", "bmm", "baddbmm")


def peak_bytes(trace: Trace, scratch: Mapping[str, int]) -> int:
    """The most that is allocated at once, weights and optimizer state included.

    `scratch` has, by a call's key, what it allocates beside its results while it runs (workspaces):
    measured, because the trace cannot know it.
    """
    alive = peak = trace.held_bytes
    for op in trace.ops:
        alive -= op.freed
        peak = max(peak, alive + op.allocated + scratch.get(op.call.key, 0))
        alive += op.allocated
    return peak


def captured_bytes(trace: Trace, capability: tuple[int, int] | None) -> int:
    """What a step holds beside its own peak when it is captured as a CUDA graph.

    A copy of the batch, which the graph reads, and new workspaces: torch keeps one for each stream
    and each of cuBLAS's handles, of which the threads of forward and backward have one each.
    """
    threads = {op.phase == "backward" for op in trace.ops if op.call.operator in CUBLAS}
    return trace.batch_bytes + CAPTURE_STREAMS * len(threads) * workspace_bytes(capability)


def workspace_bytes(capability: tuple[int, int] | None) -> int:
    """Bytes of one workspace of cuBLAS: the environment's ":KiB:count" pairs, or torch's own."""
    pairs = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pairs:
        return sum(int(size) * int(count) for size, count in pairs) << 10
    return WORKSPACE_BYTES_HOPPER if capability and capability >= HOPPER else WORKSPACE_BYTES
