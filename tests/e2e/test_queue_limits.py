"""The numbers in the model of a step's queue: its depth, the idle share, a graph's kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.prediction.queue_model import GraphCosts, OpCost, launched_at, simulate

US = 1e-6


def op(gpu_us: float, host_us: float = 1.0, kind: str = "norm") -> OpCost:
    return OpCost(kind, "forward", "", gpu_us * US, host_us * US)


def test_the_queue_holds_1024_kernels() -> None:
    """Slow on the device first, then on the host: every place more in the queue saves time."""
    ops = [op(100, 1)] * 1500 + [op(1, 100)] * 1500
    steps = {depth: simulate(ops, queue_depth=depth).step_s for depth in (1023, 1024, 1025)}
    assert steps[1023] > steps[1024] > steps[1025]
    assert simulate(ops).step_s == steps[1024]


def test_a_step_that_the_queue_just_holds_runs_at_the_slower_sides_speed() -> None:
    ops = [op(100, 1)] * 4 + [op(1, 100)] * 4
    slower_s = 404 * US
    assert simulate(ops, queue_depth=9).step_s == pytest.approx(slower_s)
    waits = [simulate(ops, queue_depth=depth).step_s for depth in (1, 2, 3, 4)]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] > 1.5 * slower_s


@pytest.mark.parametrize(("host_us", "limit"), [(111.0, "gpu"), (111.2, "host")])
def test_the_host_is_the_limit_from_a_tenth_of_idle_time_on(host_us: float, limit: str) -> None:
    assert simulate([op(100, host_us)]).limit == limit
    assert simulate([op(100, 1)], captured=True, framework_s=host_us * US).limit == limit


@pytest.mark.parametrize(("busy_us", "limit"), [(90.1, "gpu"), (89.9, "host"), (None, "gpu")])
def test_time_in_which_no_kernel_runs_is_idle_too(busy_us: float | None, limit: str) -> None:
    each = replace(op(100), busy_s=None if busy_us is None else busy_us * US)
    found = simulate([each])
    assert found.limit == limit
    assert found.idle_s == 0
    assert simulate([each], captured=True).limit == "gpu", "a graph has gaps of its own"


@given(st.lists(st.tuples(st.floats(1, 50), st.floats(0.1, 1), st.integers(1, 9)), min_size=1),
       st.floats(0, 1), st.just(0.0) | st.floats(0.1, 20), st.floats(0, 3))  # fmt: skip
def test_kernels_and_gaps_of_a_graph_take_the_captured_time(
    costs: list[tuple[float, float, int]], gap_us: float, unknown_us: float, launch_us: float
) -> None:
    known = [
        replace(op(gpu), busy_s=share * gpu * US, kernels=count, conversion_s=0.25 * gpu * US)
        for gpu, share, count in costs
    ]
    ops = [*known, op(unknown_us), replace(op(7, kind="view"), busy_s=7 * US, kernels=5)]
    kernels = sum(one.kernels for one in known)
    step_s = (2 * sum(gpu for gpu, _, _ in costs) + unknown_us + gap_us * kernels) * US
    graph = GraphCosts(step_s, gap_us * US, launch_us * US)
    found = graph.ops(ops, ops)
    assert sum(one.device_s for one in found) == pytest.approx(step_s)
    assert found[len(known) :] == tuple(ops[len(known) :])
    factors = {round(one.busy_s / own.busy_s, 9) for one, own in zip(found, known, strict=False)
               if one.busy_s and own.busy_s}  # fmt: skip
    assert max(factors) == pytest.approx(min(factors))
    for one, own in zip(found, known, strict=False):
        assert one.conversion_s == pytest.approx(0.25 * one.gpu_s)
        assert one.gpu_s == pytest.approx((one.busy_s or 0) + gap_us * US * own.kernels)
    counted = kernels + (1 if unknown_us else 0)
    assert graph.host_s(ops) == pytest.approx(launch_us * US * counted)


@given(st.floats(0.1, 10), st.lists(st.floats(0, 9), min_size=1))
def test_a_slower_host_launches_all_ops_slower(slowdown: float, hosts: list[float]) -> None:
    found = launched_at(slowdown, [op(3, host) for host in hosts])
    assert [one.host_s for one in found] == pytest.approx([slowdown * host * US for host in hosts])
    assert {one.gpu_s for one in found} == {3 * US}
