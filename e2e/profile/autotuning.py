"""cuDNN's autotuning at new shapes (torch.backends.cudnn.benchmark), and what it takes."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from e2e.profile.operators import shape_words, shapes_of
from e2e.profile.step import CARRIED, Op, Step, idle_term
from e2e.profile.trace import LAUNCH, LAUNCHES, OP, Span
from e2e.results.terms import IDLE, SYNC

MANY_KERNELS = 16  # of one call: with conversions of layout, forward or backward have fewer
# The operators in which cuDNN and MIOpen search.
_SEARCHES = re.compile(r"aten::((cudnn|miopen)_convolution\w*|convolution_backward)")
_SHAPE = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")


@dataclass(frozen=True)
class Autotuning:
    """How many searches there were, at which shapes, and the time that they took.

    Candidates that ran and waits within such a call count; what else ran meanwhile does not.
    """

    count: int
    shapes: tuple[str, ...]
    ops: Sequence[Op]


def autotuning(step: Step) -> Autotuning:
    """The searches in the steps: calls at a shape that came for the first time."""
    named = step.with_names
    if named.trace.facts.get("cudnn_benchmark") is False:
        return Autotuning(0, (), ())
    inside = [op for op in _searching(named) if named.start <= op.start < named.end]
    shapes = dict.fromkeys(shape_words(shapes_of(op)[0]) for op in inside if shapes_of(op))
    within = [(op.start, op.end, id(op)) for op in inside]
    ids = {key for *_, key in within}
    ops = [
        op for op in step.ops
        if op.term not in CARRIED and any(id(span) in ids for span in op.ops)
    ]  # fmt: skip
    if step is named:  # waits of any kind inside such a call
        ops += [
            op for op in step.ops
            if op.term in IDLE and not any(id(span) in ids for span in op.ops)
            and any(start <= op.start and op.end <= end for start, end, _ in within)
        ]  # fmt: skip
    return Autotuning(len(inside), tuple(shapes), ops)


def _searching(step: Step) -> list[Span]:
    """The first calls at a shape that waited for candidates, or launched many."""
    seen: set[tuple[str, ...]] = set()
    calls_found: list[Span] = []
    launches = step.trace.spans[LAUNCH]
    starts = [launch.start for launch in launches]
    for op in step.trace.spans[OP]:
        if not _SEARCHES.fullmatch(op.name):
            continue
        key = (op.name, *(str(op.args.get(name)) for name in _SHAPE))
        if key not in seen:
            calls = launches[bisect_right(starts, op.start) : bisect_left(starts, op.end)]
            own = [call for call in calls if call.lane == op.lane]
            launched = sum(bool(LAUNCHES.search(call.name)) for call in own)
            if launched > MANY_KERNELS or any(idle_term(call) == SYNC for call in own):
                calls_found.append(op)
        seen.add(key)
    return calls_found
