"""Peak memory of a step from what its calls allocate and when that is let go."""

from __future__ import annotations

from collections.abc import Mapping

from e2e.predict.trace.fake_trace import Trace


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
