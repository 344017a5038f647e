"""Timing of steps: what the clocks say adds up, and nothing is counted twice."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.training.step_timer import (
    Bursts,
    CpuSteps,
    PhaseClock,
    StepBlock,
    Tally,
    busy_in,
    time_phases,
    union_s,
)
from microbench.device.profiler import KernelTime
from microbench.timing.timers import Launch

NAP_S = 0.004
TICKS = 60
Span = tuple[int, int]  # start and length, in whole ticks
spans = st.lists(st.tuples(st.integers(0, TICKS), st.integers(0, 15)), max_size=12)


def kernels(given_spans: list[Span], tick_s: float = 1.0) -> list[KernelTime]:
    return [KernelTime("k", length * tick_s, start * tick_s) for start, length in given_spans]


def covered(given_spans: list[Span]) -> int:
    """How many ticks at least one span covers, tick by tick."""
    return len({tick for start, length in given_spans for tick in range(start, start + length)})


# ---------------------------------------------------------------- when the device is busy


@pytest.mark.parametrize("late", [None, 0, 3, 4])
def test_a_step_that_lost_the_device_for_a_while_does_not_move_how_long_kernels_run(
    late: int | None,
) -> None:
    """Two kernels of 3 and 4 a step, 1 apart; in the midst of one the device was away."""
    spans = [
        (10 * step + at, 2000 if (step, at) == (late, 4) else length)
        for step in range(5)
        for at, length in ((0, 3), (4, 4))
    ]
    assert busy_in(kernels(spans), 5) == (7.0, 2)
    assert busy_in([], 5) == (0.0, 0)


def test_steps_of_unlike_kernels_are_busy_as_long_as_in_the_mean() -> None:
    assert busy_in(kernels([(0, 3), (4, 4), (10, 3)]), 2) == (5.0, 1)


def test_waiting_for_another_rank_s_gradients_is_no_work() -> None:
    """A step: 6 of computing, an all-reduce beside it from 4 on that waits until 20."""
    step = [KernelTime("k", 6.0, 0.0), KernelTime("ncclDevKernel_AllReduce", 16.0, 4.0)]
    shifted = [KernelTime(k.name, k.seconds, k.start_s + 30) for k in step]
    assert busy_in([*step, *shifted], 2, exchange_s=3.0) == (9.0, 2)
    assert busy_in([*step, *shifted], 2, exchange_s=50.0) == (20.0, 2)
    assert busy_in(step, 1) == (6.0, 2)


@given(spans)
def test_the_union_is_what_a_grid_counts(given_spans: list[Span]) -> None:
    assert union_s(kernels(given_spans)) == covered(given_spans)


@given(st.data(), spans)
def test_the_union_does_not_hang_on_the_order(data: st.DataObject, given_spans: list[Span]) -> None:
    shuffled = data.draw(st.permutations(given_spans))
    assert union_s(kernels(shuffled)) == union_s(kernels(given_spans))


@given(spans, st.floats(1e-7, 1e-3), st.floats(0, 1e3))
def test_the_union_scales_and_does_not_hang_on_where_the_clock_starts(
    given_spans: list[Span], tick_s: float, zero_s: float
) -> None:
    moved = [KernelTime("k", k.seconds, zero_s + k.start_s) for k in kernels(given_spans, tick_s)]
    # A double holds a thousand seconds to a tenth of a picosecond.
    assert union_s(moved) == pytest.approx(covered(given_spans) * tick_s, rel=1e-9, abs=1e-10)


@pytest.mark.parametrize(
    ("given_spans", "expected"),
    [
        ([], 0),
        ([(5, 3)], 3),
        ([(0, 4), (4, 4)], 8),  # one after another
        ([(0, 4), (2, 4)], 6),  # overlapping
        ([(0, 9), (2, 3)], 9),  # one in another
        ([(0, 9), (2, 3), (8, 3)], 11),  # the last one overlaps the first, not the second
        ([(3, 2), (3, 2), (3, 2)], 2),  # the same thrice
        ([(0, 1), (50, 1)], 2),  # with rest between them
    ],
)
def test_the_union_of_known_spans(given_spans: list[Span], expected: int) -> None:
    assert union_s(kernels(given_spans)) == expected


# ---------------------------------------------------------------- blocks on a CPU


@pytest.mark.parametrize("samples", [1, 5])
def test_a_block_has_a_time_for_every_step_and_they_add_up(samples: int) -> None:
    calls: list[float] = []

    def launch() -> None:
        calls.append(time.perf_counter())
        time.sleep(NAP_S)

    start_s = time.perf_counter()
    block = CpuSteps().block(launch, samples)
    outside_s = time.perf_counter() - start_s
    assert len(calls) == samples
    assert len(block.times_s) == block.wall_steps == samples
    assert min(block.times_s) >= NAP_S
    assert block.wall_times_s == block.times_s
    assert sum(block.times_s) == pytest.approx(block.wall_s)
    assert samples * NAP_S <= block.wall_s <= outside_s
    assert block.sm_clock_mhz is None


def test_a_long_step_is_seen_where_it_is() -> None:
    naps_s = [0.0, 0.0, 10 * NAP_S, 0.0]
    left = list(naps_s)
    block = CpuSteps().block(lambda: time.sleep(left.pop(0)), len(naps_s))
    assert not left
    assert block.times_s[2] >= 10 * NAP_S
    assert all(t >= nap_s for t, nap_s in zip(block.times_s, naps_s, strict=True))


@pytest.mark.parametrize("times", [0, 1, 4])
def test_an_untimed_run_launches_as_often_as_asked(times: int) -> None:
    calls: list[None] = []
    CpuSteps().run(lambda: calls.append(None), times)
    assert len(calls) == times


# ---------------------------------------------------------------- steps that a loader feeds


class Led(CpuSteps):
    """As a GPU's timer, which launches a step before the first that it times."""

    lead_steps = 1

    def block(self, launch: Launch, samples: int) -> StepBlock:
        launch()
        return super().block(launch, samples)


class Loader:
    """Waits a second more for each batch than for the one before; batches are noted as come."""

    def __init__(self) -> None:
        self.steps, self.waited_s, self.came_s = 0, 0.0, list[float]()

    def step(self) -> None:
        self.steps += 1
        self.waited_s += self.steps
        self.came_s.append(float(self.steps))

    def tally(self) -> Tally:
        return Tally(self.waited_s, self.came_s)


@pytest.mark.parametrize(("timer", "waited_s", "came_s"), [
    (CpuSteps(), 1 + 2 + 3 + 4, (1.0, 2.0, 3.0, 4.0)),
    (Led(), 2 + 3 + 4 + 5, (2.0, 3.0, 4.0, 5.0)),
])  # fmt: skip
def test_the_first_step_is_in_no_number_of_a_block(
    timer: CpuSteps, waited_s: float, came_s: tuple[float, ...]
) -> None:
    """Three samples of two workers: two whole rounds."""
    loader = Loader()
    block = Bursts(timer, 2, loader.tally).block(loader.step, 3)
    assert loader.steps == 4 + timer.lead_steps
    assert (block.waited_s, block.came_s) == (waited_s, came_s)
    assert block.wall_steps == 4
    assert len(block.times_s) == 1
    assert 4 * block.times_s[0] == pytest.approx(block.wall_s)


@pytest.mark.parametrize(("times", "launched"), [(1, 3), (3, 3), (4, 6)])
def test_whole_rounds_of_the_workers_run_before_a_block(times: int, launched: int) -> None:
    loader = Loader()
    Bursts(CpuSteps(), 3, loader.tally).run(loader.step, times)
    assert loader.steps == launched


# ---------------------------------------------------------------- phases


def test_phases_are_the_time_between_two_marks() -> None:
    naps_s = {"data": NAP_S, "forward": 3 * NAP_S, "optimizer": 0.0}

    def step(clock: PhaseClock) -> None:
        for name, nap_s in naps_s.items():
            time.sleep(nap_s)
            clock(name)

    start_s = time.perf_counter()
    phases = time_phases(step, cuda=False, steps=3)
    outside_s = time.perf_counter() - start_s
    assert [phase.name for phase in phases] == list(naps_s)
    for phase in phases:
        assert phase.gpu_s is None
        assert phase.host_s >= naps_s[phase.name]
    total_s = 3 * sum(phase.host_s for phase in phases)
    assert 3 * sum(naps_s.values()) <= total_s <= outside_s


def test_a_phase_that_comes_twice_a_step_is_added_up() -> None:
    def step(clock: PhaseClock) -> None:
        for name in ("forward", "backward", "forward", "backward"):
            time.sleep(NAP_S)
            clock(name)

    phases = time_phases(step, cuda=False, steps=2)
    assert [phase.name for phase in phases] == ["forward", "backward"]
    assert all(phase.host_s >= 2 * NAP_S for phase in phases)


def test_the_phases_are_everything_from_the_first_mark_to_the_last() -> None:
    clock = PhaseClock(cuda=False)
    clock("start")
    first_s = time.perf_counter()
    for name in ("a", "b", "a", "c"):
        time.sleep(NAP_S / 4)
        clock(name)
    last_s = time.perf_counter()
    total_s = sum(phase.host_s for phase in clock.phases(1))
    assert total_s == pytest.approx(last_s - first_s, abs=5e-4)


def test_a_step_without_marks_has_no_phases() -> None:
    assert time_phases(lambda _: None, cuda=False, steps=2) == ()
