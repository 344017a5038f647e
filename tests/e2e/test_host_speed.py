"""How the host's pace is summed up."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.host_speeds import PlannedSpeeds
from samples.train_cases import case_of

from e2e.data.datasets.synthetic import Synthetic
from e2e.networks import find
from e2e.predict import host_speed as pace
from e2e.predict.host_speed import (
    ConstantSpeed,
    RecordedSpeed,
    SmallStepSpeed,
    host_speed_of,
)
from e2e.recipes import switch_tf32
from e2e.train.arm_timer import ArmTimer
from e2e.train.arms import Task
from e2e.train.speed_readings import SlowdownRange, SpeedBetween, SpeedByTurn, slowdown_range
from microbench.device.device import describe, open_telemetry
from microbench.timing.interleave import FEWEST_ROUNDS

PACES = st.lists(
    st.tuples(st.floats(0.0, 60.0), st.floats(0.1, 10.0)), min_size=2, max_size=200
)  # fmt: skip


@given(PACES)
def test_most_values_lie_between_low_and_high(seen: list[tuple[float, float]]) -> None:
    told, found = slowdown_range(seen), [pace for _, pace in seen]
    assert min(found) <= told.low <= told.middle <= told.high <= max(found)
    outside = [at_s for at_s, pace in seen if not told.low <= pace <= told.high]
    assert weight_of(outside, seen) <= 0.1 * (1 + 1e-9)


def weight_of(chosen: list[float], seen: list[tuple[float, float]]) -> float:
    """Their share of all seconds that were looked at."""
    seconds = [int(at_s) for at_s, _ in seen]
    return sum(1 / seconds.count(int(at_s)) for at_s in chosen) / len(set(seconds))


def test_the_spread_of_known_values() -> None:
    assert slowdown_range([(float(at), float(1 + at)) for at in range(100)]) == SlowdownRange(
        50.0, 5.0, 95.0
    )
    assert slowdown_range([(0.1, 2.0), (0.2, 3.0)]) == SlowdownRange(2.0, 2.0, 3.0)


def test_a_second_counts_as_much_as_another_however_often_it_was_looked_at() -> None:
    """150 looks within two slow seconds, one in each of seven quick ones."""
    seen = [(float(at), 2.0) for at in range(7)]
    seen += [(7 + i / 75, 3.0) for i in range(150)]
    assert slowdown_range(seen) == SlowdownRange(2.0, 2.0, 3.0)


def test_a_cpu_has_no_pace_of_its_own() -> None:
    pace = host_speed_of(torch.device("cpu"))
    assert isinstance(pace, ConstantSpeed)
    noted = RecordedSpeed(pace)
    noted.look()
    assert {found for _, found in noted.take()} == {1.0}
    assert slowdown_range(()) == SlowdownRange(1.0, 1.0, 1.0)


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> SmallStepSpeed:
    """As on a GPU, by a recipe that a CPU has, and with nothing to wait for."""
    monkeypatch.setattr(pace, "RECIPE", "amp-bf16")
    monkeypatch.setattr(SmallStepSpeed, "look_s", 0.2)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return SmallStepSpeed(torch.device("cpu"))


@pytest.mark.parametrize("tf32", [True, False])
def test_the_switches_of_the_recipe_that_is_measured_stay(
    on_a_cpu: SmallStepSpeed, tf32: bool
) -> None:
    switch_tf32(tf32)
    matmul = torch.get_float32_matmul_precision()
    assert on_a_cpu.slowdown() > 0
    assert torch.backends.cudnn.allow_tf32 is tf32
    assert torch.get_float32_matmul_precision() == matmul


def test_a_slower_clock_is_a_slower_pace(
    on_a_cpu: SmallStepSpeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of the test's own, which a step moves on by as much as it is told to."""
    clock = [0.0]
    monkeypatch.setattr(pace.time, "perf_counter", lambda: clock[0])
    for took_s in (pace.REFERENCE_S, 3 * pace.REFERENCE_S):

        def step(took_s: float = took_s) -> None:
            clock[0] += took_s

        monkeypatch.setattr(on_a_cpu, "_searched_step", lambda step=step: step)
        assert on_a_cpu.slowdown() == pytest.approx(took_s / pace.REFERENCE_S)
    noted = RecordedSpeed(on_a_cpu)
    noted.look()
    seen = noted.take()
    assert [found for _, found in seen] == pytest.approx([3.0] * len(seen))
    assert seen[-1][0] >= seen[0][0] + 0.1


def test_a_reading_does_not_depend_on_what_was_done_before(
    on_a_cpu: SmallStepSpeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the six steps that follow other work are ten times as long, each a bit less."""
    clock, since = [0.0], [0]

    def step() -> None:
        since[0] += 1
        clock[0] += pace.REFERENCE_S * (1 if since[0] > 6 else 10 - since[0])

    monkeypatch.setattr(pace.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(on_a_cpu, "_searched_step", lambda: step)
    timed: list[float] = []
    seconds = on_a_cpu._seconds
    monkeypatch.setattr(on_a_cpu, "_seconds", lambda step: timed.append(seconds(step)) or timed[-1])
    assert on_a_cpu.slowdown() == pytest.approx(1.0)
    since[0] = 0  # other work
    assert on_a_cpu.slowdown() == pytest.approx(1.0)
    assert timed == pytest.approx([pace.REFERENCE_S] * 2 * pace.STEPS)


@pytest.mark.parametrize("search", [True, False])
def test_algorithms_are_searched_once_for_each_switch_and_the_switch_stays(
    on_a_cpu: SmallStepSpeed, monkeypatch: pytest.MonkeyPatch, search: bool
) -> None:
    searching: list[bool] = []
    made: list[torch.device] = []

    def fake_step(_network: object, _recipe: str, device: torch.device) -> Callable[[], None]:
        made.append(device)
        return lambda: searching.append(torch.backends.cudnn.benchmark)

    monkeypatch.setattr(pace, "small_step", fake_step)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", search)

    def searched(tf32: bool) -> int:
        searching.clear()
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
        on_a_cpu.slowdown()
        assert torch.backends.cudnn.benchmark is search
        steps = pace.WARM_STEPS + pace.STEPS
        assert searching[-steps:] == [search] * steps
        assert all(searching[:-steps])
        return len(searching) - steps

    assert [searched(tf32) for tf32 in (True, False, True, False)] == [1, 1, 0, 0]
    on_a_cpu.forget()
    assert [searched(True), len(made)] == [1, 2]


def test_the_end_of_one_stretch_is_the_beginning_of_the_next() -> None:
    between = SpeedBetween(PlannedSpeeds(1.0, 3.0, 7.0))
    assert [between.ends(), between.ends()] == [2.0, 5.0]


def test_what_was_seen_is_taken_once_and_looks_beside_are_not_in_it(
    on_a_cpu: SmallStepSpeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another asks for the same pace while steps are timed."""
    paces = iter((1.0, 2.0, 9.0, 3.0))
    monkeypatch.setattr(on_a_cpu, "slowdown", lambda: next(paces))
    noted, looks = RecordedSpeed(on_a_cpu), SpeedByTurn(on_a_cpu)
    assert (noted.slowdown(), noted.slowdown()) == (1.0, 2.0)
    assert [found for _, found in noted.take()] == [1.0, 2.0]
    looks.begin("an arm")
    noted.slowdown()
    assert [found for _, found in noted.take()] == [3.0]
    assert noted.take() == ()


def test_a_look_counts_beside_what_was_seen_before(
    on_a_cpu: SmallStepSpeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten quick seconds, then a look in which all is slow."""
    clock, took_s = [0.0], [pace.REFERENCE_S]

    def step() -> None:
        clock[0] += took_s[0]

    monkeypatch.setattr(pace.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(on_a_cpu, "_searched_step", lambda: step)
    noted = RecordedSpeed(on_a_cpu)
    for second in range(10):
        clock[0] = float(second)
        noted.slowdown()
    took_s[0] = 3 * pace.REFERENCE_S
    clock[0] = 10.0
    noted.look()
    found = slowdown_range(noted.take())
    assert found.middle == pytest.approx(1.0)
    assert found.high == pytest.approx(3.0)


def test_the_pace_of_a_turn_is_that_of_both_its_ends() -> None:
    looks = SpeedByTurn(PlannedSpeeds(1.0, 2.0, 4.0, 3.0, 5.0, 6.0))
    for turn in ("a", "b", "a", "b", "b", ""):
        looks.begin(turn)
    assert looks.of("a") == fmean((1.5, 3.5))
    assert looks.of("b") == 4.0  # of 3, 4 and 5.5
    assert looks.of("c") is None


def test_a_trainer_notes_the_pace_of_each_arm_s_turns() -> None:
    """Ever slower by 1, of which the first turn, to warm up, has none."""
    info, network = describe("cpu"), find("cnn-cifar")
    data = Synthetic(network.input, network.classes or 0, network.tokens)
    cases = [case_of(network, 4, recipe=recipe) for recipe in ("fp32", "amp-bf16")]
    pace = PlannedSpeeds(*(float(number) for number in range(100)))
    with open_telemetry(info, 0.05) as telemetry:
        task = Task(network, data, seed=1, lr=None, warmup=0)
        timer = ArmTimer(task, info.target(), telemetry)
        try:
            timer.set_up(cases, lambda key, stage: None)
            found = timer.time(0.2, lambda key, stage: None, pace)
        finally:
            timer.close()
    looks = 100 - len(pace.left)
    paces = [t.steps.host_pace for t in found if t.steps]
    assert looks >= 2 + 2 * FEWEST_ROUNDS
    rounds = len(found[0].steps.blocks) if found[0].steps else 0
    assert looks == 2 + 2 * rounds
    # Turn n is between n and n + 1; which arm begins varies, and both take part in each round.
    assert sum(pace or 0 for pace in paces) == pytest.approx(looks - 1, abs=1.1)


def test_a_pace_that_cannot_be_seen_ends_no_measurement() -> None:
    class Full(PlannedSpeeds):
        def slowdown(self) -> float:
            if len(self.left) == 1:
                raise torch.OutOfMemoryError("no room")
            return super().slowdown()

    looks = SpeedByTurn(Full(1.0, 2.0, 3.0))
    for turn in ("a", "b", "a", ""):
        looks.begin(turn)
    assert looks.of("a") is None
