"""Learning-rate schedules: the shares they have, how they are written, and that training obeys."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.feeding import Batches
from torch import nn

from e2e.case import TrainCase
from e2e.networks import find
from e2e.recipes import RECIPES
from e2e.schedule import KINDS, Schedule, parse_schedule
from e2e.training.trainer import Trainer
from microbench.errors import UserError

STEPS = 8
HALF = 0.5**0.5

schedules = st.sampled_from(
    [*KINDS, "cosine:3", "triangle:0", "triangle:10", "triangle:100", "step:20,40,80/5", "step:0/2"]
)


@pytest.mark.parametrize(
    ("text", "start", "quarter", "end"),
    [
        ("constant", 1.0, 1.0, 1.0),
        ("cosine", 1.0, (1 + HALF) / 2, 0.0),
        ("cosine:2", 1.0, 0.5, 0.0),
        ("cosine:4", 1.0, 1.0, 0.0),
        ("triangle", 0.0, 1.0, 0.0),
        ("triangle:50", 0.0, 0.5, 0.0),
        ("triangle:0", 1.0, 0.75, 0.0),
        ("step", 1.0, 1.0, 0.01),
        ("step:25,100/5", 1.0, 0.2, 0.04),
    ],
)
def test_shares_at_the_start_a_quarter_and_the_end(
    text: str, start: float, quarter: float, end: float
) -> None:
    schedule = parse_schedule(text)
    found = [schedule.share(done) for done in (0, 0.25, 1)]
    assert found == pytest.approx([start, quarter, end], abs=1e-12)


@given(schedules, st.floats(0, 1))
def test_a_share_is_from_0_to_1(text: str, done: float) -> None:
    assert 0 <= parse_schedule(text).share(done) <= 1


@given(schedules, st.floats(1, 1e6))
def test_after_the_end_it_stays_as_at_the_end(text: str, done: float) -> None:
    schedule = parse_schedule(text)
    assert schedule.share(done) == schedule.share(1)


@given(st.text(max_size=14) | st.builds("{}:{}".format, st.sampled_from(KINDS), st.text("0123,./")))
def test_whatever_is_written_gives_a_schedule_or_one_line(text: str) -> None:
    with suppress(UserError):
        assert isinstance(parse_schedule(text), Schedule)


# ---------------------------------------------------------------- in a training


class One(nn.Module):
    """Its only weight has the gradient 1 at every step, whatever the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.weight + 0 * inputs.sum()


LEVER = replace(
    find("cnn-cifar"), name="lever", build=One, input=(1,), weight_decay=0.0,
    loss=lambda output, target, smoothing: output,
)  # fmt: skip


def rates(trainer: Trainer, steps: int) -> list[float]:
    """The learning rate of each step, read off the weight: momentum adds gradients of 1."""
    feed = Batches((torch.ones(1, 1), torch.zeros(1)))
    found, velocity = [], 0.0
    weight = next(trainer.module.parameters())
    for _ in range(steps):
        before = weight.item()
        trainer.step(feed)
        velocity = 0.9 * velocity + 1
        found.append((before - weight.item()) / velocity)
    return found


def trainer_of(**case: Any) -> Trainer:
    plan = TrainCase("lever", "fp32", 1, "1", layout="", **case)
    return Trainer(LEVER, plan, RECIPES["fp32"], torch.device("cpu"), seed=1)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("text", ["cosine", "cosine:2", "triangle", "step:50/10"])
def test_a_training_obeys_its_schedule(text: str, warmup: int, fused: bool) -> None:
    trainer = trainer_of(lr=0.5, schedule=text, warmup=warmup, fused=fused)
    schedule = parse_schedule(text)
    warm = [min(1.0, (i + 1) / warmup) if warmup else 1.0 for i in range(STEPS)]
    expected = [0.5 * warm[i] * schedule.share(i / STEPS) for i in range(STEPS)]
    for _ in range(2):
        trainer.restart(1, STEPS)
        assert rates(trainer, STEPS) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_steps_of_no_training_are_at_the_full_rate() -> None:
    trainer = trainer_of(lr=0.25, schedule="cosine")
    assert rates(trainer, 3) == pytest.approx([0.25] * 3, rel=1e-4)
    trainer.restart(1, 2)
    rates(trainer, 2)
    trainer.restart(1)
    assert rates(trainer, 3) == pytest.approx([0.25] * 3, rel=1e-4)
