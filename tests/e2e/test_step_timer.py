"""Timing of steps: what the clocks say adds up, and nothing is counted twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.train_cases import case_of, quietly

from e2e.case import TrainCase
from e2e.data.datasets.synthetic import Synthetic
from e2e.data.types import Options
from e2e.networks import find
from e2e.results.types import Training
from e2e.training.host_speed import SpeedByTurn
from e2e.training.ranks import Ranks
from e2e.training.speedups import with_speedups
from e2e.training.step_timer import (
    BURSTS_LEAD,
    BurstTimer,
    CpuSteps,
    busy_in,
    time_phases,
    union_s,
)
from e2e.training.timing import Watch, time_interleaved
from e2e.training.variant import TimedPart, Variant
from e2e.training.variants import Task, Variants
from microbench.device.device import describe, open_telemetry
from microbench.device.profiler import KernelTime
from microbench.errors import UserError
from microbench.timing import FEWEST_ROUNDS
from microbench.timing.interleave import VariantFailed

NAP_S = 0.002
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
def test_a_step_that_lost_the_device_does_not_move_how_long_kernels_run(late: int | None) -> None:
    """Two kernels of 3 and 4 a step, 1 apart; in the midst of one the device was away."""
    spans = [
        (10 * step + at, 2000 if (step, at) == (late, 4) else length)
        for step in range(5)
        for at, length in ((0, 3), (4, 4))
    ]
    assert busy_in(kernels(spans), 5) == (7.0, 2)
    unlike = kernels([(0, 3), (4, 4), (10, 3)])
    assert (busy_in(unlike, 2), busy_in([], 5)) == ((5.0, 1), (0.0, 0)), "in the mean"


def test_waiting_for_another_rank_s_gradients_is_no_work() -> None:
    """A step: 6 of computing, an all-reduce beside it from 4 on that waits until 20."""
    step = [KernelTime("k", 6.0, 0.0), KernelTime("ncclDevKernel_AllReduce", 16.0, 4.0)]
    shifted = [KernelTime(k.name, k.seconds, k.start_s + 30) for k in step]
    assert busy_in([*step, *shifted], 2, exchange_s=3.0) == (9.0, 2)
    assert busy_in([*step, *shifted], 2, exchange_s=50.0) == (20.0, 2)
    assert busy_in(step, 1) == (6.0, 2)


@given(st.data(), spans, st.floats(1e-7, 1e-3), st.floats(0, 1e3))
def test_the_union_is_what_a_grid_counts_in_any_order_and_wherever_the_clock_starts(
    data: st.DataObject, given_spans: list[Span], tick_s: float, zero_s: float
) -> None:
    shuffled = data.draw(st.permutations(given_spans))
    assert union_s(kernels(shuffled)) == union_s(kernels(given_spans)) == covered(given_spans)
    moved = [KernelTime("k", k.seconds, zero_s + k.start_s) for k in kernels(given_spans, tick_s)]
    # A double holds a thousand seconds to a tenth of a picosecond.
    assert union_s(moved) == pytest.approx(covered(given_spans) * tick_s, rel=1e-9, abs=1e-10)


# ---------------------------------------------------------------- blocks on a CPU


def test_a_block_has_a_time_for_every_step_and_they_add_up() -> None:
    naps_s = [0.0, 10 * NAP_S, 0.0, NAP_S]
    left = list(naps_s)
    start_s = time.perf_counter()
    block = CpuSteps().block(lambda: time.sleep(left.pop(0)), len(naps_s))
    outside_s = time.perf_counter() - start_s
    assert not left
    assert len(block.times_s) == block.wall_steps == len(naps_s)
    assert all(t >= nap_s for t, nap_s in zip(block.times_s, naps_s, strict=True))
    assert block.wall_times_s == block.times_s
    assert sum(block.times_s) == pytest.approx(block.wall_s)
    assert block.wall_s <= outside_s
    assert block.sm_clock_mhz is None


# ---------------------------------------------------------------- steps that a loader feeds


class Loader:
    """Waits a second more for each batch than for the one before."""

    def __init__(self) -> None:
        self.steps, self.waited_s = 0, 0.0

    def step(self) -> None:
        self.steps += 1
        self.waited_s += self.steps


@given(st.integers(0, 8), st.integers(1, 20))
def test_blocks_and_what_leads_them_have_equal_steps_of_workers(workers: int, samples: int) -> None:
    loader = Loader()
    bursts = BurstTimer(CpuSteps(), workers, lambda: loader.waited_s)
    block = bursts.block(loader.step, samples)
    steps, each = block.wall_steps, max(1, workers)
    lead = loader.steps - steps
    assert steps % each == lead % each == 0
    assert samples <= steps < samples + each
    assert max(workers, samples // BURSTS_LEAD) <= lead <= steps
    assert block.waited_s == sum(range(1 + lead, loader.steps + 1))
    assert len(block.times_s) == 1
    assert steps * block.times_s[0] == pytest.approx(block.wall_s)
    before = loader.steps
    bursts.run(loader.step, samples)
    assert loader.steps - before == steps


# ---------------------------------------------------------------- phases


def test_phases_are_all_time_between_two_marks_and_those_of_a_name_are_added() -> None:
    def step(mark: Callable[[str], None]) -> None:
        for name in ("forward", "backward", "forward"):
            time.sleep(NAP_S)
            mark(name)

    phases = time_phases(step, cuda=False, steps=3)
    assert [phase.name for phase in phases] == ["forward", "backward"]
    for phase, naps in zip(phases, (2, 1), strict=True):
        assert phase.gpu_s is None
        assert phase.host_s >= naps * NAP_S
    assert time_phases(lambda _: None, cuda=False, steps=2) == ()
    began_s = time.perf_counter()
    phases = time_phases(step, cuda=False, steps=1)
    assert 3 * NAP_S <= sum(phase.host_s for phase in phases) <= time.perf_counter() - began_s


# ---------------------------------------------------------------- turns


def stub(name: str) -> Variant:
    """A variant whose steps take a millisecond."""
    trainer: Any = SimpleNamespace(skipped_steps=0, set_backend_flags=lambda: None)
    feed: Any = SimpleNamespace(wait_until_full=lambda: None, drop_prefetched=lambda: None)
    training = Training(TrainCase("own", name, 1, "1"), "ok", step_units=1)
    return Variant(training, trainer, feed, (TimedPart(name, lambda: time.sleep(1e-3), 1e-3),))


def test_each_round_has_a_turn_of_each_variant_in_an_order_of_its_own() -> None:
    variants = [stub(name) for name in "abcdef"]
    turns: list[str] = []

    def during(key: str) -> AbstractContextManager[object]:
        turns.append(key)
        return nullcontext()

    time_interleaved(
        variants, 0.5, CpuSteps(), Ranks.alone(torch.device("cpu")), Watch(during, quietly)
    )
    rounds = [tuple(turns[at : at + 6]) for at in range(0, len(turns), 6)]
    assert len(rounds) >= FEWEST_ROUNDS
    assert all(sorted(one) == sorted("abcdef") for one in rounds)
    assert len(set(rounds)) > 1
    assert [len(variant.blocks) for variant in variants] == [len(rounds)] * 6


def test_a_step_that_raises_is_blamed_on_its_variant_but_a_mistake_is_the_user_s() -> None:
    for error in (ValueError("planted"), UserError("planted")):
        variants = [stub("a"), stub("b")]

        def fail(error: Exception = error) -> None:
            raise error

        variants[1].parts[0].launch = fail
        expected = UserError if isinstance(error, UserError) else VariantFailed
        with pytest.raises(expected) as raised:
            time_interleaved(
                variants, 0.1, CpuSteps(), Ranks.alone(torch.device("cpu")),
                Watch(lambda _: nullcontext(), quietly),
            )  # fmt: skip
        if isinstance(raised.value, VariantFailed):
            assert raised.value.variant is variants[1].parts[0]
            assert raised.value.__cause__ is error


# ---------------------------------------------------------------- how fast the host launches


class PlannedSpeeds:
    """Slowdowns in the order that they are asked for; a device without memory at the end."""

    def __init__(self, *slowdowns: float) -> None:
        self.left = list(slowdowns)

    def slowdown(self) -> float:
        if not self.left:
            raise torch.OutOfMemoryError("no room")
        return self.left.pop(0)

    def forget(self) -> None:
        """It holds nothing."""


def test_a_turn_has_the_mean_of_both_its_ends() -> None:
    looks = SpeedByTurn(PlannedSpeeds(1.0, 2.0, 4.0, 3.0, 5.0, 6.0))
    for turn in ("a", "b", "a", "b", "b", ""):
        looks.begin(turn)
    assert looks.of("a") == fmean((1.5, 3.5))
    assert looks.of("b") == 4.0  # of 3, 4 and 5.5
    assert looks.of("c") is None
    looks.begin("a")
    assert looks.of("a") is None, "a speed that cannot be read ends no measurement"


def timed(
    name: str, recipes: Sequence[str], budget_s: float, *more: Any, spoilt: str = ""
) -> list[Training]:
    """What a CPU times of a network under these recipes at batch 4; the weights of `spoilt` are
    infinite.
    """
    info, network = describe("cpu"), find(name)
    data = Synthetic(Options(network.input, network.classes, network.tokens))
    with open_telemetry(info, 0.05) as telemetry:
        variants = Variants(Task(network, data, seed=1), info.target(), telemetry)
        with closing(variants):
            cases = [case_of(network, 4, recipe=recipe) for recipe in recipes]
            assert all(t.status == "ok" for t in variants.set_up(cases, quietly))
            for case in cases:
                if case.recipe == spoilt:
                    for weight in variants.held[case.key].trainer.module.parameters():
                        weight.data.fill_(float("inf"))
            return variants.time(budget_s, quietly, *more)


def test_a_turn_has_the_host_speed_of_its_time_and_no_number_is_no_result() -> None:
    """Ever slower by 1, of which the first turn, to warm up, has none."""
    speed = PlannedSpeeds(*(float(number) for number in range(100)))
    found = timed("cnn-cifar", ("fp32", "amp-bf16"), 0.2, speed)
    looks = 100 - len(speed.left)
    rounds = len(found[0].steps.blocks) if found[0].steps else 0
    assert looks == 2 + 2 * rounds >= 2 + 2 * FEWEST_ROUNDS
    # Turn n is between n and n + 1; which variant begins varies, and both are in each round.
    slowdowns = [t.steps.host_pace or 0 for t in found if t.steps]
    assert sum(slowdowns) == pytest.approx(looks - 1, abs=1.1)
    left: list[float] = []
    fp32, fp16 = timed("gpt-tiny", ("fp32", "fp16"), 1.5, None, left.append, spoilt="fp16")
    assert (fp32.status, fp32.reason) == ("ok", None)
    assert (fp32.unit, fp32.step_units) == ("tok", 4 * 64)
    assert fp32.steps
    assert (fp16.status, fp16.steps, fp16.phases) == ("failed", None, ())
    assert fp16.reason.startswith("its weights are not finite after ")
    assert left
    assert min(left) >= 0
    (alone,) = with_speedups([fp16], {})
    both = with_speedups([fp32, fp16], {})
    assert alone.speedup == both[1].speedup == {}
