"""Medians, intervals and ratios: each is that of the method, and none depends on units or order.

`PYTHONPATH=tests python tests/microbench/test_stats.py` prints the tables of docs/notes/method.md.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from samples.measuring import PlantedTimer

from microbench.timing.interleave import INTERIM_LOOKS, InterleavedSampler, SamplingPlan, Variant
from microbench.timing.stats import (
    CORRELATION,
    MAX_INTERVAL_PCT,
    excludes_one,
    half_width_pct,
    median,
    median_interval,
    ratio_interval,
    t_quantile,
)
from microbench.timing.timers import Block, Launch
from tests.validation.aa import share_interval

Floats = NDArray[np.float64]
TICK_S = 32e-9
# Two-sided quantiles of Student's t, as any table has them: (confidence, degrees) -> t.
T_TABLE = {
    (0.95, 1): 12.7062, (0.95, 2): 4.30265, (0.95, 3): 3.18245, (0.95, 4): 2.77645,
    (0.95, 5): 2.57058, (0.95, 7): 2.36462, (0.95, 11): 2.20099, (0.95, 30): 2.04227,
    (0.95, 120): 1.97993, (0.95, 999): 1.96234, (0.95, 10**6): 1.95996, (0.99, 1): 63.6567,
    (0.99, 5): 4.03214, (0.99, 30): 2.75000, (0.99, 10**6): 2.57583, (0.90, 3): 2.35336,
    (0.5, 1): 1.0, (0.5, 10): 0.699812,
}  # fmt: skip

block = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=6)
blocks = st.lists(block, min_size=2, max_size=9)
ticks = st.sampled_from([0.0, 32e-9, 1e-6])


@pytest.mark.parametrize(("confidence", "degrees"), T_TABLE)
def test_quantiles_are_those_of_the_tables(confidence: float, degrees: int) -> None:
    found = t_quantile(confidence, degrees)
    assert found == pytest.approx(T_TABLE[confidence, degrees], rel=1e-4)


def half_in_logarithms(medians: list[float], tick_s: float) -> float:
    """By hand: Student's t, for rounds of which each is correlated with the next by 0.12."""
    logs, n = np.log(medians), len(medians)
    noise = t_quantile(0.95, n - 1) * np.std(logs, ddof=1) / math.sqrt(n) * math.sqrt(1.12 / 0.88)
    ticks2 = max(0.0, float(np.var(medians, ddof=1)) / tick_s**2 - 1 / 12)
    rounding = tick_s / 2 * math.exp(-2 * math.pi**2 * ticks2) / float(np.mean(medians))
    return math.hypot(noise, rounding)


@pytest.mark.parametrize("tick_s", [1e-9, 0.05, 0.1, 0.2])
@pytest.mark.parametrize(
    "medians",
    [[1.0, 1.1], [1.0, 1.02, 0.97], [1.0, 1.01, 1.02, 1.04, 1.05], [0.9, 1.1, 0.9, 1.1, 0.95, 1.0]],
)
def test_an_interval_is_that_of_the_method(medians: list[float], tick_s: float) -> None:
    found = median_interval([[each] for each in medians], tick_s)
    half = half_in_logarithms(medians, tick_s)
    centre = float(np.median(medians))
    assert found == pytest.approx((centre * math.exp(-half), centre * math.exp(half)), rel=1e-6)


@pytest.mark.parametrize("logs", [[0.0, 0.1], [0.0, 0.1, -0.05], [0.3, 0.1, 0.2, 0.25]])
def test_a_ratio_is_that_of_students_t(logs: list[float]) -> None:
    ratio, found = ratio_interval([[math.exp(log)] for log in logs], [[1.0]] * len(logs))
    half = T_TABLE[0.95, len(logs) - 1] * float(np.std(logs, ddof=1)) / len(logs) ** 0.5
    assert found == pytest.approx((ratio * math.exp(-half), ratio * math.exp(half)), rel=1e-4)


@pytest.mark.parametrize("rounds", [2, 4, 7])
def test_readings_on_one_tick_may_differ_by_one(rounds: int) -> None:
    """Each is anywhere on its tick: the difference of two is a triangle of one tick either way."""
    centre = 100 * TICK_S
    stuck = [[centre] * 3] * rounds
    _, interval = ratio_interval(stuck, stuck, TICK_S)
    alone = median_interval(stuck, TICK_S)
    for end in interval:
        assert 0.6 * TICK_S < abs(end - 1) * centre <= TICK_S
    for end in alone:
        assert 0.4 * TICK_S < abs(end - centre) <= 0.51 * TICK_S


def test_times_far_below_a_tick_are_as_good_as_unknown() -> None:
    tiny = [[1e-15]] * 3
    alone = median_interval(tiny, TICK_S)
    _, ratio = ratio_interval(tiny, tiny, TICK_S)
    assert ratio is not None
    for low, high in ((alone[0] / 1e-15, alone[1] / 1e-15), ratio):
        assert low < 1e-9
        assert 1e9 < high < math.inf


# ---------------------------------------------------------------- whatever the samples


@given(blocks, ticks, st.floats(1e-3, 1e3))
@settings(max_examples=60)
def test_intervals_hold_their_estimate_and_do_not_depend_on_units_or_order(
    samples: list[list[float]], tick_s: float, unit: float
) -> None:
    centre = median([t for b in samples for t in b])
    alone = median_interval(samples, tick_s)
    assert 0 < alone[0] <= centre <= alone[1]
    fine = median_interval(samples)
    assert alone[0] <= fine[0], "a coarser tick is never less doubt"
    assert alone[1] >= fine[1]
    scaled = [[t * unit for t in b] for b in samples]
    large = median_interval(scaled, tick_s * unit)
    assert large == pytest.approx((alone[0] * unit, alone[1] * unit))

    other = [[2 * t for t in b[::-1]] for b in samples[::-1]]
    ratio, interval = ratio_interval(samples, other, tick_s)
    back, inverse = ratio_interval(other, samples, tick_s)
    assert ratio == pytest.approx(1 / back)
    assert 0 < interval[0] <= ratio <= interval[1] < math.inf
    assert interval == pytest.approx((1 / inverse[1], 1 / inverse[0]))
    same = ratio_interval(scaled, [[t * unit for t in b] for b in other], tick_s * unit)
    assert same == (pytest.approx(ratio), pytest.approx(interval))


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


@given(st.floats(1e-6, 10), st.floats(0, 5), st.floats(0, 5))
def test_half_an_interval_is_its_larger_side_in_per_cent(
    centre: float, below: float, above: float
) -> None:
    interval = (centre - below, centre + above)
    expected = max(below, above) / centre * 100
    assert half_width_pct(centre, interval) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(st.integers(1, 300), st.floats(0, 1))
def test_the_ends_of_a_share_are_where_chance_would_just_allow_it(tries: int, part: float) -> None:
    """Wilson's interval by its meaning: at each end the share seen is 1.96 errors away."""
    hits = round(part * tries)
    low, high = share_interval(hits, tries)
    assert 0 <= low <= hits / tries + 1e-12
    assert hits / tries - 1e-12 <= high <= 1
    for end, unlike in ((low, hits), (high, tries - hits)):
        error = 1.95996 * math.sqrt(end * (1 - end) / tries)
        assert abs(hits / tries - end) == pytest.approx(error, rel=1e-3, abs=1e-7) or not unlike


def test_what_has_no_interval_and_what_cannot_be_computed() -> None:
    for nothing in ([], [[1.0, 1.1, 1.2]], [[0.0], [1.0]], [[-1.0], [2.0], [2.0]]):
        assert median_interval(nothing) is None
    assert ratio_interval([[2.0]], [[1.0]]) == (pytest.approx(2.0), None)
    with pytest.raises(ValueError, match="no samples"):
        median([])
    for counts in ((3, 2), (2, 3), (0, 1), (1, 0), (0, 0)):
        with pytest.raises(ValueError, match="pair up"):
            ratio_interval([[1.0]] * counts[0], [[1.0]] * counts[1])


@pytest.mark.parametrize(
    ("interval", "shown"),
    [((1.0, 1.2), False), ((0.8, 1.0), False), ((0.8, 1.2), False), ((1.01, 1.2), True),
     ((0.8, 0.99), True)],
)  # fmt: skip
def test_an_interval_with_1_shows_no_difference(interval: tuple[float, float], shown: bool) -> None:
    assert excludes_one(interval) == shown


# ---------------------------------------------------------------- coverage


LOW, HIGH = 93.0, 97.0
TRIES = 600
SLACK = 1.0  # of a simulated share: one standard error of TRIES
TRUE_S = 1e-3


def correlated(rng: np.random.Generator, count: int, rho: float) -> Floats:
    """`count` normal values of variance 1, each correlated with the next one by `rho`."""
    fresh = math.sqrt(1 - rho**2) * rng.standard_normal(count)
    fresh[0] = rng.standard_normal()
    for i in range(1, count):
        fresh[i] += rho * fresh[i - 1]
    return fresh


def sampled(logs: Floats) -> list[list[float]]:
    """One sample per round, at these logarithms over TRUE_S."""
    return [[TRUE_S * math.exp(log)] for log in logs]


class Card(PlantedTimer):
    """A timer whose blocks read TRUE_S, changed by the logarithm of each turn, and its clock."""

    def __init__(self, turns: Floats) -> None:
        super().__init__(name="clock")
        self.turns, self.seconds = iter(turns), 0.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def block(self, launch: Launch, samples: int) -> Block:
        self.seconds += 1.0
        return Block((TRUE_S * math.exp(next(self.turns)),))


class Simulation:
    """Single tries; each is whether an interval holds the truth, or 1."""

    def __init__(self, seed: int = 28) -> None:
        self.rng, self.chance = np.random.default_rng(seed), random.Random(seed)

    def median(self, rounds: int, rho: float) -> bool:
        """The median of so many rounds."""
        return self.holds(0.01 * correlated(self.rng, rounds, rho))

    def holds(self, logs: Floats) -> bool:
        """Around the mean of the logarithms, of which the interval is; the median is no better
        estimate of the middle of a normal distribution.
        """
        interval = median_interval(sampled(logs - np.median(logs) + logs.mean()))
        return interval[0] <= TRUE_S <= interval[1]

    def stopping(self, percent: float, rho: float) -> bool:
        """The median of rounds that vary by `percent`, up to the first look that is narrow."""
        logs = percent / 100 * correlated(self.rng, INTERIM_LOOKS[-1], rho)
        for look in INTERIM_LOOKS:
            rounds = sampled(logs[:look])
            interval = median_interval(rounds)
            assert interval is not None
            if half_width_pct(float(np.median(rounds)), interval) <= MAX_INTERVAL_PCT:
                return self.holds(logs[:look])
        return self.holds(logs)

    def same(self, rounds: int, rho: float) -> bool:
        """The ratio of equal variants on a card whose clock is correlated from turn to turn."""
        return self.twice(0.01 * correlated(self.rng, 2 * rounds, rho), self.chance)

    def swinging(self, period: float, order: int | None = None) -> bool:
        """The same in 7 rounds with a clock that swings; `order` seeds every comparison's order.

        It swings with a period of so many turns, with noise of a quarter of that.
        """
        chance = self.chance if order is None else random.Random(order)
        phase = 2 * math.pi * self.rng.random()
        swing = np.cos(2 * math.pi * np.arange(14) / period + phase)
        return self.twice(0.02 * swing + 0.005 * self.rng.standard_normal(14), chance)

    def twice(self, turns: Floats, chance: random.Random) -> bool:
        """Whether two equal variants, interleaved, show no difference on a card that does this."""
        card = Card(turns)
        variants = [Variant(key, lambda: None, TRUE_S) for key in "ab"]
        plan = SamplingPlan(settle_s=0, warm_s=0, block_s=0, least=1, most=1)
        InterleavedSampler(card, "sustained", len(turns), card, own_plan=plan, chance=chance).take(
            variants
        )
        upper, lower = ([block.times_s for block in variant.blocks] for variant in variants)
        _, interval = ratio_interval(upper, lower)
        assert interval is not None
        return not excludes_one(interval)


def share(tries: int, one: Callable[..., bool], *given: float) -> float:
    """Per cent of tries that hold."""
    return 100 * sum(one(*given) for _ in range(tries)) / tries


@pytest.mark.parametrize(
    ("rounds", "what", "how"),
    [
        # At the correlations that are measured, and under the rule that stops.
        *((rounds, "median", (rounds, rho))
          for rounds in (3, 7, 28, 56) for rho in (0.0, CORRELATION)),
        *((INTERIM_LOOKS[0], "stopping", (percent, 0.0)) for percent in (0.5, 1.2)),
        # The same kernel twice, whatever the clock's correlation, and on one that swings.
        *((rounds, "same", (rounds, rho))
          for rounds, rho in ((3, 0.0), (14, 0.3), (3, 0.6), (7, 0.6))),
        *((3, "swinging", (period,)) for period in (2.0, 3.0)),
    ],
)  # fmt: skip
def test_an_interval_holds_the_truth_as_often_as_it_says(
    rounds: int, what: str, how: tuple[float, ...]
) -> None:
    tries = 1000 if what == "swinging" else TRIES
    found = share(tries, getattr(Simulation(rounds), what), *how)
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


def print_coverage(tries: int = 2000) -> None:
    """Coverage in per cent: fixed rounds, the stopping rule, and interleaved variants."""
    rhos = (0.0, 0.15, 0.3, 0.6)
    sim = Simulation()
    print("| | " + " | ".join(f"{rho}" for rho in rhos) + " |\n|---|--:|--:|--:|--:|")
    rows: list[tuple[str, Callable[..., bool], float]] = [
        *((f"median, {n} rounds", sim.median, n) for n in (3, 5, 7, 14, 28, 56)),
        *((f"median, stopped, rounds ±{s} %", sim.stopping, s) for s in (0.2, 0.4, 0.8, 1.3, 2)),
        *((f"same kernel twice, {n} rounds", sim.same, n) for n in (3, 5, 7, 14, 56)),
    ]
    for name, one, size in rows:
        found = [share(tries, one, size, rho) for rho in rhos]
        print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in found) + " |", flush=True)
    print("\n| period in turns | new order | one order for all |\n|---|--:|--:|")
    for period in (2, 3, 4, 7.5):
        new, old = share(tries, sim.swinging, period), share(tries, sim.swinging, period, 7)
        print(f"| {period} | {new:.1f} | {old:.1f} |", flush=True)


if __name__ == "__main__":
    print_coverage()
