"""How often 95 % intervals hold the truth, in simulations.

`python tests/samples/coverage.py` prints the tables of docs/notes/method.md.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from microbench.timing.interleave import (
    INTERIM_LOOKS,
    Clock,
    InterleavedSampler,
    SamplingPlan,
    Variant,
)
from microbench.timing.stats import (
    MAX_INTERVAL_PCT,
    excludes_one,
    half_width_pct,
    median_interval,
    ratio_interval,
)
from microbench.timing.timers import Block, Launch

Floats = NDArray[np.float64]
Blocks = list[list[float]]
TRUE_S = 1e-3
SEED = 28


def correlated(rng: np.random.Generator, count: int, rho: float) -> Floats:
    """`count` normal values of variance 1, each correlated with the next one by `rho`."""
    fresh = math.sqrt(1 - rho**2) * rng.standard_normal(count)
    fresh[0] = rng.standard_normal()
    for i in range(1, count):
        fresh[i] += rho * fresh[i - 1]
    return fresh


def times(logs: Floats) -> Blocks:
    """One sample per round, at these logarithms over TRUE_S."""
    return [[TRUE_S * math.exp(log)] for log in logs]


def holds_median(logs: Floats) -> bool:
    """Whether the interval of rounds at these logarithms over TRUE_S holds TRUE_S.

    Around the mean of the logarithms, of which the interval is; the median is no better estimate
    of the middle of a normal distribution.
    """
    interval = median_interval(times(logs - np.median(logs) + logs.mean()))
    assert interval is not None
    return interval[0] <= TRUE_S <= interval[1]


def stopped(logs: Floats) -> Floats:
    """The rounds that would be measured: up to the first look with a narrow interval."""
    for look in INTERIM_LOOKS:
        found = times(logs[:look])
        interval = median_interval(found)
        assert interval is not None
        if half_width_pct(float(np.median(found)), interval) <= MAX_INTERVAL_PCT:
            return logs[:look]
    return logs[: INTERIM_LOOKS[-1]]


@dataclass
class _Still(Clock):
    """A clock that the timer moves."""

    seconds: float = 0.0

    def now(self) -> float:
        return self.seconds


@dataclass
class _Card:
    """A timer whose `turns`-th block reads TRUE_S, changed by the logarithm of that turn."""

    clock: _Still
    turns: Iterator[float]
    name: str = "clock"
    l2: str = "cold"
    resolution_s: float = 0.0
    flush_s: float = 0.0
    overhead_s: float = 0.0
    taken: list[float] = field(default_factory=list[float])

    def block(self, launch: Launch, samples: int) -> Block:
        self.taken.append(next(self.turns))
        self.clock.seconds += 1.0
        return Block((TRUE_S * math.exp(self.taken[-1]),))

    def run(self, launch: Launch, times: int) -> None:
        """Warming up changes nothing."""

    def forget(self) -> None:
        """Nothing is kept."""


def same_twice(turns: Floats, rounds: int, chance: random.Random) -> bool:
    """Whether two equal variants, interleaved as `InterleavedSampler` does it, show no difference.

    `turns` are the logarithms of what the card does to each turn, whichever variant has it.
    """
    clock = _Still()
    card = _Card(clock, iter(turns))
    variants = [Variant(key, lambda: None, TRUE_S) for key in "ab"]
    plan = SamplingPlan(settle_s=0, warm_s=0, block_s=0, least=1, most=1)
    budget_s = 2.0 * rounds
    InterleavedSampler(card, "sustained", budget_s, clock, own_plan=plan, chance=chance).take(
        variants
    )
    upper, lower = ([block.times_s for block in variant.blocks] for variant in variants)
    _, interval = ratio_interval(upper, lower)
    assert interval is not None
    return not excludes_one(interval)


@dataclass
class Simulation:
    """Single tries; each is whether an interval holds the truth, or 1."""

    seed: int = SEED

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.chance = random.Random(self.seed)

    def median(self, rounds: int, rho: float) -> bool:
        """The median of so many rounds."""
        return holds_median(0.01 * correlated(self.rng, rounds, rho))

    def stopping(self, percent: float, rho: float) -> bool:
        """The median by the stopping rule, of rounds that vary by `percent`."""
        return holds_median(stopped(percent / 100 * correlated(self.rng, INTERIM_LOOKS[-1], rho)))

    def same(self, rounds: int, rho: float) -> bool:
        """The ratio of equal variants on a card whose clock is correlated from turn to turn."""
        turns = 0.01 * correlated(self.rng, 2 * rounds, rho)
        return same_twice(turns, rounds, self.chance)

    def swinging(self, period: float, order: int | None = None) -> bool:
        """The same in 7 rounds with a clock that swings; `order` seeds every comparison's order.

        It swings with a period of so many turns, with noise of a quarter of that.
        """
        chance = self.chance if order is None else random.Random(order)
        phase = 2 * math.pi * self.rng.random()
        swing = np.cos(2 * math.pi * np.arange(14) / period + phase)
        return same_twice(0.02 * swing + 0.005 * self.rng.standard_normal(14), 7, chance)


def share(tries: int, one: Callable[..., bool], *given: float) -> float:
    """Per cent of tries that hold."""
    return 100 * sum(one(*given) for _ in range(tries)) / tries


# ------------------------------------------------------------------- tables


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
    for name, one, given in rows:
        found = [share(tries, one, given, rho) for rho in rhos]
        print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in found) + " |", flush=True)
    print("\n| period in turns | new order | one order for all |\n|---|--:|--:|")
    for period in (2, 3, 4, 7.5):
        new, old = share(tries, sim.swinging, period), share(tries, sim.swinging, period, 7)
        print(f"| {period} | {new:.1f} | {old:.1f} |", flush=True)


if __name__ == "__main__":
    print_coverage()
