"""The peak memory of a step is the largest sum of what is held, call by call."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st
from samples.train_cases import case_of

from e2e.aten.call import Call
from e2e.networks import find
from e2e.prediction.op_timer.op_costs import key_of
from e2e.prediction.op_timer.op_timer import OpTime
from e2e.prediction.step_profile import peak_bytes
from e2e.prediction.trace.fake_trace import Trace
from e2e.prediction.trace.recorder import TracedOp

sizes = st.integers(0, 10**6)
changes = st.lists(st.tuples(sizes, sizes, sizes), max_size=12)  # freed, allocated, scratch


def step(held: int, moves: list[tuple[int, int, int]], graph: bool, batch: int) -> Trace:
    """A step of as many different calls, each freeing and allocating so much."""
    ops = tuple(
        TracedOp(Call(f"aten.op{i}.default", (i,), ()), (), "forward", "", False, False,
                 allocated=allocated, freed=freed)
        for i, (freed, allocated, _) in enumerate(moves)
    )  # fmt: skip
    case = replace(case_of(find("cnn-cifar")), graph=graph)
    return Trace(case, ops, held, batch, module_calls=0, weights=0, fake=True)


@given(sizes, changes, st.booleans(), sizes)
def test_it_is_the_largest_of_what_each_call_finds_and_needs(
    held: int, moves: list[tuple[int, int, int]], graph: bool, batch: int
) -> None:
    found = step(held, moves, graph, batch)
    times = {
        key_of(found.case, op): OpTime(0.0, 0.0, scratch)
        for op, (_, _, scratch) in zip(found.ops, moves, strict=True)
    }
    after = list(accumulate((made - freed for freed, made, _ in moves), initial=held))
    during = [left + scratch for left, (_, _, scratch) in zip(after[1:], moves, strict=True)]
    assert peak_bytes(found, times) == max([held, *during]) + (batch if graph else 0)


@given(sizes, changes)
def test_a_call_that_was_not_timed_needs_no_more_than_its_results(
    held: int, moves: list[tuple[int, int, int]]
) -> None:
    found = step(held, moves, False, 0)
    after = accumulate((made - freed for freed, made, _ in moves), initial=held)
    assert peak_bytes(found, {}) == max(after)
