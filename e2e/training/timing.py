"""Times the variants of a comparison interleaved, by one loop that every rank runs alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from e2e.results.types import FEWEST_FED_ROUNDS
from e2e.training.host_speed import SpeedByTurn
from e2e.training.launch import RanksLost
from e2e.training.ranks import MEET_S, Ranks
from e2e.training.step_timer import BurstTimer, StepBlock, StepTimer
from e2e.training.trainer import Trainer
from e2e.training.variant import LOCAL, Variant
from microbench import fmt
from microbench.errors import UserError
from microbench.timing import FEWEST_ROUNDS, SUSTAINED
from microbench.timing.interleave import (
    INTERIM_LOOKS,
    Clock,
    InterleavedSampler,
    SamplingPlan,
    VariantFailed,
)
from microbench.timing.stats import median
from microbench.timing.timers import Launch, Timer

# Of a turn's seconds: at most 0.6 of timed steps after 0.2 to warm up, which is enough for the
# median of a turn to be known to a fraction of a per cent; less when the budget is short.
TURN_S, WARM_SHARE = 0.8, 0.25
ROUNDS = INTERIM_LOOKS[0]  # that a budget is meant to last for
LOADER_TURN_S, CPU_TURN_S = 4.0, 2.0  # at most, of fed steps, and of others on a CPU without a lead
SETTLED_STEPS = 2  # after the first ones: they measure the memory and the time of a step
KNOWN_SHARE = 1 / 3  # of the budget: from here on it is said how long the rest takes

Announce = Callable[[str, str], None]


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
    """Fill the blocks of all variants, one each per round, as `InterleavedSampler` does.

    VariantFailed where a step raises; RanksLost where that is one of several ranks; UserError for a
    broken file of strict data.
    """
    for variant in variants:
        variant.skipped_before = variant.trainer.skipped_steps
        for part in variant.parts:
            part.blocks.clear()
    cases = [variant.training.case for variant in variants]
    fed, steps = any(case.loads_data for case in cases), timer
    # A pinned batch is timed as fed ones are, or their difference would be the stopwatch's.
    led = fed or any(case.loader == "pinned" for case in cases)
    if led:
        workers = max(case.workers for case in cases)
        steps = BurstTimer(timer, workers, lambda: sum(v.feed.waited_s for v in variants))
    fewest = FEWEST_FED_ROUNDS if fed else FEWEST_ROUNDS
    turns = _Turns(variants, budget_s, fewest, watch)
    plan = _plan(budget_s / len(turns.parts), fed=fed, led=led, cuda=ranks.device.type == "cuda")
    of_ranks = _OfRanks(steps, ranks)
    sampler = InterleavedSampler(
        of_ranks, SUSTAINED, budget_s, of_ranks, watch.during, turns.begin, fewest=fewest,
        own_plan=plan, chance=random.Random(ranks.from_rank0(random.random())),
    )  # fmt: skip
    try:
        sampler.take([part for _, part in turns.parts.values()])
    except VariantFailed as failure:
        error = failure.__cause__
        assert error
        with ranks.exchanging():
            if ranks.world > 1 or isinstance(error, UserError | RanksLost):
                raise error from error.__cause__  # this process cannot go on without it
        raise
    turns.end()


class _Turns:
    """What is done between the turns of one comparison's parts."""

    def __init__(
        self, variants: Sequence[Variant], budget_s: float, fewest: int, watch: Watch
    ) -> None:
        self.parts = {part.key: (variant, part) for variant in variants for part in variant.parts}
        self._several = len(variants) > 1
        self._budget_s, self._fewest, self._watch = budget_s, fewest, watch
        self._began_s = time.perf_counter()
        self._apart: Trainer | None = None  # its ranks made steps without an exchange

    def begin(self, key: str, number: int) -> None:
        """A part's turn of a round begins; that of round 0 only warms the device."""
        self.end(key if number else "")
        variant, _ = self.parts[key]
        self._apart = variant.trainer if key.endswith(LOCAL) else None
        variant.trainer.set_backend_flags()
        self._watch.announce(variant.key, f"timing, round {number}{_rate_so_far(variant)}")
        if number > 1:  # each has been timed
            self._say_left()
        # Whoever waits for its loader must not live on what came before its turn; others have
        # batches ready at all times, and workers that fill up would only slow them.
        if variant.waits:
            variant.feed.drop_prefetched()
        elif self._several:
            variant.feed.wait_until_full()

    def end(self, following: str = "") -> None:
        """A turn ends: that of the part with the key `following` begins, if any."""
        if self._watch.speeds:
            self._watch.speeds.begin(following)
        if self._apart:
            self._apart.broadcast_state()

    def _say_left(self) -> None:
        spent_s = time.perf_counter() - self._began_s
        done = sum(len(part.blocks) for _, part in self.parts.values()) / len(self.parts)
        if self._watch.left and spent_s >= KNOWN_SHARE * self._budget_s:
            least_s = (self._fewest / done - 1) * spent_s
            self._watch.left(max(0.0, self._budget_s - spent_s, least_s))


class _OfRanks(Timer, Clock):
    """A timer and the clock that all ranks go by: a block is that of the slowest, and a moment is
    rank 0's.
    """

    l2, flush_s, overhead_s = "warm", 0.0, 0.0

    def __init__(self, timer: StepTimer | BurstTimer, ranks: Ranks) -> None:
        self._timer, self._ranks = timer, ranks
        self.name = "events" if ranks.device.type == "cuda" else "clock"
        self.resolution_s, self.run = timer.resolution_s, timer.run

    def block(self, launch: Launch, samples: int) -> StepBlock:
        """At least so many steps, as the slowest rank has them."""
        blocks = self._ranks.gather(self._timer.block(launch, samples), MEET_S)
        if len(blocks) == 1:
            return blocks[0]
        medians = [median(block.times_s) for block in blocks]
        return replace(blocks[medians.index(max(medians))], ranks_s=tuple(medians))

    def now(self) -> float:
        """Seconds of rank 0's clock."""
        return self._ranks.from_rank0(super().now())


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
