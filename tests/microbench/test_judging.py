"""Verdicts on cases of several processes, at other clocks, and on steps that the CPU limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from microbench.results.judging import (
    CPU_BOUND_PCT,
    KERNELS,
    LEAST_PCT,
    Learnt,
    Noise,
    in_processes,
    judge,
    learn,
    noise_of,
    ratio_between,
)
from microbench.results.kinds import KINDS
from microbench.results.values import Interval, ProcessTime
from microbench.timing.processes import USUAL, Usual

RUNS, CASES, PROCESSES = 40, 20, 3
KNOWN = Learnt(Usual(0.004**2, 30.0), Usual(0.004**2, 30.0))


@dataclass(frozen=True)
class Step:
    """What a verdict is of."""

    median_s: float
    ci95_s: Interval | None = None
    sm_clock_mhz: float | None = None
    cpu_bound: bool = False
    host_pace: float | None = None
    processes: tuple[ProcessTime, ...] = ()


def several(medians_s: Sequence[float], mhz: float | None = None) -> Step:
    """A case that several processes measured."""
    parts = tuple(ProcessTime(i, 7, s, mhz) for i, s in enumerate(medians_s))
    return Step(math.exp(np.log(medians_s).mean()), None, mhz, processes=parts)


def once(seconds: float, half_pct: float = 1.0, **more: float | bool | None) -> Step:
    """A case of one process."""
    half = seconds * half_pct / 100
    return replace(Step(seconds, (seconds - half, seconds + half)), **more)


def simulated(rng: np.random.Generator, sd: float, seconds: float = 1e-5) -> Step:
    return several(list(seconds * np.exp(sd * rng.standard_normal(PROCESSES))))


def verdicts(pairs: Sequence[tuple[Step, Step]]) -> list[str]:
    learnt = learn(pairs)
    return [judge(a, b, noise_of("gemm", a, b), learnt).verdict for a, b in pairs]


# ---------------------------------------------------------------- several processes


def test_the_same_is_rarely_called_different_and_a_planted_shift_is() -> None:
    """At 10 us, where a floor of 1.3 us would hide 13 %."""
    rng = np.random.default_rng(3)
    same: list[str] = []
    planted: list[str] = []
    for _ in range(RUNS):
        pairs = [(simulated(rng, 0.006), simulated(rng, 0.006)) for _ in range(CASES - 1)]
        pairs.append((simulated(rng, 0.006), simulated(rng, 0.006, 1.05e-5)))
        found = verdicts(pairs)
        same += found[:-1]
        planted.append(found[-1])
    wrong = same.count("faster") + same.count("slower")
    assert wrong <= 0.01 * len(same)
    assert same.count("same") >= 0.9 * len(same)
    assert planted.count("slower") >= 0.9 * RUNS


def test_a_case_that_varies_more_than_the_others_is_not_judged_by_them() -> None:
    rng = np.random.default_rng(4)
    quiet = [(simulated(rng, 0.003), simulated(rng, 0.003)) for _ in range(CASES)]
    restless = several([1.0e-5, 1.2e-5, 1.1e-5]), several([1.16e-5, 1.3e-5, 1.05e-5])
    assert verdicts([*quiet, restless])[-1] == "cannot tell"


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "same"), (1.013, "same"), (0.987, "same"), (1.02, "slower"),
                            (1.05, "slower"), (0.95, "faster")],
)  # fmt: skip
def test_beyond_the_least_is_a_difference_and_within_the_noise_of_kernels_none(
    factor: float, verdict: str
) -> None:
    a = several([1e-5, 1.001e-5, 0.999e-5])
    b = several([factor * p.median_s for p in a.processes])
    noise = noise_of("gemm", a, b)
    assert (noise.pct, noise.near) == (LEAST_PCT, KERNELS.pct / 100)
    assert judge(a, b, noise, KNOWN).verdict == verdict


def test_one_process_on_a_side_is_judged_by_the_floor() -> None:
    many, single = several([1e-5] * 3), once(1e-5)
    assert not in_processes(many, single)
    assert noise_of("gemm", many, single) == noise_of("gemm", single, single) == KERNELS
    assert noise_of("train", single, single) == Noise(KINDS["train"].noise_pct)
    asked = noise_of("gemm", many, many, threshold_pct=7.0)
    assert (asked.pct, asked.near) == (7.0, 0.07)
    assert learn([(many, single)]) == Learnt(USUAL, USUAL)


# ---------------------------------------------------------------- clocks


def test_another_clock_alone_cannot_tell_and_work_at_another_clock_can() -> None:
    fast = several([1.00e-5, 1.001e-5, 0.999e-5], 1980.0)
    held = several([1.1 * p.median_s for p in fast.processes], 1800.0)
    found = judge(fast, held, noise_of("gemm", fast, held), KNOWN)
    assert (found.verdict, found.reason) == ("cannot tell", "clocks differ")
    more = several([1.25 * p.median_s for p in fast.processes], 1800.0)
    assert judge(fast, more, noise_of("gemm", fast, more), KNOWN).verdict == "slower"
    worse = several([1.1 * p.median_s for p in fast.processes], 1990.0)
    assert judge(fast, worse, noise_of("gemm", fast, worse), KNOWN).verdict == "slower"


def test_the_ratio_is_of_the_means_over_processes() -> None:
    a, b = several([2e-5, 8e-5]), several([1e-5, 1e-5])
    ratio, interval = ratio_between(a, b, KNOWN)
    assert ratio == pytest.approx(4.0)
    assert interval is not None
    assert interval[0] < 4 < interval[1]
    wider = ratio_between(a, b, Learnt(Usual(0.5, 30.0))).interval
    assert wider is not None
    assert wider[0] < interval[0] < interval[1] < wider[1]


# ---------------------------------------------------------------- the CPU limits


@pytest.mark.parametrize(
    ("b_s", "pace_a", "pace_b", "verdict", "reason"),
    [
        (1.6e-3, 1.0, 1.6, "same", "interval is within 30 %"),
        (1.6e-3, 1.0, 1.0, "slower", "interval is beyond it"),
        (1.2e-3, 1.0, 1.0, "same", "interval is within 30 %"),
        (0.6e-3, 1.5, 1.5, "faster", "interval is beyond it"),
        (0.9e-3, 1.0, 0.5, "cannot tell", "CPU speeds differ"),  # 1.8 times as slow at one speed
        (1.0e-3, None, 1.0, "cannot tell", "CPU-bound"),
        (9.0e-3, 1.0, None, "cannot tell", "CPU-bound"),
    ],
)
def test_a_step_that_the_cpu_limits_is_judged_at_one_cpu_speed(
    b_s: float, pace_a: float | None, pace_b: float | None, verdict: str, reason: str
) -> None:
    a = once(1e-3, cpu_bound=True, host_pace=pace_a)
    b = once(b_s, cpu_bound=True, host_pace=pace_b)
    noise = noise_of("train", a, b)
    assert noise.pct == CPU_BOUND_PCT
    found = judge(a, b, noise)
    assert (found.verdict, found.reason) == (verdict, reason)


def test_one_side_limited_by_the_cpu_is_enough() -> None:
    a, b = once(1e-3), once(1.2e-3, cpu_bound=True)
    assert noise_of("train", a, b).pct == CPU_BOUND_PCT
    assert judge(a, b, noise_of("train", a, b)).verdict == "cannot tell"
