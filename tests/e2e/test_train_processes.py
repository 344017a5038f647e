"""Trainings that several processes time: merged, compared, kept, resumed; on planted times."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from samples.training_runs import arm, run_of

from e2e.results.codec import from_json, to_json
from e2e.results.types import State, StepTimes, Training
from e2e.training.processes import merged
from e2e.training.speedups import with_speedups
from microbench.results.comparison import compare
from microbench.results.types import TIME_DECIMALS, ProcessTime

ROUNDS = 3
BASE_S = {"fp32": 0.2, "amp": 0.1}
# What one process differs by from the next: of each recipe, in per cent.
OFF_PCT = ({"fp32": 0.0, "amp": 0.0}, {"fp32": 3.0, "amp": 1.0}, {"fp32": -2.0, "amp": 2.0})


def timed(recipe: str, step_s: float, pace: float | None = None, **more: Any) -> Training:
    """A training in which every step of every round takes so long."""
    times = (round(step_s, TIME_DECIMALS),) * (2 * ROUNDS)
    steps = StepTimes(
        times, times, (2,) * ROUNDS, step_s, (step_s, step_s), sum(times), len(times),
        busy_s=0.95 * BASE_S[recipe], host_pace=pace,
    )  # fmt: skip
    made = arm(recipe, 256 / step_s, state=State(sm_clock_mhz=1_700.0, power_w=600.0))
    return replace(made, steps=steps, limit=None, skipped_steps=1, **more)


def in_process(number: int, pace: float | None = None) -> list[Training]:
    off = OFF_PCT[number % len(OFF_PCT)]
    return [timed(name, s * (1 + off[name] / 100), pace) for name, s in BASE_S.items()]


def in_processes(count: int) -> list[Training]:
    found = in_process(0)
    for number in range(1, count):
        found = merged(found, in_process(number), number)
    return with_speedups(found, {})


def test_step_and_speed_up_are_the_geometric_means_of_the_processes() -> None:
    """2, 2 * 1.03 / 1.01 and 2 * 0.98 / 1.02; pooled medians would give another."""
    fp32, amp = in_processes(3)
    assert fp32.steps
    assert amp.steps
    assert [one.number for one in fp32.steps.processes] == [0, 1, 2]
    assert [one.rounds for one in fp32.steps.processes] == [ROUNDS] * 3
    assert fp32.step_s == pytest.approx(0.2 * (1.03 * 0.98) ** (1 / 3))
    assert len(fp32.steps.times_s) == sum(fp32.steps.blocks) == 6 * ROUNDS
    assert fp32.steps.wall_s == pytest.approx(sum(fp32.steps.times_s))
    assert fp32.steps.ci95_s is not None
    low, high = fp32.steps.ci95_s
    assert low < 0.2 * 0.98 < 0.2 * 1.03 < high, "three processes know little"
    assert fp32.skipped_steps == 3
    assert amp.limit == "gpu"
    each = [2.0, 2 * 1.03 / 1.01, 2 * 0.98 / 1.02]
    ratio = amp.speedup["fp32"]
    assert ratio.ratio == pytest.approx(math.prod(each) ** (1 / 3))
    assert ratio.ci95 is not None
    assert ratio.ci95[0] < min(each) < max(each) < ratio.ci95[1]


def test_an_arm_that_fails_in_one_process_is_compared_over_the_others() -> None:
    found = in_process(0)
    lost = [replace(one, status="failed", steps=None) if i else one
            for i, one in enumerate(in_process(1))]  # fmt: skip
    found = merged(found, lost, 1)
    found = with_speedups(merged(found, in_process(2), 2), {})
    fp32, amp = found
    assert fp32.steps
    assert amp.steps
    assert [len(one.steps.processes) for one in found if one.steps] == [3, 2]
    each = [2.0, 2 * 0.98 / 1.02]
    assert amp.speedup["fp32"].ratio == pytest.approx(math.prod(each) ** 0.5)


def written(training: Training) -> dict[str, Any]:
    return json.loads(json.dumps(to_json(training)))


def test_a_file_keeps_the_processes_and_an_older_one_has_none() -> None:
    for training in in_processes(3):
        assert from_json(written(training), "x") == training
    (plain, _) = in_process(0)
    assert "processes" not in written(plain)
    assert from_json(written(plain), "x") == plain


@pytest.mark.parametrize(
    "part",
    [{"rounds": ROUNDS + 1}, {"rounds": 0}, {"median_s": 0.0}, {"number": 1}, {"host_pace": -1.0}],
)
def test_processes_that_cannot_be_are_refused(part: dict[str, Any]) -> None:
    (training, _) = in_processes(2)
    assert training.steps
    first, second = training.steps.processes
    steps = replace(training.steps, processes=(replace(first, **part), second))
    with pytest.raises(ValueError, match="processes"):
        from_json(written(replace(training, steps=steps)), "x")


# ---------------------------------------------------------------- comparing


def verdicts(a: Sequence[Training], b: Sequence[Training]) -> list[str]:
    return [row.verdict for row in compare(run_of(*a), run_of(*b)).rows]


def cpu_bound(paces: Sequence[float], step_s: float = 0.1) -> list[Training]:
    """A step that takes as long as the CPU is slow, process by process."""
    amp = timed("amp", step_s * paces[0], paces[0])
    for number, pace in enumerate(paces[1:], 1):
        (amp,) = merged([amp], [timed("amp", step_s * pace, pace)], number)
    return [replace(amp, limit="host")]


def test_cpu_bound_steps_are_compared_at_the_speed_of_each_process() -> None:
    calm, rough = cpu_bound([1.0, 1.02, 0.99]), cpu_bound([1.0, 2.2, 1.5])
    assert verdicts(calm, rough) == ["same"], "the CPU was slower, not the step"
    assert verdicts(calm, cpu_bound([1.0, 2.2, 1.5], 0.2)) == ["slower"]
    unknown = [replace(one, steps=replace(one.steps, host_pace=None)) for one in calm if one.steps]
    blind = [
        replace(one, steps=replace(one.steps, processes=tuple(
            replace(p, host_pace=None) for p in one.steps.processes)))
        for one in unknown if one.steps
    ]  # fmt: skip
    assert verdicts(blind, rough) == ["cannot tell"]
    (amp,) = cpu_bound([1.0, 2.0])
    assert amp.steps
    assert amp.steps.processes == (
        ProcessTime(0, ROUNDS, 0.1, 1_700.0, 1.0), ProcessTime(1, ROUNDS, 0.2, 1_700.0, 2.0),
    )  # fmt: skip
    assert amp.steps.host_pace == pytest.approx(1.5)
