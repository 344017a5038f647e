"""The queue of a step, against planted costs; a captured graph's kernels and gaps add up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.prediction.queue_model import GraphCosts, OpCost, simulate

US, VIEW = 1e-6, "view"


def op(gpu_us: float, host_us: float, kind: str = "norm", waits: bool = False) -> OpCost:
    return OpCost(kind, "forward", "", gpu_us * US, host_us * US, waits)


whole_us = st.integers(0, 40)
op_costs = st.builds(
    lambda gpu, host, view, waits: op(0 if view else gpu, host, VIEW if view else "norm", waits),
    whole_us, whole_us, st.booleans(), st.booleans(),
)  # fmt: skip


@pytest.mark.parametrize(
    ("ops", "step_us", "gpu_us", "limit"),
    [
        ([op(100, 10), op(200, 10)], 300, 300, "gpu"),
        ([op(10, 100), op(20, 100), op(0, 50, VIEW)], 250, 30, "host"),
        ([op(100, 1, VIEW), op(10, 1)], 10, 10, "gpu"),  # a view takes no device time
        ([op(0, 30, VIEW), op(100, 10), op(50, 10, waits=True)], 190, 150, "host"),  # the drain
        # After the wait: 40 for the last launch, 20 of its kernel, then 100 of the first one's.
        ([op(100, 5, waits=True), op(20, 40)], 160, 120, "host"),
        # What has no device time waits for what came before.
        ([op(100, 10), op(0, 5, VIEW, waits=True)], 110, 100, "gpu"),
        # The first of four kernels starts when its own launch is over.
        ([replace(op(100, 40, waits=True), kernels=4)], 110, 100, "gpu"),
        ([], 0, 0, "gpu"),
    ],
)
def test_a_planted_step(ops: list[OpCost], step_us: float, gpu_us: float, limit: str) -> None:
    found = simulate(ops)
    assert found.step_s == pytest.approx(step_us * US)
    assert found.gpu_s == pytest.approx(gpu_us * US)
    assert found.host_s == pytest.approx(math.fsum(each.host_s for each in ops))
    assert found.idle_s == pytest.approx((step_us - gpu_us) * US)
    assert found.limit == limit


def test_a_graph_costs_the_host_one_launch() -> None:
    ops = [op(10, 100), op(20, 100, waits=True)]
    assert simulate(ops, captured=True, framework_s=5 * US).step_s == pytest.approx(30 * US)
    late = simulate(ops, captured=True, framework_s=90 * US)
    assert (late.step_s, late.host_s, late.limit) == (pytest.approx(90 * US), 90 * US, "host")


@given(st.lists(op_costs, min_size=1, max_size=12), st.integers(1, 16))
def test_parts_add_up_and_neither_side_is_beaten(ops: list[OpCost], queue_depth: int) -> None:
    found = simulate(ops, queue_depth=queue_depth)
    assert found.step_s == found.gpu_s + found.idle_s
    assert found.idle_s >= 0
    assert found.step_s >= max(found.gpu_s, found.host_s) * (1 - 1e-9)
    assert found.gpu_s == pytest.approx(math.fsum(each.device_s for each in ops))
    assert found.host_s == pytest.approx(math.fsum(each.host_s for each in ops))


@given(st.lists(st.tuples(st.floats(1, 50), st.floats(0.1, 1), st.integers(1, 9)), min_size=1),
       st.floats(0, 1), st.just(0.0) | st.floats(0.1, 20), st.floats(0, 3))  # fmt: skip
def test_kernels_and_gaps_of_a_graph_take_the_captured_time(
    costs: list[tuple[float, float, int]], gap_us: float, unknown_us: float, launch_us: float
) -> None:
    known = [
        replace(op(gpu, 1.0), busy_s=share * gpu * US, kernels=count, conversion_s=gpu * US / 4)
        for gpu, share, count in costs
    ]
    ops = [*known, op(unknown_us, 1.0), replace(op(7, 1, VIEW), busy_s=7 * US, kernels=5)]
    kernels = sum(one.kernels for one in known)
    step_s = (2 * sum(gpu for gpu, _, _ in costs) + unknown_us + gap_us * kernels) * US
    graph = GraphCosts(step_s, gap_us * US, launch_us * US)
    found = graph.ops(ops, ops)
    assert math.fsum(one.device_s for one in found) == pytest.approx(step_s)
    assert found[len(known) :] == tuple(ops[len(known) :])
    for one, own in zip(found, known, strict=False):
        assert one.conversion_s == pytest.approx(one.gpu_s / 4)
        assert one.gpu_s == pytest.approx((one.busy_s or 0) + gap_us * US * own.kernels)
    counted = kernels + (1 if unknown_us else 0)
    assert graph.host_s(ops) == pytest.approx(launch_us * US * counted)
