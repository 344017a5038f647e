"""The peak memory of a step is the largest sum of what is held, call by call."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st
from samples.train_cases import case_of

from e2e.aten import Call
from e2e.networks import find
from e2e.prediction.trace.fake_trace import Trace
from e2e.prediction.trace.recorder import TracedOp

sizes = st.integers(0, 10**6)
changes = st.lists(st.tuples(sizes, sizes, sizes), max_size=12)  # freed, allocated, scratch


def step(held: int, moves: list[tuple[int, int, int]]) -> Trace:
    """A step of as many different calls, each freeing and allocating so much."""
    ops = tuple(
        TracedOp(Call(f"aten.op{i}.default", (i,), ()), (), "forward", allocated, freed)
        for i, (freed, allocated, _) in enumerate(moves)
    )
    return Trace(case_of(find("cnn-cifar")), ops, held)


@given(sizes, changes)
def test_it_is_the_largest_of_what_each_call_finds_and_needs(
    held: int, moves: list[tuple[int, int, int]]
) -> None:
    found = step(held, moves)
    scratch = {op.call.key: moves[i][2] for i, op in enumerate(found.ops)}
    after = list(accumulate((made - freed for freed, made, _ in moves), initial=held))
    during = [left + scratch for left, (_, _, scratch) in zip(after[1:], moves, strict=True)]
    assert found.peak_bytes(scratch) == max([held, *during])
    assert found.peak_bytes() == max(after), "what was not timed needs no more than its results"
