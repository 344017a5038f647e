"""Trainings of one comparison from what several processes timed of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from e2e.results.types import DeviceState, Phase, SensorStats, StepTimes, Training
from microbench.results.merging import joined, running_mean
from microbench.results.types import ProcessTime
from microbench.timing.timers import EVENT_TICK_S

MEANS = ("busy_s", "host_s", "wait_s", "unfed_s", "host_pace")  # of StepTimes


def timed_by(training: Training) -> int:
    """How many processes timed it; 0 without times."""
    return max(1, len(training.steps.processes)) if training.steps else 0


def merged(before: Sequence[Training], more: Sequence[Training], number: int) -> list[Training]:
    """The trainings, with what process `number` timed of the same cases.

    Where that process has no times for a case, it stays as it was. Else what follows from its times
    is left out, or still that of one process; see `with_speedups`.
    """
    again = {training.case.key: training for training in more}
    return [_joined(training, again.get(training.case.key), number) for training in before]


def _joined(before: Training, more: Training | None, number: int) -> Training:
    if more is None or before.steps is None or more.steps is None:
        return before
    a, b = before.steps, more.steps
    parts = _whole(b, more.state, number), _whole(a, before.state, 0)
    steps = joined(a, b, *parts, EVENT_TICK_S)
    count = len(steps.processes)
    means = {name: running_mean(getattr(a, name), getattr(b, name), count) for name in MEANS}
    steps = replace(
        steps,
        wall_times_s=a.wall_times_s + b.wall_times_s,
        wall_s=a.wall_s + b.wall_s,
        wall_steps=a.wall_steps + b.wall_steps,
        launches=a.launches if b.launches is None else b.launches,
        **means,
    )
    skipped = [n for n in (before.skipped_steps, more.skipped_steps) if n is not None]
    return replace(
        before,
        steps=steps,
        state=_state(before.state, more.state, count),
        phases=_phases(before.phases, more.phases, count),
        skipped_steps=sum(skipped) if skipped else None,
        warnings=more.warnings,
        predicted=None,
        ledger=(),
        ledger_base=None,
        bound=None,
        causes=(),
    )


def _whole(steps: StepTimes, state: DeviceState, number: int) -> ProcessTime:
    """What one process timed, as its part of several."""
    rounds = len(steps.blocks)
    return ProcessTime(number, rounds, steps.median_s, state.sm_clock_mhz, steps.host_pace)


def _state(before: DeviceState, more: DeviceState, count: int) -> DeviceState:
    a, b = before.gpu_util_pct, more.gpu_util_pct
    busy = a or b
    if a and b:
        mean = running_mean(a.mean, b.mean, count) or 0.0
        busy = SensorStats(mean, min(a.min, b.min), max(a.max, b.max))
    return DeviceState(
        busy,
        running_mean(before.sm_clock_mhz, more.sm_clock_mhz, count),
        running_mean(before.power_w, more.power_w, count),
        running_mean(before.temperature_c, more.temperature_c, count),
        tuple(dict.fromkeys(before.throttle + more.throttle)),
    )


def _phases(before: Sequence[Phase], more: Sequence[Phase], count: int) -> tuple[Phase, ...]:
    """Means over processes; those of the newest where the other has other phases."""
    if [phase.name for phase in before] != [phase.name for phase in more]:
        return tuple(more or before)
    return tuple(
        Phase(a.name, running_mean(a.gpu_s, b.gpu_s, count),
              running_mean(a.host_s, b.host_s, count) or 0.0)
        for a, b in zip(before, more, strict=True)
    )  # fmt: skip
