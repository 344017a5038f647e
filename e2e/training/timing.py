"""Times the variants of a comparison interleaved, by one loop that every rank runs alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from e2e.results.types import FEWEST_FED_ROUNDS
from e2e.training.host_speed import SpeedByTurn
from e2e.training.launch import RanksLost
from e2e.training.ranks import MEET_S, Ranks
from e2e.training.step_timer import BurstTimer, StepBlock, StepTimer
from e2e.training.variant import LOCAL, TimedPart, Variant
from microbench import fmt
from microbench.errors import UserError
from microbench.timing import FEWEST_ROUNDS
from microbench.timing.interleave import (
    INTERIM_LOOKS,
    LAUNCH_S,
    MAX_ROUNDS,
    WARM_RUN_S,
    WATCHED_SHARE,
    SamplingPlan,
)
from microbench.timing.stats import is_settled, median

# Of a turn's seconds: at most 0.6 of timed steps after 0.2 to warm up, which is enough for the
# median of a turn to be known to a fraction of a per cent; less when the budget is short.
TURN_S, WARM_SHARE = 0.8, 0.25
ROUNDS = INTERIM_LOOKS[0]  # that a budget is meant to last for
LOADER_TURN_S, CPU_TURN_S = 4.0, 2.0  # at most, of fed steps, and of others on a CPU without a lead
SETTLED_STEPS = 2  # after the first ones: they measure the memory and the time of a step
KNOWN_SHARE = 1 / 3  # of the budget: from here on it is said how long the rest takes

Announce = Callable[[str, str], None]


class VariantFailed(Exception):
    """A step raised; `__cause__` is what."""

    def __init__(self, variant: Variant) -> None:
        super().__init__(variant.key)
        self.variant = variant


@dataclass
class Watch:
    """What is noted beside timed steps: sensors while `during(key)`, and what is announced.

    `speeds` are of the host, `left` gets the seconds that timing still takes, once they are
    known.
    """

    during: Callable[[str], AbstractContextManager[object]]
    announce: Announce
    speeds: SpeedByTurn | None = None
    left: Callable[[float], None] | None = None


def time_interleaved(
    variants: Sequence[Variant], budget_s: float, timer: StepTimer, ranks: Ranks, watch: Watch
) -> None:
    """Fill the blocks of all variants, one each per round, in a new order each round.

    Ends when every interval is narrow, after MAX_ROUNDS, or when `budget_s` is spent and
    the fewest rounds are done. VariantFailed where a step raises; RanksLost where that is one of
    several ranks; UserError for a broken file of strict data.
    """
    for variant in variants:
        variant.skipped_before = variant.trainer.skipped_steps
        for part in variant.parts:
            part.blocks.clear()
    sampler = _Sampler(variants, budget_s, timer, ranks, watch)
    began_s = time.perf_counter()
    sampler.settle()
    for number in range(1, MAX_ROUNDS + 1):
        sampler.round(number)
        spent_s = time.perf_counter() - began_s
        if watch.left and spent_s >= KNOWN_SHARE * budget_s:
            watch.left(max(0.0, budget_s - spent_s, (sampler.fewest / number - 1) * spent_s))
        if ranks.from_rank0(sampler.enough(number, spent_s)):
            break
    sampler.finish()


@contextmanager
def blaming(variant: Variant, ranks: Ranks) -> Generator[None]:
    """VariantFailed for what its steps raise, where this process can go on without it."""
    try:
        with ranks.exchanging():
            yield
    except (UserError, RanksLost):
        raise
    except Exception as error:
        raise VariantFailed(variant) from error


class _Sampler:
    """The turns of one comparison's parts. All that depends on a clock is as rank 0 has it."""

    def __init__(
        self, variants: Sequence[Variant], budget_s: float, timer: StepTimer, ranks: Ranks,
        watch: Watch,
    ) -> None:  # fmt: skip
        self._order = [(variant, part) for variant in variants for part in variant.parts]
        self._budget_s, self._ranks, self._watch = budget_s, ranks, watch
        self._several = len(variants) > 1
        self._timer = _timer_of_bursts(variants, timer)
        fed = any(variant.training.case.loads_data for variant in variants)
        self.fewest = FEWEST_FED_ROUNDS if fed else FEWEST_ROUNDS
        self._plan = _plan(
            budget_s / len(self._order), fed=fed, led=isinstance(self._timer, BurstTimer),
            cuda=ranks.device.type == "cuda",
        )  # fmt: skip
        self._last: tuple[Variant, TimedPart] | None = None
        # Another order in each comparison: what a start or a swing of the clock does to a turn
        # would else fall to the same variant every time.
        self._chance = random.Random(ranks.from_rank0(random.random()))

    def settle(self) -> None:
        """Warm the device up."""
        variant, part = self._order[0]
        self._begin(variant, part, 0)
        with blaming(variant, self._ranks):
            self._warm(part, self._plan.settle_s)

    def round(self, number: int) -> None:
        """A turn of each: warmed up, the later part of that in the sensors' view, then timed."""
        # A new order each round: else one would always run on the heat of the same other.
        self._chance.shuffle(self._order)
        for variant, part in self._order:
            self._begin(variant, part, number)
            with blaming(variant, self._ranks):
                self._warm(part, (1 - WATCHED_SHARE) * self._plan.warm_s)
                with self._watch.during(part.key):
                    self._warm(part, WATCHED_SHARE * self._plan.warm_s)
                    part.blocks.append(self._block(part))

    def enough(self, rounds: int, spent_s: float) -> bool:
        """Whether that was the last round."""
        if spent_s >= self._budget_s and rounds >= self.fewest:
            return True
        tick_s = self._timer.resolution_s
        times = ([block.times_s for block in part.blocks] for _, part in self._order)
        return rounds in INTERIM_LOOKS and all(is_settled(each, tick_s) for each in times)

    def finish(self) -> None:
        """End the last turn."""
        self._same_weights()
        if self._watch.speeds:
            self._watch.speeds.begin("")

    def _begin(self, variant: Variant, part: TimedPart, number: int) -> None:
        if self._watch.speeds:
            # The first turn of all only warms the device.
            self._watch.speeds.begin(part.key if number else "")
        self._same_weights()
        self._last = variant, part
        variant.trainer.set_backend_flags()
        self._watch.announce(variant.key, f"timing, round {number}{_rate_so_far(variant)}")
        # Whoever waits for its loader must not live on what came before its turn; others have
        # batches ready at all times, and workers that fill up would only slow them.
        if variant.waits:
            variant.feed.drop_prefetched()
        elif self._several:
            variant.feed.wait_until_full()

    def _same_weights(self) -> None:
        """After steps without an exchange: give every rank the weights of rank 0 again."""
        if self._last and self._last[1].key.endswith(LOCAL):
            self._last[0].trainer.broadcast_state()

    def _warm(self, part: TimedPart, seconds: float) -> None:
        per_run = max(1, int(min(WARM_RUN_S, seconds / 2) / max(part.estimate_s, LAUNCH_S)))
        end_s = time.perf_counter() + seconds
        while self._ranks.from_rank0(time.perf_counter() < end_s):
            self._timer.run(part.launch, per_run)

    def _block(self, part: TimedPart) -> StepBlock:
        """A block of the slowest rank."""
        plan = self._plan
        steps = min(plan.most, max(plan.least, int(plan.block_s / part.estimate_s)))
        blocks = self._ranks.gather(self._timer.block(part.launch, steps), MEET_S)
        if len(blocks) == 1:
            return blocks[0]
        medians = [median(block.times_s) for block in blocks]
        return replace(blocks[medians.index(max(medians))], ranks_s=tuple(medians))


def _timer_of_bursts(variants: Sequence[Variant], timer: StepTimer) -> StepTimer | BurstTimer:
    """A timer of bursts, where batches come in them."""
    cases = [variant.training.case for variant in variants]
    # A pinned batch is timed as fed ones are, or their difference would be the stopwatch's.
    if not any(case.loads_data or case.loader == "pinned" for case in cases):
        return timer

    workers = max(case.workers for case in cases)
    return BurstTimer(timer, workers, lambda: sum(v.feed.waited_s for v in variants))


def _plan(part_s: float, *, fed: bool, led: bool, cuda: bool) -> SamplingPlan:
    """For parts that have `part_s` seconds each, in all; `led` where a block has a lead to warm up.

    `BurstTimer` adds what makes rounds of the workers whole, so that a turn is at least two: one
    that leads, one that is timed.
    """
    turn_s = min(LOADER_TURN_S if fed else TURN_S, part_s / ROUNDS)
    if not (led or cuda):
        turn_s = min(CPU_TURN_S, part_s / FEWEST_ROUNDS)
    warm_s = WARM_SHARE * turn_s if cuda or led else 0.0
    if not cuda:
        return SamplingPlan(0.0, 0.0, turn_s - warm_s, least=1, most=100)
    return SamplingPlan(TURN_S, 0.0 if led else warm_s, turn_s - warm_s, least=3, most=400)


def _rate_so_far(variant: Variant) -> str:
    """ ": 6137 img/s", from the last turn."""
    if not variant.blocks:
        return ""
    per_s = variant.training.step_units / median(variant.blocks[-1].times_s)
    return f": {fmt.number(per_s)} {variant.training.unit}/s"
