"""Speed-ups between timed variants, the bottleneck of each, and warnings. Before that, what several
processes timed of them is put together.

Pure functions of the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from e2e.case import TrainCase
from e2e.results.baselines import baselines, by_the_wall
from e2e.results.types import (
    MAX_WALL_GAP,
    DeviceState,
    Phase,
    SensorStats,
    StepTimes,
    Training,
)
from microbench import fmt
from microbench.results.merging import joined, ratio_of_processes, running_mean
from microbench.results.types import ProcessTime, Ratio, Warning
from microbench.timing.stats import half_width_pct
from microbench.timing.timers import EVENT_TICK_S

# A step in which no kernel runs for more than this share waits for the host; what is less is the
# gap of about a microsecond between kernels.
IDLE_SHARE = 0.10
DATA_SHARE = 0.10
LOADER_SHARE = 0.05  # a loader that lengthens the step by more is its bottleneck
MAX_SKIPPED_SHARE = 0.01
# A scale that starts at 65,536 may be halved so often, to 1,024, before it fits, in a run that is
# long enough for that to be few.
FIRST_SKIPS, FIRST_SKIPPED_SHARE = 6, 0.1
WIDE_INTERVAL_PCT = 10.0  # from here on a median is hardly known
WIDEST_PCT = 100.0  # that is written out
FEW = 50  # steps
MEANS = ("busy_s", "host_s", "wait_s", "unfed_s", "host_pace")  # of StepTimes
# Cause and remedy of a wide interval: of few steps, of several processes, and else.
FEW_STEPS = (
    "few steps fit the budget and their times vary, as on a loaded machine",
    "close other programs; time longer (--budget 120), or use a smaller --batch",
)
PROCESSES_VARY = (
    "the processes differ, or are too few for a narrow interval",
    "close other programs; raise --processes",
)
STEPS_VARY = (
    "steps vary: another program, the loader or the clock",
    "close other programs and measure again",
)
# Cause and remedy where wall time and the median step disagree.
STEPS_STAND_OUT = (
    "some steps were much slower: another program, the loader or the clock",
    "close other programs and measure again",
)
STEPS_FALL_SHORT = (
    "some steps were much faster: the clock rose or another program ended",
    "time longer (--budget)",
)
HOST_WANDERS = (
    "the CPU launch time changed during the measurement",
    "time longer (--budget), or use a larger --batch so that the GPU is the bottleneck",
)


def with_speedups(trainings: Sequence[Training], rungs: Mapping[str, str | None]) -> list[Training]:
    """The trainings of one comparison with speed-ups (ratios), bottlenecks and warnings.

    `rungs` has, by a case's key, what a rung of a ladder adds; None for cases of no ladder.
    """
    # A rung is compared with the one before it; a skipped one adds nothing, a failed one may.
    ladder = [t for t in trainings if rungs.get(t.case.key) and t.status != "skipped"]
    timed = {t.case: t for t in trainings if t.steps}
    results: list[Training] = []
    for training in trainings:
        training = replace(training, rung=rungs.get(training.case.key))
        if training.steps is None:
            results.append(training)
            continue
        others = {name: timed[case] for name, case in baselines(training.case, [*timed]).items()}
        if training.rung and (place := [rung.case for rung in ladder].index(training.case)):
            others |= {"previous": ladder[place - 1], "first": ladder[0]}
        speedup = {name: _ratio(other, training) for name, other in others.items() if other.steps}
        limit, why = _limit(training)
        warned = replace(training, speedup=speedup, limit=limit, why=why)
        more = (
            _wide_interval(warned), _wall_gap(warned), _many_skipped(warned), _straggler(warned)
        )  # fmt: skip
        known = [warning for warning in more if warning]
        results.append(replace(warned, warnings=(*warned.warnings, *known)))
    return results


def _ratio(slow: Training, fast: Training) -> Ratio:
    """Over processes if there are several, else over rounds; of fed trainings by the wall clock."""
    assert slow.steps
    assert fast.steps
    ratio = ratio_of_processes(slow.steps, fast.steps, EVENT_TICK_S)
    if ratio is None:  # no process timed both
        ratio = Ratio(slow.steps.median_s / fast.steps.median_s, None)
    return by_the_wall(ratio, slow, fast)


def _limit(training: Training) -> tuple[str | None, str | None]:
    """The bottleneck of a step, with the number behind it; None where it is not known."""
    steps, step_s = training.steps, training.step_s
    assert steps
    assert step_s
    if steps.unfed_s is not None and step_s > steps.unfed_s * (1 + LOADER_SHARE):
        return "data", (
            f"the step takes {step_s * 1e3:.1f} ms, on a preloaded batch "
            f"{steps.unfed_s * 1e3:.1f} ms"
        )
    share = 0.0 if training.case.loads_data else (training.data_wait_s or 0.0) / steps.median_s
    idle = None if steps.busy_s is None else 1 - min(1.0, steps.busy_s / steps.median_s)
    # A host that runs ahead of a busy GPU waits too, for nothing that would make it faster.
    if share > DATA_SHARE and (idle is None or idle > IDLE_SHARE):
        return "data", f"the CPU waits for data for {share:.0%} of the step"
    if idle is None:
        return None, None
    if idle > IDLE_SHARE and not _launched_at_once(training.case, steps):
        return "host", f"the GPU is idle for {idle:.0%} of the step{_launching(steps)}"
    gaps = "; the rest is gaps between the kernels of the CUDA graph" * (idle > IDLE_SHARE)
    return "gpu", f"kernels run for {1 - idle:.0%} of the step{gaps}"


def _launched_at_once(case: TrainCase, steps: StepTimes) -> bool:
    """Whether a step is captured, and its host done long before it: it has gaps of its own."""
    if not case.graph or steps.host_s is None:
        return False
    return steps.host_s < (1 - IDLE_SHARE) * steps.median_s


def _launching(steps: StepTimes) -> str:
    if steps.host_s is None or steps.launches is None:
        return ""
    return f": the CPU needs {steps.host_s * 1e3:.1f} ms to launch {steps.launches} kernels"


def _wide_interval(training: Training) -> Warning | None:
    steps = training.steps
    if steps is None or steps.ci95_s is None:
        return None
    pct = half_width_pct(steps.median_s, steps.ci95_s)
    if pct < WIDE_INTERVAL_PCT:
        return None
    count = len(steps.times_s)
    seen = fmt.count(count, "block" if training.case.loads_data else "step")
    advice = FEW_STEPS if count < FEW else STEPS_VARY
    if steps.processes:
        seen, advice = f"{len(steps.processes)} processes", PROCESSES_VARY
    half = f"±{pct:.0f} %" if pct <= WIDEST_PCT else f"beyond ±{WIDEST_PCT:.0f} %"
    text = f"{training.case.recipe}: 95 % confidence interval is {half}, from {seen}"
    return Warning(text, *advice)


def _wall_gap(training: Training) -> Warning | None:
    gap = training.wall_gap
    if gap is None or abs(gap) <= MAX_WALL_GAP:
        return None
    steps_differ = STEPS_STAND_OUT if gap < 0 else STEPS_FALL_SHORT
    return Warning(
        f"{training.case.recipe}: wall-clock throughput is {abs(gap):.1%} "
        f"{'below' if gap < 0 else 'above'} the median-step estimate",
        *(HOST_WANDERS if training.limit == "host" else steps_differ),
    )


def _many_skipped(training: Training) -> Warning | None:
    steps = training.steps
    if not steps or not training.skipped_steps:
        return None
    settling = min(FIRST_SKIPS, FIRST_SKIPPED_SHARE * steps.wall_steps)
    if training.skipped_steps <= max(settling, MAX_SKIPPED_SHARE * steps.wall_steps):
        return None
    return Warning(
        f"{training.case.recipe}: the loss scaler skipped {training.skipped_steps} updates",
        "gradients keep overflowing float16",
        "lower the learning rate, or use bfloat16 (--recipe amp-bf16), which needs no loss scale",
    )


def _straggler(training: Training) -> Warning | None:
    slow = training.exchange.stragglers if training.exchange else {}
    if not slow:
        return None
    named = ", ".join(f"rank {rank} by {ratio - 1:.0%}" for rank, ratio in slow.items())
    return Warning(
        f"{training.case.recipe}: not all GPUs are as fast: slower than the others is {named}",
        "every step waits for the slowest rank: its GPU, its loader or its CPU cores",
        "halfway fleet compares the GPUs; give each rank as many cores and workers",
    )


# ---------------------------------------------------------------- several processes


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
