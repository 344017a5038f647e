"""The queue of a step, against planted costs and against many steps played one by one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e2e.predict.op_timer.cuda_graph import graph_costs
from e2e.predict.queue_model import QUEUE_DEPTH, GraphCosts, OpCost, simulate
from e2e.train.speedups import IDLE_SHARE

US = 1e-6
SETTINGS = settings(max_examples=150)
PHASES = ("forward", "backward", "optimizer")


def op(gpu_us: float, host_us: float, kind: str = "norm", waits: bool = False) -> OpCost:
    return OpCost(kind, "forward", "", gpu_us * US, host_us * US, waits)


def played(ops: Sequence[OpCost], queue_depth: int, steps: int) -> list[float]:
    """When the host is through with each step, kernel by kernel as the docstring says it."""
    host_s, ends, marks = 0.0, [0.0], list[float]()
    for _ in range(steps):
        for each in ops:
            if each.device_s:
                for _ in range(each.kernels):
                    pending = len(ends) - 1 - queue_depth
                    host_s = max(host_s, ends[1 + pending] if pending >= 0 else 0.0)
                    host_s += each.host_s / each.kernels
                    ends.append(max(ends[-1], host_s) + each.device_s / each.kernels)
            else:
                host_s += each.host_s
            if each.waits:
                host_s = max(host_s, ends[-1])
        marks.append(max(host_s, ends[-1]))
    return marks


whole_us = st.integers(0, 40)
op_costs = st.builds(
    lambda gpu, host, phase, view: OpCost(
        "view" if view else "norm", phase, "", 0.0 if view else gpu * US, host * US
    ),
    whole_us,
    whole_us,
    st.sampled_from(PHASES),
    st.booleans(),
)
steps_of_ops = st.lists(op_costs, min_size=1, max_size=12)
depths = st.integers(1, 16)


def with_waits(ops: Sequence[OpCost], places: Sequence[int]) -> list[OpCost]:
    return [replace(each, waits=i in places) for i, each in enumerate(ops)]


steps_that_wait = st.builds(with_waits, steps_of_ops, st.lists(st.integers(0, 11), max_size=2))

# ---------------------------------------------------------------- planted

VIEW = "view"


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


def test_the_limit_is_the_host_from_the_idle_share_of_measured_steps_on() -> None:
    for idle, limit in ((0.9 * IDLE_SHARE, "gpu"), (1.1 * IDLE_SHARE, "host")):
        assert simulate([op(100, 100 / (1 - idle))]).limit == limit


def test_the_frameworks_time_is_the_hosts() -> None:
    found = simulate([op(10, 10), op(10, 10)], framework_s=100 * US)
    assert (found.host_s, found.step_s) == pytest.approx((120 * US, 120 * US))
    assert simulate([], framework_s=10 * US).step_s == pytest.approx(10 * US)


def test_a_graph_costs_the_host_one_launch() -> None:
    ops = [op(10, 100), op(20, 100, waits=True)]
    assert simulate(ops, captured=True, framework_s=5 * US).step_s == pytest.approx(30 * US)
    late = simulate(ops, captured=True, framework_s=90 * US)
    assert (late.step_s, late.host_s, late.limit) == (pytest.approx(90 * US), 90 * US, "host")


def test_a_captured_step_has_its_own_gaps() -> None:
    """The kernels of the two ops that are known run for 16 us alone, for 18 in the graph."""
    known = [replace(op(10, 100), busy_s=busy * US, kernels=4) for busy in (8, 8)]
    ops = [*known, op(20, 100), replace(op(0, 3), kind="view")]
    captured = GraphCosts(step_s=42 * US, gap_s=0.5 * US, launch_s=2 * US)
    found = captured.ops(ops, ops)
    assert [one.gpu_s for one in found] == [pytest.approx(11 * US)] * 2 + [20 * US, 0.0]
    assert [one.busy_s for one in found[:2]] == [pytest.approx(9 * US)] * 2
    assert captured.host_s(ops) == pytest.approx(18 * US)
    step = simulate(found, captured=True)
    assert (step.step_s, step.limit) == (pytest.approx(42 * US), "gpu"), "for no host"
    changing = replace(known[0], conversion_s=2 * US)
    (changed,) = captured.ops(ops, [changing])
    assert changed.conversion_s == pytest.approx(2.2 * US), "its part of the time stays"
    half = [replace(known[0], busy_s=4 * US), *ops[1:]]  # of what was captured, made faster
    assert captured.ops(ops, half)[0].busy_s == pytest.approx(4.5 * US)
    assert captured.ops(ops, half)[1:] == found[1:]
    short = replace(captured, step_s=1 * US).ops(ops, ops)
    assert all(one.gpu_s >= 0 for one in short), "no negative time"
    assert captured.ops(ops[2:], ops[2:]) == tuple(ops[2:])


def test_what_is_learnt_of_a_graph() -> None:
    """7 kernels that run for 21 us of 24.5, launched in 14."""
    found = graph_costs(24.5 * US, 21 * US, 7, 14 * US)
    assert (found.gap_s, found.launch_s) == (pytest.approx(0.5 * US), pytest.approx(2 * US))
    ops = [replace(op(9, 0), busy_s=20 * US, kernels=7)]
    assert simulate(found.ops(ops, ops), captured=True).step_s == pytest.approx(24.5 * US)
    assert found.host_s(ops) == pytest.approx(14 * US)
    assert graph_costs(20 * US, 21 * US, 7, 14 * US).gap_s == 0.0, "no negative gap"
    late = graph_costs(90 * US, 21 * US, 7, 14 * US)
    assert late.gap_s == 1 * US, "no gap is so long"
    assert simulate(late.ops(ops, ops), captured=True).step_s == pytest.approx(90 * US)


def test_a_full_queue_keeps_the_host_from_running_ahead() -> None:
    # First the device is slow, then the host; a deep queue hides each behind the other.
    ops = [op(100, 1)] * 10 + [op(1, 100)] * 10
    deep, shallow = simulate(ops), simulate(ops, queue_depth=2)
    assert deep.step_s == pytest.approx(1010 * US)
    assert shallow.step_s > 1.5 * deep.step_s


@pytest.mark.parametrize(
    ("wrong", "named"), [(op(10, -1), "negative"), (replace(op(1, 1), kernels=0), "kernel")]
)
def test_impossible_costs_are_our_own_mistake(wrong: OpCost, named: str) -> None:
    with pytest.raises(AssertionError, match=named):
        simulate([wrong])


@pytest.mark.parametrize(
    "ops",
    [[op(30, 9)] * 5000, [op(5, 9)] * 5000, [op(9, 9)] * 5000, [op(9, 9, waits=True)] * 5000],
    ids=["device", "host", "both", "waits"],
)
def test_a_network_of_five_thousand_ops_takes_a_moment(ops: list[OpCost]) -> None:
    found = simulate(ops)  # takes about 0.1 s; minutes if rounds did not converge
    assert found.step_s >= max(found.gpu_s, found.host_s) * (1 - 1e-9)


def test_a_deep_network_with_slow_places_is_played_right() -> None:
    ops = [op(20, 5)] * 2500 + [op(4, 20)] * 2500
    marks = played(ops, QUEUE_DEPTH, 40)
    assert simulate(ops).step_s == pytest.approx((marks[-1] - marks[19]) / 20, rel=1e-6)


# ---------------------------------------------------------------- properties


@SETTINGS
@given(steps_that_wait, depths, st.lists(st.integers(1, 3), min_size=12, max_size=12))
def test_it_is_the_period_of_many_steps(
    ops: list[OpCost], queue_depth: int, kernels: list[int]
) -> None:
    ops = [replace(each, kernels=count) for each, count in zip(ops, kernels, strict=False)]
    found = simulate(ops, queue_depth=queue_depth).step_s
    # 1/800 of what the transient holds is left; queue limits have periods of a few steps.
    marks = played(ops, queue_depth, 1200)
    assert found == pytest.approx((marks[-1] - marks[399]) / 800, rel=5e-3, abs=1e-12)


@SETTINGS
@given(steps_of_ops)
def test_without_waits_the_slower_side_sets_the_step(ops: list[OpCost]) -> None:
    found = simulate(ops, queue_depth=10**6)
    assert found.step_s == pytest.approx(max(found.gpu_s, found.host_s))


@SETTINGS
@given(steps_that_wait, depths)
def test_parts_add_up_and_neither_side_is_beaten(ops: list[OpCost], queue_depth: int) -> None:
    found = simulate(ops, queue_depth=queue_depth)
    assert found.step_s == found.gpu_s + found.idle_s
    assert found.idle_s >= 0
    assert found.step_s >= max(found.gpu_s, found.host_s) * (1 - 1e-9)
    assert found.gpu_s == pytest.approx(math.fsum(each.device_s for each in ops))
    assert found.host_s == pytest.approx(math.fsum(each.host_s for each in ops))


@SETTINGS
@given(steps_that_wait, st.integers(0, 11), st.booleans(), depths)
def test_dearer_ops_make_no_faster_step(
    ops: list[OpCost], which: int, host: bool, queue_depth: int
) -> None:
    dear = ops[which % len(ops)]
    if host:
        dear = replace(dear, host_s=dear.host_s + 7 * US)
    elif dear.device_s > 0:  # a first kernel would be one launch more
        dear = replace(dear, gpu_s=dear.gpu_s + 7 * US)
    dearer = list(ops)
    dearer[which % len(ops)] = dear
    before, after = (simulate(each, queue_depth=queue_depth) for each in (ops, dearer))
    assert after.step_s >= before.step_s * (1 - 1e-9)


@SETTINGS
@given(steps_of_ops)
def test_a_wait_at_the_end_takes_the_hosts_time_and_the_drain(ops: list[OpCost]) -> None:
    ops = with_waits(ops, [len(ops) - 1])
    found = simulate(ops)
    after_last = next((each.device_s for each in reversed(ops) if each.device_s), 0.0)
    unhidden = 0.0
    for each in reversed(ops):  # launched after the last kernel: may be hidden behind it
        if each.device_s:
            break
        unhidden += each.host_s
    assert found.step_s >= (found.host_s + max(0.0, after_last - unhidden)) * (1 - 1e-9)


@SETTINGS
@given(steps_that_wait, depths, whole_us.map(lambda us: us * US))
def test_scaling_all_costs_scales_the_step(
    ops: list[OpCost], queue_depth: int, framework_s: float
) -> None:
    once = simulate(ops, framework_s=framework_s, queue_depth=queue_depth)
    scaled = [replace(o, gpu_s=3 * o.gpu_s, host_s=3 * o.host_s) for o in ops]
    thrice = simulate(scaled, framework_s=3 * framework_s, queue_depth=queue_depth)
    assert thrice.step_s == pytest.approx(3 * once.step_s, rel=1e-6)


@SETTINGS
@given(steps_of_ops, whole_us)
def test_a_graph_is_never_slower_than_its_launch_or_its_kernels(
    ops: list[OpCost], graph_us: int
) -> None:
    found = simulate(ops, captured=True, framework_s=graph_us * US)
    assert found.step_s == pytest.approx(max(found.gpu_s, graph_us * US))


# ---------------------------------------------------------------- kernels


def test_the_queue_holds_kernels_and_not_calls() -> None:
    """Four calls of two kernels fill a queue of eight; four of one kernel do not."""
    one = [op(100, 1)] * 2 + [op(1, 100)] * 2
    two = [replace(each, kernels=2) for each in one]
    deep = max(simulate(one).gpu_s, simulate(one).host_s)
    assert simulate(one, queue_depth=5).step_s == pytest.approx(deep)
    assert simulate(two, queue_depth=9).step_s == pytest.approx(deep)
    assert simulate(two, queue_depth=2).step_s > 1.1 * deep
    halves = [op(50, 0.5)] * 4 + [op(0.5, 50)] * 4
    for depth in (2, 3, 4, 8):
        assert simulate(two, queue_depth=depth) == simulate(halves, queue_depth=depth)


def test_views_fill_no_queue() -> None:
    views = [replace(op(0, 5, "view"), kernels=7)] * 50
    ops = [op(100, 1)] * 2 + [op(1, 100)] * 2
    found = simulate(ops + views, queue_depth=5)
    assert found.step_s == pytest.approx(max(found.gpu_s, found.host_s))
