"""Medians, intervals and ratios: do the intervals hold the truth as often as they say?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from microbench.timing.stats import (
    excludes_one,
    half_width_pct,
    median,
    median_interval,
    ratio_interval,
)

TRIES = 250
LEAST_COVERAGE = 0.90
TICK_S = 32e-9

seconds = st.floats(1e-6, 1.0)
block = st.lists(seconds, min_size=1, max_size=6)
blocks = st.lists(block, min_size=2, max_size=9)
ticks = st.sampled_from([0.0, 32e-9, 1e-6])


def simulated(
    rng: np.random.Generator, rounds: int, true_s: float, between: float, within: float
) -> list[list[float]]:
    """Blocks whose level moves by `between` of the time and whose samples by `within` of it."""
    levels = true_s * (1 + between * rng.standard_normal(rounds))
    return [list(level * (1 + within * rng.standard_normal(15))) for level in levels]


def covered(holds: list[bool]) -> float:
    return sum(holds) / len(holds)


def test_the_median_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median([])


def test_one_block_has_no_interval() -> None:
    assert median_interval([]) is None
    assert median_interval([[1.0, 1.1, 1.2]]) is None
    assert ratio_interval([[2.0]], [[1.0]]) == (pytest.approx(2.0), None)


def test_rounds_that_do_not_pair_up_are_an_error() -> None:
    with pytest.raises(ValueError, match="pair up"):
        ratio_interval([[1.0]], [[1.0], [1.0]])
    with pytest.raises(ValueError, match="pair up"):
        ratio_interval([], [])


@pytest.mark.parametrize("rounds", range(2, 13))
def test_a_medians_interval_covers_with_noise_between_blocks(rounds: int) -> None:
    rng = np.random.default_rng(rounds)
    holds = []
    for _ in range(TRIES):
        interval = median_interval(simulated(rng, rounds, 1e-3, between=0.02, within=0.005))
        assert interval is not None
        holds.append(interval[0] <= 1e-3 <= interval[1])
    assert covered(holds) >= LEAST_COVERAGE


@pytest.mark.parametrize("rounds", range(3, 13))
def test_a_ratios_interval_covers_when_the_clock_moves_both_arms(rounds: int) -> None:
    rng = np.random.default_rng(100 + rounds)
    holds = []
    for _ in range(TRIES):
        clock = 1 + 0.05 * rng.standard_normal(rounds)  # common to both arms of a round
        upper = simulated(rng, rounds, 2e-3, between=0.01, within=0.005)
        lower = simulated(rng, rounds, 1e-3, between=0.01, within=0.005)
        _, interval = ratio_interval(
            [[t * c for t in b] for b, c in zip(upper, clock, strict=True)],
            [[t * c for t in b] for b, c in zip(lower, clock, strict=True)],
        )
        assert interval is not None
        holds.append(interval[0] <= 2 <= interval[1])
    assert covered(holds) >= LEAST_COVERAGE


@pytest.mark.parametrize("rounds", [3, 5, 7, 12])
@pytest.mark.parametrize("noise_ns", [1, 4, 16, 64])
def test_the_same_kernel_twice_on_a_timer_of_coarse_ticks(rounds: int, noise_ns: int) -> None:
    rng = np.random.default_rng(rounds * 1000 + noise_ns)

    def read(true_s: float) -> list[list[float]]:
        level = noise_ns * 1e-9 * rng.standard_normal((rounds, 1))
        raw = true_s + level + noise_ns * 1e-9 * rng.standard_normal((rounds, 15))
        return (np.round(raw / TICK_S) * TICK_S).tolist()

    holds = []
    for _ in range(120):
        true_s = 6e-6 + TICK_S * rng.random()
        _, interval = ratio_interval(read(true_s), read(true_s), TICK_S)
        assert interval is not None
        holds.append(not excludes_one(interval))
    assert covered(holds) >= LEAST_COVERAGE


def test_all_samples_on_one_tick_leave_half_a_tick_of_doubt() -> None:
    stuck = [[188 * TICK_S] * 15] * 7
    ratio, interval = ratio_interval(stuck, stuck, TICK_S)
    assert ratio == pytest.approx(1)
    assert interval is not None
    assert interval[0] < 1 < interval[1]
    doubt = median_interval(stuck, TICK_S)
    assert doubt is not None
    assert 0 < doubt[1] - doubt[0] <= TICK_S * 1.01


def test_a_true_difference_of_two_per_cent_is_seen() -> None:
    rng = np.random.default_rng(5)
    seen = []
    for _ in range(100):
        slow = simulated(rng, 7, 1.02e-3, between=0.003, within=0.003)
        fast = simulated(rng, 7, 1.00e-3, between=0.003, within=0.003)
        _, interval = ratio_interval(slow, fast)
        assert interval is not None
        seen.append(interval[0] > 1)
    assert covered(seen) >= LEAST_COVERAGE


@given(blocks)
@settings(max_examples=40)
def test_the_interval_holds_the_median(samples: list[list[float]]) -> None:
    interval = median_interval(samples)
    assert interval is not None
    centre = median([t for b in samples for t in b])
    assert 0 < interval[0] <= centre <= interval[1]
    assert half_width_pct(centre, interval) >= 0
    assert median_interval(samples) == interval  # the same again


@given(blocks, ticks)
@settings(max_examples=60)
def test_a_ratio_and_its_inverse(samples: list[list[float]], tick_s: float) -> None:
    other = [[2 * t for t in b[::-1]] for b in samples[::-1]]
    there, interval = ratio_interval(samples, other, tick_s)
    back, inverse = ratio_interval(other, samples, tick_s)
    assert there == pytest.approx(1 / back)
    assert interval is not None
    assert inverse is not None
    assert math.log(interval[0]) == pytest.approx(-math.log(inverse[1]), abs=1e-9)
    assert math.log(interval[1]) == pytest.approx(-math.log(inverse[0]), abs=1e-9)


@given(blocks, st.floats(1e-3, 1e3), ticks)
@settings(max_examples=60)
def test_units_do_not_matter(samples: list[list[float]], unit: float, tick_s: float) -> None:
    other = [[t * 1.5 for t in b] for b in samples]
    scaled = [[t * unit for t in b] for b in samples]
    other_scaled = [[t * unit for t in b] for b in other]
    ratio, interval = ratio_interval(samples, other, tick_s)
    ratio_scaled, interval_scaled = ratio_interval(scaled, other_scaled, tick_s * unit)
    assert ratio_scaled == pytest.approx(ratio)
    assert interval_scaled == pytest.approx(interval)
    plain, large = median_interval(samples, tick_s), median_interval(scaled, tick_s * unit)
    assert plain is not None
    assert large == pytest.approx((plain[0] * unit, plain[1] * unit))


@given(blocks)
@settings(max_examples=40)
def test_the_ratios_interval_holds_the_ratio_and_is_positive(samples: list[list[float]]) -> None:
    ratio, interval = ratio_interval(samples, samples[::-1])
    assert interval is not None
    assert 0 < interval[0] <= ratio <= interval[1]
    assert math.isfinite(interval[1])


@given(st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=20), st.floats(1.0, 10.0))
@settings(max_examples=60)
def test_more_spread_is_never_a_narrower_interval(logs: list[float], factor: float) -> None:
    widths = [
        math.log(interval[1] / interval[0])
        for by in (1.0, factor)
        for interval in [median_interval([[math.exp(by * log)] for log in logs])]
        if interval is not None
    ]
    assert widths[1] == pytest.approx(factor * widths[0], rel=1e-6, abs=1e-9)


@given(blocks, ticks)
@settings(max_examples=60)
def test_a_coarser_tick_on_the_same_readings_is_never_less_doubt_than_none(
    samples: list[list[float]], tick_s: float
) -> None:
    for there, fine in (
        (median_interval(samples, tick_s), median_interval(samples)),
        (
            ratio_interval(samples, samples[::-1], tick_s)[1],
            ratio_interval(samples, samples[::-1])[1],
        ),
    ):
        assert there is not None
        assert fine is not None
        assert there[0] <= fine[0]
        assert there[1] >= fine[1]


@given(st.floats(0.1, 10), st.floats(0.1, 10))
def test_an_interval_says_there_is_a_difference_only_without_one(a: float, b: float) -> None:
    assume(a != b)
    low, high = sorted((a, b))
    assert excludes_one((low, high)) == (not low <= 1 <= high)
