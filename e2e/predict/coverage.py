"""Says, in words, what of a step could not be launched alone, and how much of the step that is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from e2e.predict.op_timer.op_costs import key_of
from e2e.predict.op_timer.op_timer import OpTime
from e2e.predict.queue_model import OpCost
from e2e.predict.trace.fake_trace import Trace
from e2e.predict.trace.recorder import TracedOp, is_view
from microbench.fmt import as_ms

K = TypeVar("K")
V = TypeVar("V")


def uncovered(traced: Trace, problems: Mapping[str, str]) -> tuple[str, ...]:
    """The calls whose time is not known, those of a name and a reason in a line, with their share
    of the calls that launch something and of the bytes of their arguments and results.
    """
    launched = [op for op in traced.ops if not is_view(op)]
    in_all = math.fsum(map(_bytes, launched))
    lines: list[str] = []
    missing = (
        ((op.call.name, why), op)
        for op in launched
        if (why := problems.get(key_of(traced.case, op))) is not None
    )
    for (name, why), ops in _gathered(missing).items():
        of_bytes = math.fsum(map(_bytes, ops)) / in_all if in_all else 0.0
        lines.append(
            f"{len(ops)} x {name}: {why} ({len(ops)} of {len(launched)} calls, "
            f"{_percent(of_bytes)} of their bytes)"
        )
    return tuple(lines)


def from_step(
    traced: Trace, costs: Sequence[OpCost], in_situ: Mapping[str, OpTime]
) -> tuple[str, ...]:
    """The calls that a real step has timed, those of a name in a line, with their device time, its
    share of all, and the host's; `costs` are of the trace's calls.
    """
    device_s = math.fsum(cost.device_s for cost in costs)
    taken = (
        (op.call.name, cost)
        for op, cost in zip(traced.ops, costs, strict=True)
        if key_of(traced.case, op) in in_situ
    )
    lines: list[str] = []
    for name, some in _gathered(taken).items():
        own_s, host_s = (
            math.fsum(cost.device_s for cost in some), math.fsum(cost.host_s for cost in some)
        )  # fmt: skip
        host = f"; {as_ms(1e3 * host_s)} ms of the host's" if host_s else ""
        lines.append(
            f"{len(some)} x {name} ({as_ms(1e3 * own_s)} ms, "
            f"{_percent(own_s / device_s if device_s else 0.0)} of the device's time{host})"
        )
    return tuple(lines)


def _gathered(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values by their keys, both in order."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def _bytes(op: TracedOp) -> int:
    return sum(each.distinct * each.itemsize for each in (*op.call.tensors, *op.outputs))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share >= 0.001 or not share else "under 0.1 %"
