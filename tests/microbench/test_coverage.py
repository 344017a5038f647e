"""Do 95 % intervals hold the truth in 93 to 97 % of seeded tries: no fewer, and no more?"""

from __future__ import annotations

import numpy as np
import pytest
from samples.coverage import Simulation, share

from microbench.timing.interleave import INTERIM_LOOKS
from microbench.timing.stats import (
    CORRELATION,
    excludes_one,
    ratio_interval,
)

LOW, HIGH = 93.0, 97.0
TRIES = 600
SLACK = 1.0  # of a simulated share: one standard error of TRIES
TICK_S = 32e-9


@pytest.mark.parametrize("rounds", [3, 7, 28, 56])
@pytest.mark.parametrize("rho", [0.0, CORRELATION])
def test_a_medians_interval_at_the_correlations_that_are_measured(rounds: int, rho: float) -> None:
    found = share(TRIES, Simulation(rounds).median, rounds, rho)
    assert LOW - SLACK <= found <= HIGH + SLACK


@pytest.mark.parametrize("percent", [0.5, 1.2])
def test_a_medians_interval_under_the_stopping_rule(percent: float) -> None:
    found = share(TRIES, Simulation(INTERIM_LOOKS[0]).stopping, percent, 0.0)
    assert LOW - SLACK <= found <= HIGH + SLACK


@pytest.mark.parametrize(("rounds", "rho"), [(3, 0.0), (14, 0.3), (3, 0.6), (7, 0.6)])
def test_the_same_kernel_twice_whatever_the_clocks_correlation(rounds: int, rho: float) -> None:
    found = share(TRIES, Simulation(rounds).same, rounds, rho)
    assert LOW - SLACK <= found <= HIGH + SLACK


@pytest.mark.parametrize("period", [2.0, 3.0])
def test_the_same_kernel_twice_on_a_clock_that_swings(period: float) -> None:
    found = share(1000, Simulation(3).swinging, period)
    assert LOW - SLACK <= found <= HIGH + SLACK


def test_one_order_for_all_comparisons_would_take_a_swing_for_a_difference() -> None:
    assert share(TRIES // 2, Simulation(3).swinging, 3.0, 7) < 85


@pytest.mark.parametrize("rounds", [5, 14])
def test_a_ratio_of_times_with_two_levels(rounds: int) -> None:
    rng = np.random.default_rng(rounds)

    def holds() -> bool:
        level = 1 + 0.05 * (rng.random((2, rounds, 1)) < 0.3)
        taken = 1e-4 * level * (1 + 0.01 * rng.standard_normal((2, rounds, 9)))
        _, interval = ratio_interval(*taken.tolist())
        return interval is not None and not excludes_one(interval)

    assert LOW - SLACK <= share(TRIES, holds) <= HIGH + SLACK


@pytest.mark.parametrize(("noise_ns", "most"), [(4, 100.0), (16, 98.0), (48, HIGH)])
def test_a_ratio_on_a_timer_of_coarse_ticks(noise_ns: float, most: float) -> None:
    """Where noise is under a tick, half a tick of doubt is more than is needed."""
    rng = np.random.default_rng(7)

    def holds() -> bool:
        true_s = (6e-6, 6e-6) + TICK_S * rng.random(2)
        level = noise_ns * 1e-9 * rng.standard_normal((2, 7, 1))
        raw = true_s[:, None, None] + level + noise_ns * 1e-9 * rng.standard_normal((2, 7, 15))
        upper, lower = (np.round(raw / TICK_S) * TICK_S).tolist()
        _, interval = ratio_interval(upper, lower, TICK_S)
        assert interval is not None
        return interval[0] <= true_s[0] / true_s[1] <= interval[1]

    assert LOW - SLACK <= share(TRIES, holds) <= most + SLACK


def test_a_true_difference_of_two_per_cent_is_seen() -> None:
    rng = np.random.default_rng(5)

    def sees() -> bool:
        levels = np.array([[1.02], [1.0]]) * (1 + 0.003 * rng.standard_normal((2, 7)))
        times = levels[:, :, None] * (1 + 0.003 * rng.standard_normal((2, 7, 15)))
        _, interval = ratio_interval(*times.tolist())
        return interval is not None and interval[0] > 1

    assert share(100, sees) >= 90
