"""Medians, intervals and ratios: each is that of the method, and none depends on units or order.

`PYTHONPATH=tests python tests/microbench/test_stats.py` prints the tables of docs/notes/method.md.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from samples.measuring import PlantedTimer

from kernels.case import Case
from kernels.gemm import Gemm
from microbench.results.merging import merged, ratio_of_processes
from microbench.results.runfile import read_run
from microbench.results.types import TURNED_WRONG, Measurement, ProcessTime, Ratio, Result
from microbench.timing.interleave import INTERIM_LOOKS, InterleavedSampler, SamplingPlan, Variant
from microbench.timing.stats import (
    CORRELATION,
    DEFAULT_PRIOR,
    FEWEST_CASES,
    MAX_INTERVAL_PCT,
    PRIORS,
    Variance,
    VariancePrior,
    digamma,
    excludes_one,
    half_width_pct,
    median,
    median_interval,
    over_processes,
    pooled,
    prior_of,
    ratio_interval,
    ratio_over,
    t_quantile,
    trigamma,
    variance_between,
)
from microbench.timing.timers import Block, Launch

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


def test_what_has_no_interval_and_what_cannot_be_computed() -> None:
    for nothing in ([], [[1.0, 1.1, 1.2]], [[0.0], [1.0]], [[-1.0], [2.0], [2.0]]):
        assert median_interval(nothing) is None
    assert ratio_interval([[2.0]], [[1.0]]) == (pytest.approx(2.0), None)
    with pytest.raises(ValueError, match="no samples"):
        median([])
    for counts in ((3, 2), (2, 3), (0, 1), (1, 0), (0, 0)):
        with pytest.raises(ValueError, match="pair up"):
            ratio_interval([[1.0]] * counts[0], [[1.0]] * counts[1])


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


# ---------------------------------------------------------------- over processes


H200 = Path(__file__).parents[2] / "results" / "nvidia-h200"
EULER = 0.57721566490153
COVERED = (0.93, 0.97)  # of 95 % intervals, that hold
CASES = 2000


@pytest.mark.parametrize(
    ("x", "of_digamma", "of_trigamma"),
    [(0.5, -EULER - 2 * math.log(2), math.pi**2 / 2), (1.0, -EULER, math.pi**2 / 6),
     (1.5, 2 - EULER - 2 * math.log(2), math.pi**2 / 2 - 4),
     (10.0, 2.25175258906672, 0.10516633568168575), (25.0, None, 0.0408106633),
     (1000.0, None, 1.0005001666666e-3), (1e5, None, 1.00000500002e-5)],
)  # fmt: skip
def test_digamma_and_trigamma_have_their_known_values(
    x: float, of_digamma: float | None, of_trigamma: float
) -> None:
    assert trigamma(x) == pytest.approx(of_trigamma, rel=2e-6)
    if of_digamma is not None:
        assert digamma(x) == pytest.approx(of_digamma, rel=2e-6, abs=1e-6)


# ---------------------------------------------------------------- what is usual


def drawn(rng: np.random.Generator, usual: VariancePrior, cases: int) -> np.ndarray:
    """True variances of cases as `usual` has them: scaled inverse chi-square."""
    return usual.degrees * usual.value / rng.chisquare(usual.degrees, cases)


def seen_of(rng: np.random.Generator, variances: np.ndarray, degrees: int) -> list[Variance]:
    return [Variance(v * rng.chisquare(degrees) / degrees, degrees) for v in variances]


def test_cases_that_vary_alike_say_so_and_an_own_variance_counts_by_its_freedom() -> None:
    rng = np.random.default_rng(1)
    found = VariancePrior.fit(seen_of(rng, np.full(2000, 0.02**2), 4))
    assert math.sqrt(found.value) == pytest.approx(0.02, rel=0.03)
    assert found.degrees > 50
    few = [Variance(1e-4, 4)] * (FEWEST_CASES - 1)
    for more in ([], [Variance(0.0, 4)]):  # a variance of 0 is not known
        assert VariancePrior.fit([*few, *more]) == DEFAULT_PRIOR
    assert VariancePrior.fit([*few, Variance(1e-4, 4)]) != DEFAULT_PRIOR
    # And is at least what rounding hides.
    both = VariancePrior(1e-4, 6.0).posterior(Variance(4e-4, 2))
    assert both == (pytest.approx(1.75e-4), 8.0)
    assert pooled([Variance(1e-4, 1), Variance(4e-4, 3)]) == (pytest.approx(3.25e-4), 4)
    assert variance_between([1e-3, 1e-3 * math.e**2]) == (pytest.approx(2.0), 1)
    assert variance_between([1e-5] * 3) == (pytest.approx(0.0, abs=1e-20), 2)
    hidden = variance_between([1e-5] * 3, tick_s=1e-6)
    assert hidden.value == pytest.approx(0.1**2 / 12)


# ---------------------------------------------------------------- intervals


@pytest.mark.parametrize(
    ("usual", "processes"),
    [
        (VariancePrior(0.01**2, 3.0), 2),
        (VariancePrior(0.01**2, 3.0), 5),
        (VariancePrior(0.01**2, 20.0), 3),
    ],
)
def test_a_ratios_interval_holds_the_truth_as_often_as_it_says(
    usual: VariancePrior, processes: int
) -> None:
    """With the variance of each case combined with what is usual, learnt from the same cases."""
    rng = np.random.default_rng(100 * processes + int(usual.degrees))
    true = 1.03
    spread = np.sqrt(drawn(rng, usual, CASES))[:, None, None]
    runs = np.exp(spread * rng.standard_normal((CASES, 2, processes)))
    runs[:, 0] *= true
    own = [pooled([variance_between(list(run)) for run in case]) for case in runs]
    learnt = VariancePrior.fit(own)
    found = [
        ratio_over(list(a), list(b), learnt.posterior(variance))[1]
        for (a, b), variance in zip(runs, own, strict=True)
    ]
    check_coverage(found, true)


@pytest.mark.parametrize("prior", [VariancePrior(0.01**2, 3.0), VariancePrior(0.02**2, 20.0)])
@pytest.mark.parametrize("own", [0.0, 0.01])
def test_one_processs_interval_holds_what_another_process_has_as_often_as_it_says(
    prior: VariancePrior, own: float
) -> None:
    """Each process has a time of its own; the samples of one say it to +-1.96 `own`."""
    rng = np.random.default_rng(int(prior.degrees))
    spread = np.sqrt(drawn(rng, prior, CASES))
    process = np.exp(spread * rng.standard_normal(CASES))
    ends = math.exp(-1.96 * own), math.exp(1.96 * own)
    centres = map(float, process * np.exp(own * rng.standard_normal(CASES)))
    found = [over_processes(c, (c * ends[0], c * ends[1]), prior) for c in centres]
    check_coverage(found, 1.0)


def check_coverage(found: Sequence[tuple[float, float] | None], true: float) -> None:
    """Neither too few nor too many of the intervals hold, and they miss on both sides alike."""
    intervals = [interval for interval in found if interval]
    assert len(intervals) == CASES
    low, high = sum(i[1] < true for i in intervals), sum(i[0] > true for i in intervals)
    assert COVERED[0] <= 1 - (low + high) / CASES <= COVERED[1]
    assert low == pytest.approx(high, abs=4 * math.sqrt(low + high))


def published(op: str) -> list[tuple[float, Variance]]:
    """(seconds, variance between processes) of each case of a published run."""
    run = read_run(H200 / f"processes-{op}.json")
    timed = [result.measurement for result in run.results if result.measurement]
    return [
        (each.median_s, variance_between([p.median_s for p in each.processes],
                                         each.timer_resolution_s))
        for each in timed if len(each.processes) > 1
    ]  # fmt: skip


def test_priors_are_those_of_the_published_runs() -> None:
    found = {op: published(op) for op in PRIORS}
    check_prior(DEFAULT_PRIOR, [v for cases in found.values() for _, v in cases])
    for op, cases in found.items():
        for prior in PRIORS[op].values():
            check_prior(prior, [v for seconds, v in cases if prior_of(op, seconds) == prior])
    assert prior_of("train", 1.0) == DEFAULT_PRIOR


def check_prior(prior: VariancePrior, variances: list[Variance]) -> None:
    found = VariancePrior.fit(variances)
    assert math.sqrt(prior.value) == pytest.approx(math.sqrt(found.value), rel=0.1)
    assert prior.degrees == pytest.approx(found.degrees, rel=0.1)


# ---------------------------------------------------------------- merging


FP32 = Case(Gemm(512, 512, 512), "fp32", "cublas")
FP16 = replace(FP32, precision_name="fp16")
TRITON = replace(FP16, backend="triton")


def result(case: Case, *blocks: Sequence[float], **more: Any) -> Result:
    """What one process measured: blocks of seconds."""
    times = tuple(t for block in blocks for t in block)
    measurement = Measurement(
        times, tuple(map(len, blocks)), sorted(times)[len(times) // 2], None,
        "events", "cold", "sustained", **more,
    )  # fmt: skip
    return Result(case, "ok", measurement=measurement, flops=7, speedup={"old": Ratio(9.0, None)})


def test_blocks_stand_one_after_another_and_each_process_is_counted() -> None:
    before = [result(FP16, [1.0, 1.1, 0.9], [1.0])]
    (twice,) = merged(before, [result(FP16, [4.0], [4.0], [4.0, 4.4])], 1)
    (found,) = merged([twice], [result(FP16, [2.0])], 4)
    measured = found.measurement
    assert measured.times_s == (1.0, 1.1, 0.9, 1.0, 4.0, 4.0, 4.0, 4.4, 2.0)
    assert measured.blocks == (3, 1, 1, 1, 2, 1)
    assert measured.processes == (
        ProcessTime(0, 2, 1.0), ProcessTime(1, 3, 4.0), ProcessTime(4, 1, 2.0),
    )  # fmt: skip
    assert measured.by_process == {
        0: [(1.0, 1.1, 0.9), (1.0,)], 1: [(4.0,), (4.0,), (4.0, 4.4)], 4: [(2.0,)],
    }  # fmt: skip
    assert measured.median_s == pytest.approx(2.0)  # the cube root of 1 x 4 x 2
    assert measured.ci95_s[0] < 1 < 4 < measured.ci95_s[1]
    assert (found.flops, found.status) == (7, "ok")


def test_states_and_ratios_of_the_same_turns_are_means_over_processes() -> None:
    found = [result(FP16, [1.0], power_w=100.0, sm_clock_mhz=900.0, throttle=("power cap",))]
    found = merged(found, [result(FP16, [1.0], power_w=200.0, sm_clock_mhz=1200.0)], 1)
    last = result(FP16, [1.0], power_w=600.0, energy_j=3.0, throttle=("power cap", "thermal"))
    (found,) = merged(found, [last], 2)
    measured = found.measurement
    assert measured.power_w == pytest.approx(300.0)
    assert measured.sm_clock_mhz == pytest.approx(1050.0)  # of those that know it
    assert measured.energy_j == 3.0
    assert measured.throttle == ("power cap", "thermal")
    assert [p.sm_clock_mhz for p in measured.processes] == [900.0, 1200.0, None]
    before = [result(FP32, [8.0], [8.0]), result(FP16, [4.0], [4.0]), result(TRITON, [2.0], [2.0])]
    more = [result(FP32, [32.0], [32.0]), result(FP16, [4.0], [4.0]), result(TRITON, [4.0], [4.0])]
    fp32, fp16, triton = merged(before, more, 1)
    assert fp16.speedup["fp32"].ratio == pytest.approx(4.0)  # of 2 and 8
    assert triton.speedup["fp32"].ratio == pytest.approx((4 * 8) ** 0.5)
    assert fp16.vs_backend["triton"].ratio == pytest.approx(0.5**0.5)  # of 1/2 and 1
    assert triton.vs_backend["cublas"].ratio == pytest.approx(2**0.5)
    assert fp32.speedup["fp16"].ratio == pytest.approx(0.25)
    assert set(triton.vs_backend) == {"cublas"}  # and none over itself
    assert "fp16" not in triton.speedup  # the same precision
    assert set(fp32.speedup) == {"old", "fp16"}  # a ratio over Triton's kernel is none
    assert fp16.speedup["fp32"].ci95 is not None
    assert fp16.speedup["old"] == Ratio(9.0, None)


def test_a_case_that_fails_in_one_process_keeps_the_rest_and_one_that_missed_a_turn_too() -> None:
    before = [result(FP32, [8.0], [8.0]), result(FP16, [4.0], [4.0])]
    failed = Result(FP16, "failed", reason="hung")
    fp32, fp16 = merged(before, [result(FP32, [8.0], [8.0]), failed], 1)
    assert fp16 == before[1]
    assert len(fp32.measurement.processes) == 2
    assert set(fp32.speedup) == {"old"}  # one process has both
    assert merged(before, [], 1) == before
    skipped = Result(TRITON, "skipped", reason="no hardware")
    assert merged([skipped], [result(TRITON, [1.0])], 1) == [skipped]
    fp32, fp16 = merged([fp32, fp16], [result(FP32, [4.0], [4.0]), result(FP16, [1.0], [1.0])], 2)
    assert [p.number for p in fp16.measurement.processes] == [0, 2]
    assert fp16.speedup["fp32"].ratio == pytest.approx((2 * 4) ** 0.5)

    def arms(fp32: Sequence[float], fp16: float = 4.0) -> list[Result]:
        blocks = [[seconds] for seconds in fp32]
        return [result(FP32, *blocks), result(FP16, [fp16], [fp16]), result(TRITON, [2.0], [2.0])]

    found = merged(arms([8.0, 8.0]), arms([8.0], 1.0), 1)
    assert found[2].vs_backend["cublas"].ratio == pytest.approx((2 * 0.5) ** 0.5)
    assert all(set(one.speedup) == {"old"} for one in found)
    _, fp16, _ = merged(found, arms([6.0, 6.0], 1.0), 2)
    assert fp16.speedup["fp32"].ratio == pytest.approx((2 * 6) ** 0.5)


def test_a_ratio_of_one_process_is_over_its_rounds_and_what_turns_wrong_loses_its_times() -> None:
    def both(*processes: list[float]) -> Measurement:
        (found,) = before = [result(FP16, *([t] for t in processes[0]))]
        for number, times in enumerate(processes[1:], 1):
            (found,) = before = merged(before, [result(FP16, *([t] for t in times))], number)
        return found.measurement

    once = ratio_of_processes(both([8.0, 2.0]), both([1.0, 1.0]))
    assert once.ratio == pytest.approx(4.0)  # of 8 and 2
    assert once.ci95[0] < 1 < 16 < once.ci95[1]
    thrice = ratio_of_processes(both([8.0], [2.0], [4.0]), both([1.0], [1.0], [1.0]))
    assert thrice.ratio == pytest.approx(4.0)
    assert thrice.ci95 is not None
    assert ratio_of_processes(both([1.0, 1.0]), both([1.0])) is None
    arms = [result(FP32, [8.0], [8.0]), result(FP16, [4.0], [4.0]), result(TRITON, [2.0], [2.0])]
    before = merged(arms, arms, 1)
    assert "fp16" in before[0].speedup
    wrong = Result(FP16, "failed", reason=f"{TURNED_WRONG}: error 0.5", rel_error=0.5)
    fp32, fp16, triton = merged(before, [wrong], 2)
    assert (fp16.status, fp16.reason, fp16.measurement) == ("failed", wrong.reason, None)
    assert (fp16.rel_error, fp16.speedup, fp16.vs_backend) == (0.5, {}, {})
    assert set(fp32.speedup) == {"old"}
    assert set(triton.speedup) == {"old", "fp32"}
    assert triton.vs_backend == {}
    assert len(triton.measurement.processes) == 2


if __name__ == "__main__":
    print_coverage()
