"""How fast the host launches, as a training notes it."""

from __future__ import annotations

from statistics import fmean

import pytest
import torch
from samples.train_cases import case_of

from e2e.data.datasets.synthetic import Synthetic
from e2e.networks import find
from e2e.training.arm_timer import ArmTimer
from e2e.training.arms import Task
from e2e.training.speed_readings import SpeedByTurn
from microbench.device.device import describe, open_telemetry
from microbench.timing import FEWEST_ROUNDS


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
