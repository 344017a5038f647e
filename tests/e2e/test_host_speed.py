"""How fast the host launches: as it is summed up, and as a training notes it."""

from __future__ import annotations

from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.train_cases import case_of

from e2e.data.datasets.synthetic import Synthetic
from e2e.networks import find
from e2e.prediction.host_speed import ConstantSpeed
from e2e.training.arm_timer import ArmTimer
from e2e.training.arms import Task
from e2e.training.speed_readings import SlowdownRange, SpeedBetween, SpeedByTurn, slowdown_range
from microbench.device.device import describe, open_telemetry
from microbench.timing import FEWEST_ROUNDS

READINGS = st.lists(
    st.tuples(st.floats(0.0, 60.0), st.floats(0.1, 10.0)), min_size=2, max_size=200
)  # fmt: skip


class PlannedSpeeds(ConstantSpeed):
    """Slowdowns in the order that they are asked for; a device without memory at the end."""

    def __init__(self, *slowdowns: float) -> None:
        self.left = list(slowdowns)

    def slowdown(self) -> float:
        if not self.left:
            raise torch.OutOfMemoryError("no room")
        return self.left.pop(0)


@given(READINGS)
def test_most_values_lie_between_low_and_high(seen: list[tuple[float, float]]) -> None:
    found, slowdowns = slowdown_range(seen), [slowdown for _, slowdown in seen]
    assert min(slowdowns) <= found.low <= found.middle <= found.high <= max(slowdowns)
    seconds = [int(at_s) for at_s, _ in seen]
    weights = [1 / seconds.count(at_s) for at_s in seconds]
    outside = [
        w for w, s in zip(weights, slowdowns, strict=True) if not found.low <= s <= found.high
    ]
    assert sum(outside) <= 0.1 * (1 + 1e-9) * len(set(seconds)), "each second counts as much"


def test_the_spread_of_known_values() -> None:
    steady = [(float(at), float(1 + at)) for at in range(100)]
    assert slowdown_range(steady) == SlowdownRange(50.0, 5.0, 95.0)
    # A second counts as much as another: 150 readings in two slow ones, one in each of seven.
    seen = [(float(at), 2.0) for at in range(7)] + [(7 + i / 75, 3.0) for i in range(150)]
    assert slowdown_range(seen) == SlowdownRange(2.0, 2.0, 3.0)
    assert slowdown_range(()) == SlowdownRange(1.0, 1.0, 1.0)


def test_a_stretch_and_a_turn_have_the_mean_of_both_their_ends() -> None:
    between = SpeedBetween(PlannedSpeeds(1.0, 3.0, 7.0))
    assert [between.ends(), between.ends()] == [2.0, 5.0]
    looks = SpeedByTurn(PlannedSpeeds(1.0, 2.0, 4.0, 3.0, 5.0, 6.0))
    for turn in ("a", "b", "a", "b", "b", ""):
        looks.begin(turn)
    assert looks.of("a") == fmean((1.5, 3.5))
    assert looks.of("b") == 4.0  # of 3, 4 and 5.5
    assert looks.of("c") is None
    looks.begin("a")
    assert looks.of("a") is None, "a speed that cannot be read ends no measurement"


def test_a_trainer_notes_the_host_speed_of_each_arm_s_turns() -> None:
    """Ever slower by 1, of which the first turn, to warm up, has none."""
    info, network = describe("cpu"), find("cnn-cifar")
    data = Synthetic(network.input, network.classes or 0, network.tokens)
    cases = [case_of(network, 4, recipe=recipe) for recipe in ("fp32", "amp-bf16")]
    speed = PlannedSpeeds(*(float(number) for number in range(100)))
    with open_telemetry(info, 0.05) as telemetry:
        timer = ArmTimer(Task(network, data, seed=1), info.target(), telemetry)
        try:
            timer.set_up(cases, lambda key, stage: None)
            found = timer.time(0.2, lambda key, stage: None, speed)
        finally:
            timer.close()
    looks = 100 - len(speed.left)
    rounds = len(found[0].steps.blocks) if found[0].steps else 0
    assert looks == 2 + 2 * rounds >= 2 + 2 * FEWEST_ROUNDS
    # Turn n is between n and n + 1; which arm begins varies, and both take part in each round.
    slowdowns = [t.steps.host_pace or 0 for t in found if t.steps]
    assert sum(slowdowns) == pytest.approx(looks - 1, abs=1.1)
