"""Verdicts on cases of several processes, at other clocks, and on steps that the CPU limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from microbench.results.comparison import (
    CPU_BOUND_PCT,
    LEAST_PCT,
    NOISE_PCT,
    Learnt,
    Noise,
    in_processes,
    judge,
    learn,
    noise_of,
    ratio_between,
)
from microbench.results.kinds import kinds
from microbench.results.types import ProcessTime, Timed
from microbench.timing.stats import DEFAULT_PRIOR, VariancePrior, median_interval

RUNS, CASES, PROCESSES = 20, 20, 3
GEMM = Noise(NOISE_PCT, op="gemm")  # of one process
KNOWN = Learnt(VariancePrior(0.004**2, 30.0), VariancePrior(0.004**2, 30.0))


def several(medians_s: Sequence[float], mhz: float | None = None) -> Timed:
    """A case that several processes measured."""
    parts = tuple(ProcessTime(i, 7, s, mhz) for i, s in enumerate(medians_s))
    return Timed(math.exp(np.log(medians_s).mean()), None, mhz, processes=parts)


def once(seconds: float, half_pct: float = 1.0, **more: float | bool | None) -> Timed:
    """A case of one process."""
    half = seconds * half_pct / 100
    return replace(Timed(seconds, (seconds - half, seconds + half)), **more)


def simulated(rng: np.random.Generator, sd: float, seconds: float = 1e-5) -> Timed:
    return several(list(seconds * np.exp(sd * rng.standard_normal(PROCESSES))))


def verdicts(pairs: Sequence[tuple[Timed, Timed]]) -> list[str]:
    learnt = learn(pairs)
    return [judge(a, b, noise_of("gemm", a, b), learnt).verdict for a, b in pairs]


# ---------------------------------------------------------------- several processes


def test_the_same_is_rarely_called_different_and_a_planted_shift_is() -> None:
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


def test_one_process_on_a_side_is_judged_as_one() -> None:
    many, single = several([1e-5] * 3), once(1e-5)
    assert not in_processes(many, single)
    both = noise_of("gemm", many, many)
    assert (both.pct, both.near_pct) == (LEAST_PCT, NOISE_PCT)
    assert noise_of("gemm", many, single) == noise_of("gemm", single, single) == GEMM
    assert noise_of("train", single, single) == Noise(kinds()["train"].noise_pct)
    asked = noise_of("gemm", many, many, threshold_pct=7.0)
    assert (asked.pct, asked.near_pct) == (7.0, None)
    assert learn([(many, single)]) == Learnt(DEFAULT_PRIOR, DEFAULT_PRIOR)


# ---------------------------------------------------------------- each threshold from both sides

OPPOSITE = {"faster": "slower", "slower": "faster", "same": "same", "cannot tell": "cannot tell"}
ALIKE = Learnt(VariancePrior(1e-12, 1e4), VariancePrior(1e-12, 1e4))  # processes that hardly differ


def exactly(seconds: float, processes: int = 1, mhz: float | None = None) -> Timed:
    """Exactly known times, in so many processes."""
    if processes > 1:
        return replace(several([seconds] * processes, mhz), ci95_s=(seconds, seconds))
    return once(seconds, 0.0, sm_clock_mhz=mhz)


def verdict(a: Timed, b: Timed, threshold_pct: float | None = None) -> str:
    return judge(a, b, noise_of("gemm", a, b, threshold_pct), ALIKE).verdict


@pytest.mark.parametrize(
    ("processes", "base_s", "factor", "pct", "found"),
    [
        *((1, 1e-3, *rest) for rest in (
            (1.08, None, "slower"), (1.029, None, "same"), (1 / 1.08, None, "faster"),
            (1 / 1.029, None, "same"), (1.031, None, "cannot tell"), (1.05, None, "cannot tell"),
            (1.02, 2.1, "same"), (1.02, 1.9, "cannot tell"),
        )),
        (1, 3e-6, 1.08, None, "cannot tell"), (1, 3e-6, 1.12, None, "slower"),
        (1, 3e-6, 1.029, None, "same"),
        *((3, base_s, *rest) for base_s in (1e-5, 1e-3) for rest in (
            (1.0099, None, "same"), (1.0101, None, "slower"), (1 / 1.0101, None, "faster"),
            (1 / 1.0099, None, "same"),
        )),
        (3, 1e-3, 1.02, 1.9, "slower"), (3, 1e-3, 1.02, 2.1, "same"),
    ],
)  # fmt: skip
def test_a_verdict_changes_at_the_noise_or_at_the_users_threshold(
    processes: int, base_s: float, factor: float, pct: float | None, found: str
) -> None:
    a, b = exactly(base_s, processes), exactly(base_s * factor, processes + (processes > 1))
    assert verdict(a, b, pct) == found
    if processes > 1 and not pct:
        with_one = verdict(a, exactly(base_s * factor))
        assert with_one == "same", "one process alone knows no better than 3 %"


def test_intervals_of_single_processes_add_like_independent_errors() -> None:
    a = Timed(1e-3, (0.97e-3, 1.06e-3))
    b = Timed(2e-3, (1.92e-3, 2.08e-3))
    found = ratio_between(a, b)
    assert found.ratio == 0.5
    assert found.ci95 == pytest.approx((0.475777, 0.536879), rel=1e-4)


@pytest.mark.parametrize(
    ("a_mhz", "b_mhz", "found"),
    [(1500.0, 1500.0, "slower"), (1800.0, 1500.0, "cannot tell"), (1500.0, 1800.0, "slower"),
     (1530.0, 1500.0, "slower"), (None, 1500.0, "slower"), (1800.0, None, "slower")],
)  # fmt: skip
@pytest.mark.parametrize("processes", [1, 3])
def test_a_slower_kernel_takes_more_cycles_too(
    a_mhz: float | None, b_mhz: float | None, found: str, processes: int
) -> None:
    a, b = exactly(1e-3, processes, a_mhz), exactly(1.1e-3, processes, b_mhz)
    assert verdict(a, b) == found
    assert verdict(b, a) == OPPOSITE[found]


@pytest.mark.parametrize(
    ("a", "b", "verdict", "reason"),
    [
        (once(1e-3), once(1.2e-3), "slower", "interval is beyond it"),
        (once(1e-3), once(1.06e-3), "cannot tell", "processes may differ by as much"),
        (once(1e-3), once(1e-3), "same", "interval is within 3 %"),
        (once(1e-3, 10.0), once(1.1e-3, 10.0), "cannot tell", "interval reaches beyond 3 %"),
        (Timed(1e-3), once(1e-3), "cannot tell", "one round only"),
        (once(1e-3, sm_clock_mhz=1980.0), once(1.2e-3, sm_clock_mhz=1650.0), "cannot tell",
         "clocks differ"),
    ],
)  # fmt: skip
def test_every_verdict_has_its_reason(a: Timed, b: Timed, verdict: str, reason: str) -> None:
    found = judge(a, b, GEMM)
    assert (found.verdict, found.reason) == (verdict, reason)


widths = st.none() | st.floats(0.0, 90.0)
clocks = st.none() | st.floats(500.0, 2000.0)


@given(st.floats(1e-6, 1.0), st.floats(0.5, 2.0), widths, widths, clocks, clocks)
def test_exchanging_the_runs_exchanges_the_verdict(
    seconds: float, factor: float, width_a: float | None, width_b: float | None,
    clock_a: float | None, clock_b: float | None,
) -> None:  # fmt: skip
    a, b = (
        replace(once(time_s, width or 0.0, sm_clock_mhz=mhz), **({} if width else {"ci95_s": None}))
        for time_s, width, mhz in (
            (seconds, width_a, clock_a), (seconds * factor, width_b, clock_b),
        )
    )  # fmt: skip
    assert judge(b, a, GEMM).verdict == OPPOSITE[judge(a, b, GEMM).verdict]


# ---------------------------------------------------------------- the CPU limits


@pytest.mark.parametrize(
    ("b_s", "pace_a", "pace_b", "verdict", "reason"),
    [
        (1.6e-3, 1.0, 1.6, "same", "interval is within 30 %"),
        (1.6e-3, 1.0, 1.0, "slower", "interval is beyond it"),
        (1.2e-3, 1.0, 1.0, "same", "interval is within 30 %"),
        (0.6e-3, 1.5, 1.5, "faster", "interval is beyond it"),
        (0.9e-3, 1.0, 0.5, "cannot tell", "CPU speeds differ"),  # 1.8 times as slow at one speed
        (1.1e-3, 1.0, 2.0, "cannot tell", "CPU speeds differ"),
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
    assert noise.pct == noise_of("train", once(1e-3), b).pct == CPU_BOUND_PCT, "one is enough"
    found = judge(a, b, noise)
    assert (found.verdict, found.reason) == (verdict, reason)


@pytest.mark.parametrize("half_pct", [20, 95])
def test_an_interval_beyond_30_per_cent_is_no_verdict_however_far_apart(half_pct: float) -> None:
    a, b = once(1.0), once(0.01, half_pct)
    found = judge(a, b, GEMM)
    assert found.verdict == ("faster" if half_pct < 30 else "cannot tell")
    assert ("±30 %" in found.reason) == (half_pct > 30)
    assert judge(b, a, GEMM).verdict == ("slower" if half_pct < 30 else "cannot tell")
    # Three rounds with one slow one, as a busy CPU gives them: it reaches far, and is no crash.
    shaky = Timed(1.1e-4, median_interval([[1e-4], [1.1e-4], [7e-4]]))
    for other in (once(1e-4), shaky):
        assert judge(shaky, other, GEMM).verdict == "cannot tell"
