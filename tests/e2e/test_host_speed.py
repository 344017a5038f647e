"""How fast the host launches: how it is read, recorded and summed up."""

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
from e2e.prediction import host_speed
from e2e.prediction.host_speed import (
    ConstantSpeed,
    RecordedSpeed,
    SmallStepSpeed,
    host_speed_of,
)
from e2e.recipes import switch_tf32
from e2e.training.arm_timer import ArmTimer
from e2e.training.arms import Task
from e2e.training.speed_readings import SlowdownRange, SpeedBetween, SpeedByTurn, slowdown_range
from microbench.device.device import describe, open_telemetry
from microbench.timing import FEWEST_ROUNDS

READINGS = st.lists(
    st.tuples(st.floats(0.0, 60.0), st.floats(0.1, 10.0)), min_size=2, max_size=200
)  # fmt: skip


@given(READINGS)
def test_most_values_lie_between_low_and_high(seen: list[tuple[float, float]]) -> None:
    found, slowdowns = slowdown_range(seen), [slowdown for _, slowdown in seen]
    assert min(slowdowns) <= found.low <= found.middle <= found.high <= max(slowdowns)
    outside = [at_s for at_s, slowdown in seen if not found.low <= slowdown <= found.high]
    assert weight_of(outside, seen) <= 0.1 * (1 + 1e-9)


def weight_of(chosen: list[float], seen: list[tuple[float, float]]) -> float:
    """Their share of all seconds that were looked at."""
    seconds = [int(at_s) for at_s, _ in seen]
    return sum(1 / seconds.count(int(at_s)) for at_s in chosen) / len(set(seconds))


def test_the_spread_of_known_values() -> None:
    steady = [(float(at), float(1 + at)) for at in range(100)]
    assert slowdown_range(steady) == SlowdownRange(50.0, 5.0, 95.0)
    assert slowdown_range([(0.1, 2.0), (0.2, 3.0)]) == SlowdownRange(2.0, 2.0, 3.0)
    # A second counts as much as another: 150 readings in two slow ones, one in each of seven.
    seen = [(float(at), 2.0) for at in range(7)] + [(7 + i / 75, 3.0) for i in range(150)]
    assert slowdown_range(seen) == SlowdownRange(2.0, 2.0, 3.0)


def test_a_cpu_has_no_speed_of_its_own() -> None:
    speed = host_speed_of(torch.device("cpu"))
    assert isinstance(speed, ConstantSpeed)
    recorded = RecordedSpeed(speed)
    recorded.look()
    assert {found for _, found in recorded.take()} == {1.0}
    assert slowdown_range(()) == SlowdownRange(1.0, 1.0, 1.0)


class Planned(SmallStepSpeed):
    """By a clock of the test's own, which a step moves on by `took_s`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(torch.device("cpu"))
        self.now_s, self.took_s, self.steps = 0.0, host_speed.REFERENCE_S, 0
        patch.setattr(host_speed.time, "perf_counter", lambda: self.now_s)

    def _searched_step(self) -> Callable[[], object]:
        return self.step

    def step(self) -> None:
        self.steps += 1
        self.now_s += self.took_s


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> SmallStepSpeed:
    """As on a GPU, by a recipe that a CPU has, and with nothing to wait for."""
    monkeypatch.setattr(host_speed, "RECIPE", "amp-bf16")
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


@pytest.mark.usefixtures("on_a_cpu")
def test_longer_steps_are_a_slower_host(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = Planned(monkeypatch)
    assert planned.slowdown() == pytest.approx(1.0)
    planned.took_s *= 3
    assert planned.slowdown() == pytest.approx(3.0)
    recorded = RecordedSpeed(planned)
    recorded.look()
    seen = recorded.take()
    assert [found for _, found in seen] == pytest.approx([3.0] * len(seen))
    assert seen[-1][0] >= seen[0][0] + 0.1


@pytest.mark.usefixtures("on_a_cpu")
def test_a_reading_does_not_depend_on_what_was_done_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the six steps that follow other work are ten times as long, each a bit less."""

    class Disturbed(Planned):
        def step(self) -> None:
            self.took_s = host_speed.REFERENCE_S * (1 if self.steps >= 6 else 9 - self.steps)
            super().step()

    planned = Disturbed(monkeypatch)
    assert planned.slowdown() == pytest.approx(1.0)
    planned.steps = 0  # other work
    assert planned.slowdown() == pytest.approx(1.0)
    assert planned.steps == 6 + host_speed.STEPS


@pytest.mark.usefixtures("on_a_cpu")
def test_a_look_counts_beside_what_was_seen_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten quick seconds, then a look in which all is slow."""
    planned = Planned(monkeypatch)
    recorded = RecordedSpeed(planned)
    for second in range(10):
        planned.now_s = float(second)
        recorded.slowdown()
    planned.took_s, planned.now_s = 3 * host_speed.REFERENCE_S, 10.0
    recorded.look()
    found = slowdown_range(recorded.take())
    assert (found.middle, found.high) == pytest.approx((1.0, 3.0))


@pytest.mark.parametrize("search", [True, False])
def test_algorithms_are_searched_once_for_each_switch_and_the_switch_stays(
    on_a_cpu: SmallStepSpeed, monkeypatch: pytest.MonkeyPatch, search: bool
) -> None:
    searching: list[bool] = []
    made: list[torch.device] = []

    def fake_step(_network: object, _recipe: str, device: torch.device) -> Callable[[], None]:
        made.append(device)
        return lambda: searching.append(torch.backends.cudnn.benchmark)

    monkeypatch.setattr(host_speed, "small_step", fake_step)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", search)

    def searched(tf32: bool) -> int:
        searching.clear()
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
        on_a_cpu.slowdown()
        assert torch.backends.cudnn.benchmark is search
        steps = host_speed.WARM_STEPS + host_speed.STEPS
        assert searching[-steps:] == [search] * steps
        assert all(searching[:-steps])
        return len(searching) - steps

    assert [searched(tf32) for tf32 in (True, False, True, False)] == [1, 1, 0, 0]
    on_a_cpu.forget()
    assert [searched(True), len(made)] == [1, 2]


def test_what_was_seen_is_taken_once_and_looks_beside_are_not_in_it() -> None:
    """Another asks for the same host speed while steps are timed."""
    speed = PlannedSpeeds(1.0, 2.0, 9.0, 3.0)
    recorded, turns = RecordedSpeed(speed), SpeedByTurn(speed)
    assert (recorded.slowdown(), recorded.slowdown()) == (1.0, 2.0)
    assert [found for _, found in recorded.take()] == [1.0, 2.0]
    turns.begin("an arm")
    recorded.slowdown()
    assert [found for _, found in recorded.take()] == [3.0]
    assert recorded.take() == ()


def test_a_stretch_and_a_turn_have_the_mean_of_both_their_ends() -> None:
    between = SpeedBetween(PlannedSpeeds(1.0, 3.0, 7.0))
    assert [between.ends(), between.ends()] == [2.0, 5.0]
    looks = SpeedByTurn(PlannedSpeeds(1.0, 2.0, 4.0, 3.0, 5.0, 6.0))
    for turn in ("a", "b", "a", "b", "b", ""):
        looks.begin(turn)
    assert looks.of("a") == fmean((1.5, 3.5))
    assert looks.of("b") == 4.0  # of 3, 4 and 5.5
    assert looks.of("c") is None


def test_a_trainer_notes_the_host_speed_of_each_arm_s_turns() -> None:
    """Ever slower by 1, of which the first turn, to warm up, has none."""
    info, network = describe("cpu"), find("cnn-cifar")
    data = Synthetic(network.input, network.classes or 0, network.tokens)
    cases = [case_of(network, 4, recipe=recipe) for recipe in ("fp32", "amp-bf16")]
    speed = PlannedSpeeds(*(float(number) for number in range(100)))
    with open_telemetry(info, 0.05) as telemetry:
        task = Task(network, data, seed=1)
        timer = ArmTimer(task, info.target(), telemetry)
        try:
            timer.set_up(cases, lambda key, stage: None)
            found = timer.time(0.2, lambda key, stage: None, speed)
        finally:
            timer.close()
    looks = 100 - len(speed.left)
    slowdowns = [t.steps.host_pace for t in found if t.steps]
    assert looks >= 2 + 2 * FEWEST_ROUNDS
    rounds = len(found[0].steps.blocks) if found[0].steps else 0
    assert looks == 2 + 2 * rounds
    # Turn n is between n and n + 1; which arm begins varies, and both take part in each round.
    assert sum(each or 0 for each in slowdowns) == pytest.approx(looks - 1, abs=1.1)


def test_a_host_speed_that_cannot_be_read_ends_no_measurement() -> None:
    class Full(PlannedSpeeds):
        def slowdown(self) -> float:
            if len(self.left) == 1:
                raise torch.OutOfMemoryError("no room")
            return super().slowdown()

    looks = SpeedByTurn(Full(1.0, 2.0, 3.0))
    for turn in ("a", "b", "a", ""):
        looks.begin(turn)
    assert looks.of("a") is None
