"""Interleaves the variants of a comparison, a block of samples each per round.

Stops when the intervals are narrow. Policy only: the timer, the clock and the telemetry come from
the caller.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from microbench.timing import FEWEST_ROUNDS, HEAVY_S, SUSTAINED
from microbench.timing.stats import is_settled
from microbench.timing.timers import Block, Launch, Timer

WATCHED_SHARE = 0.5  # of the warm-up: its later part counts for the variant's telemetry
WARM_RUN_S = 0.01
LAUNCH_S = 5e-6  # CPU time of a launch, about
BURST_IDLE_FACTOR = 15  # idle this many times the launch's time between samples
BURST_IDLE_MIN_S = 2e-3
BURST_SAMPLES = 3
# Looking after every round would stop on lucky streaks, and the interval would cover less.
INTERIM_LOOKS = (7, 14, 28, 56)
MAX_ROUNDS = INTERIM_LOOKS[-1]


@dataclass(frozen=True)
class SamplingPlan:
    """Seconds that the card is warmed before the first block, before each block, and in a block.

    A block has as many samples as fit `block_s` seconds, at least `least` and at most `most`.
    `discarded` rounds come first and are not kept; their warm-ups are part of `settle_s`.
    """

    settle_s: float
    warm_s: float
    block_s: float
    least: int
    most: int
    discarded: int = 0

    def least_s(self, variants: int, rounds: int) -> float:
        """Seconds that so many rounds of so many variants take, however short the budget is."""
        turns = (self.discarded + rounds) * variants
        return self.before_s(variants) + turns * (self.warm_s + self.block_s)

    def before_s(self, variants: int) -> float:
        """Seconds of warming before the rounds of so many variants that are not kept."""
        return max(0.0, self.settle_s - self.discarded * variants * self.warm_s)


# Heavy blocks are short: the flush between samples lets the card rest, so its clock rises over a
# block. Only the first samples after 150 ms of back-to-back launches have the sustained clock.
# Where a variant reaches the power limit, its first block falls into the limit's first swing.
# Two variants were warmed for 0.8 s in results/nvidia-h200/aa.json; more need no longer.
HEAVY = SamplingPlan(settle_s=0.8, warm_s=0.15, block_s=0.04, least=3, most=24, discarded=1)
LIGHT = SamplingPlan(settle_s=0.02, warm_s=0.002, block_s=0.008, least=15, most=48)


class VariantFailed(Exception):
    """A launch raised; `variant` is its variant, `__cause__` what it raised."""

    def __init__(self, variant: Variant) -> None:
        super().__init__(variant.key)
        self.variant = variant


class Clock:
    """Where policy reads the time and sleeps: the machine's own."""

    def now(self) -> float:
        """Seconds of a monotonic clock."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Do nothing for `seconds`."""
        time.sleep(seconds)


@dataclass
class Variant:
    """A variant of a comparison and its blocks so far; `estimate_s` is seconds per launch."""

    key: str
    launch: Launch
    estimate_s: float
    blocks: list[Block] = field(default_factory=list[Block])


@contextmanager
def blaming(variant: Variant) -> Generator[None]:
    """VariantFailed with this variant for whatever is raised inside."""
    try:
        yield
    except Exception as error:
        raise VariantFailed(variant) from error


@dataclass(frozen=True)
class InterleavedSampler:
    """How variants are interleaved: the regime, one of REGIMES, and seconds of sampling in all.

    `during(key)` is entered while a variant is sampled; `begin(key, round)` is called before each
    block, with round 0 for the warm-up. `own_plan` replaces the choice between HEAVY and LIGHT;
    `fewest` rounds are taken even where the budget is spent.
    """

    timer: Timer
    regime: str
    budget_s: float
    clock: Clock = field(default_factory=Clock)
    during: Callable[[str], AbstractContextManager[object]] = lambda _key: nullcontext()
    begin: Callable[[str, int], None] = lambda _key, _round: None
    heavy: bool = False  # HEAVY, whatever the estimates are
    fewest: int = FEWEST_ROUNDS
    own_plan: SamplingPlan | None = None  # of launches neither light nor heavy: training steps
    chance: random.Random = field(default_factory=random.Random)  # of the order in each round

    def take(self, variants: Sequence[Variant]) -> int:
        """Fill the blocks of all variants, one each per round; returns the number of rounds.

        Stops when every interval is narrow enough, after MAX_ROUNDS, or when `budget_s` is spent
        and `fewest` are done. VariantFailed when a launch raises.
        """
        start = self.clock.now()
        rounds = 0
        plan = self.plan(variants)
        order = list(variants)
        self._settle(variants, plan)
        while rounds < MAX_ROUNDS:
            # A new order each round: else a variant would always run on the heat of the same one.
            # Another in each comparison: what a start or a swing of the clock does to a turn of the
            # comparison would else fall to the same variant every time.
            self.chance.shuffle(order)
            rounds += 1
            for variant in order:
                self._turn(variant, rounds, plan)
            spent = self.clock.now() - start
            if self._enough(variants, rounds, spent):
                break
        return rounds

    def plan(self, variants: Sequence[Variant]) -> SamplingPlan:
        """HEAVY where a variant takes HEAVY_S or more, else LIGHT, unless set by the caller."""
        if self.own_plan:
            return self.own_plan
        heavy = self.heavy or any(variant.estimate_s >= HEAVY_S for variant in variants)
        return HEAVY if heavy else LIGHT

    def _settle(self, variants: Sequence[Variant], plan: SamplingPlan) -> None:
        """Warm the card up, then go through the rounds that are not kept."""
        self.begin(variants[0].key, 0)
        with blaming(variants[0]):
            self._warm(variants[0], plan.before_s(len(variants)))
        if not self._is_sustained:
            return
        for variant in plan.discarded * list(variants):
            self.begin(variant.key, 0)
            with blaming(variant):
                self._warm(variant, plan.warm_s)
                self._block(variant, plan)

    def _turn(self, variant: Variant, number: int, plan: SamplingPlan) -> None:
        """One variant's part of a round."""
        self.begin(variant.key, number)
        with blaming(variant):
            self._warm(variant, (1 - WATCHED_SHARE) * plan.warm_s)
            with self.during(variant.key):
                self._warm(variant, WATCHED_SHARE * plan.warm_s)
                variant.blocks.append(self._block(variant, plan))

    def _enough(self, variants: Sequence[Variant], rounds: int, spent_s: float) -> bool:
        if spent_s >= self.budget_s and rounds >= self.fewest:
            return True
        if rounds not in INTERIM_LOOKS:
            return False
        return all(
            is_settled([block.times_s for block in variant.blocks], self.timer.resolution_s)
            for variant in variants
        )

    @property
    def _is_sustained(self) -> bool:
        """Whether variants are warmed up: not on a rested card, and not on a CPU."""
        return self.regime == SUSTAINED and self.timer.name != "clock"

    def _warm(self, variant: Variant, seconds: float) -> None:
        if not self._is_sustained:
            return
        run_s = min(WARM_RUN_S, seconds / 2)
        per_run = max(1, int(run_s / max(variant.estimate_s, LAUNCH_S)))
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            self.timer.run(variant.launch, per_run)

    def _block(self, variant: Variant, plan: SamplingPlan) -> Block:
        if self.regime == "burst" and plan is HEAVY and self.timer.name != "clock":
            return self._burst_block(variant)
        least = plan.least
        if self.timer.name == "clock" and variant.estimate_s + self.timer.flush_s > HEAVY.block_s:
            least = 1
        wanted = int(plan.block_s / (variant.estimate_s + self.timer.flush_s))
        return self.timer.block(variant.launch, min(plan.most, max(least, wanted)))

    def _burst_block(self, variant: Variant) -> Block:
        # One launch at a time on a rested card, as a profiler that replays kernels sees it.
        taken: list[Block] = []
        for _ in range(BURST_SAMPLES):
            self.clock.sleep(max(BURST_IDLE_MIN_S, BURST_IDLE_FACTOR * variant.estimate_s))
            taken.append(self.timer.block(variant.launch, 1))
        clocks = [block.sm_clock_mhz for block in taken if block.sm_clock_mhz]
        return Block(
            tuple(t for block in taken for t in block.times_s),
            sum(clocks) / len(clocks) if clocks else None,
        )
