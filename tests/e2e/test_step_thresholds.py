"""Where a step's bottleneck changes and where its warnings begin, each from both sides."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from e2e.case import TrainCase
from e2e.results.types import Phase, StepTimes, Training
from e2e.training.speedups import FEW_STEPS, HOST_WANDERS, STEPS_VARY, with_speedups

CASE = TrainCase("resnet50", "amp", 64, "3x224x224", layout="nhwc")
BATCH = 64


def judged(
    *, steps: int = 60, wall: float = 1.0, waits: float = 0.0, skipped: int = 0,
    graph: bool = False, fed: bool = False, **changes: Any,
) -> Training:  # fmt: skip
    """A training of steps of 1 s, whose wall time is `wall` a step."""
    times = StepTimes(
        times_s=(1.0,) * steps, wall_times_s=(1.0,) * steps, blocks=(steps,), median_s=1.0,
        ci95_s=None, wall_s=wall * steps, wall_steps=steps,
    )  # fmt: skip
    case = replace(CASE, graph=graph, **({"data": "folder", "loader": "pillow"} if fed else {}))
    training = Training(
        case, "ok", step_units=BATCH, steps=replace(times, **changes), skipped_steps=skipped,
        phases=(Phase("data", None, waits), Phase("forward", 0.5, 0.5)),
    )  # fmt: skip
    (found,) = with_speedups([training], {})
    return found


@pytest.mark.parametrize(
    ("step", "limit"),
    [
        ({"busy_s": 0.91}, "gpu"),
        ({"busy_s": 0.89}, "host"),
        ({"busy_s": 0.89, "host_s": 0.89, "graph": True}, "gpu"),
        ({"busy_s": 0.89, "host_s": 0.91, "graph": True}, "host"),
        ({"busy_s": 0.89, "host_s": 0.89}, "host"),  # its launches are not one
        ({"busy_s": 0.89, "graph": True}, "host"),
        ({"busy_s": 0.89, "waits": 0.11}, "data"),
        ({"busy_s": 0.89, "waits": 0.09}, "host"),
        ({"busy_s": 0.91, "waits": 0.11}, "gpu"),  # the host runs ahead
        ({"busy_s": 0.89, "waits": 0.1}, "host"),  # more than a tenth
        ({"waits": 0.11}, "data"),
        ({"waits": 0.09}, None),
        ({"busy_s": 0.89, "waits": 0.5, "fed": True}, "host"),  # of fed steps the times decide
        ({"busy_s": 0.95, "unfed_s": 0.951}, "data"),
        ({"busy_s": 0.95, "unfed_s": 0.954}, "gpu"),
        ({"busy_s": 2.0}, "gpu"),
        ({}, None),
    ],
)
def test_the_bottleneck(step: dict[str, Any], limit: str | None) -> None:
    assert judged(**step).limit == limit


@pytest.mark.parametrize(
    ("step", "numbers"),
    [
        ({"busy_s": 0.95, "unfed_s": 0.5}, {1000.0, 500.0}),
        ({"busy_s": 0.89, "waits": 0.37}, {37.0}),
        ({"busy_s": 0.63}, {37.0}),
        ({"busy_s": 0.63, "host_s": 0.9, "launches": 70}, {37.0, 900.0, 70.0}),
        ({"busy_s": 0.63, "host_s": 0.9}, {37.0}),
        ({"busy_s": 0.63, "launches": 70}, {37.0}),
        ({"busy_s": 0.97}, {97.0}),
    ],
)
def test_the_reason_has_the_numbers_behind_it(step: dict[str, Any], numbers: set[float]) -> None:
    """Milliseconds, per cent and launches."""
    why = judged(**step).why or ""
    assert {float(number) for number in re.findall(r"[\d.]*\d", why)} == numbers


def test_without_a_wall_time_nothing_is_said_of_it() -> None:
    assert judged(wall=0.0).warnings == ()


@pytest.mark.parametrize(
    ("wall", "warned"), [(1.0, 0), (1.029, 0), (1.032, 1), (0.972, 0), (0.969, 1)]
)
def test_wall_time_may_differ_by_three_per_cent(wall: float, warned: int) -> None:
    assert len(judged(wall=wall).warnings) == warned


def test_the_cause_of_a_gap_follows_from_its_side_and_by_the_bottleneck() -> None:
    def cause(**step: Any) -> str | None:
        (warning,) = judged(**step).warnings
        return warning.cause

    causes = [cause(wall=wall, busy_s=busy) for wall in (0.8, 1.2) for busy in (0.95, 0.5)]
    assert causes[1] == causes[3] == HOST_WANDERS[0]
    assert len({*causes}) == 3


@pytest.mark.parametrize(("pct", "warned"), [(9.9, 0), (10.1, 1)])
@pytest.mark.parametrize(("steps", "words"), [(49, FEW_STEPS), (50, STEPS_VARY)])
def test_an_interval_is_wide_from_ten_per_cent(
    pct: float, warned: int, steps: int, words: tuple[str, str]
) -> None:
    for interval in ((1 - pct / 100, 1.001), (0.999, 1 + pct / 100)):
        found = judged(ci95_s=interval, steps=steps).warnings
        assert [(warning.cause, warning.remedy) for warning in found] == [words] * warned


@pytest.mark.parametrize(
    ("steps", "skipped", "warned"),
    [(10, 1, 0), (10, 2, 1), (40, 4, 0), (40, 5, 1), (59, 5, 0), (60, 6, 0), (60, 7, 1),
     (500, 6, 0), (500, 7, 1), (600, 6, 0), (600, 7, 1), (700, 7, 0), (700, 8, 1), (60, 0, 0)],
)  # fmt: skip
def test_skipped_updates_settle_in_six_or_a_tenth_then_may_be_one_in_a_hundred(
    steps: int, skipped: int, warned: int
) -> None:
    assert len(judged(steps=steps, skipped=skipped).warnings) == warned
