"""Arms of one comparison take turns, a block of samples a round, until the medians are known.

Pure policy: the timer, the clock and the telemetry are given, so tests run it with made-up times.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from microbench.stats import MAX_INTERVAL_PCT, half_width_pct, median, median_interval
from microbench.timing import Block, Launch, Timer

# A launch this long can keep the GPU at its power limit: the clock must settle before and between.
# Shorter ones spend most of a cold sample in the flush, which draws far less.
HEAVY_S = 100e-6
SETTLE_S = {"heavy": 0.5, "light": 0.02}  # once, before the first turn
WARM_S = {"heavy": 0.15, "light": 0.002}
BLOCK_S = {"heavy": 0.1, "light": 0.008}
BLOCK_SAMPLES = {"heavy": (3, 200), "light": (15, 60)}  # at least, at most
ORDER_SEED = 7
WARM_RUN_S = 0.01
BURST_IDLE_FACTOR = 15  # idle this many times the launch's time between samples
BURST_IDLE_MIN_S = 2e-3
BURST_SAMPLES = 3
MIN_ROUNDS = 7
FEWEST_ROUNDS = 3  # when the budget is short: slow cases on a CPU
MAX_ROUNDS = 60


class ArmFailed(Exception):
    """A launch raised during its turn; `arm` is whose it was, the cause is what it raised."""

    def __init__(self, arm: Arm) -> None:
        super().__init__(arm.key)
        self.arm = arm


class Clock(Protocol):
    """Where policy reads the time and sleeps."""

    def now(self) -> float:
        """Seconds, monotonic."""
        ...

    def sleep(self, seconds: float) -> None:
        """Do nothing for a while."""
        ...


class SystemClock:
    """The machine's own."""

    def now(self) -> float:
        """Seconds, monotonic."""
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        """Do nothing for a while."""
        time.sleep(seconds)


@dataclass
class Arm:
    """One side of a comparison and the blocks it has taken so far."""

    key: str
    launch: Launch
    estimate_s: float
    blocks: list[Block] = field(default_factory=list)

    @property
    def weight(self) -> str:
        """ "heavy" when it can drive the GPU to its power limit."""
        return "heavy" if self.estimate_s >= HEAVY_S else "light"

    def settled(self, resolution_s: float) -> bool:
        """Whether the interval of its median is within MAX_INTERVAL_PCT, or within a tick."""
        times = [block.times_s for block in self.blocks]
        interval = median_interval(times, resolution_s)
        if interval is None:
            return False
        centre = median([t for block in times for t in block])
        return (
            half_width_pct(centre, interval) <= MAX_INTERVAL_PCT
            or interval[1] - interval[0] <= 2 * resolution_s
        )


def _no_telemetry(_: str) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True)
class Turns:
    """How arms take turns: the regime, the time there is, and what to tell on the way."""

    timer: Timer
    regime: str
    budget_s: float
    clock: Clock = field(default_factory=SystemClock)
    during: Callable[[str], AbstractContextManager[object]] = _no_telemetry
    begin: Callable[[str, int], None] = lambda _key, _round: None

    def take(self, arms: Sequence[Arm]) -> int:
        """Fill the arms' blocks; the number of rounds. All arms take part in each. ArmFailed."""
        start = self.clock.now()
        rounds = 0
        order = list(arms)
        shuffle = random.Random(ORDER_SEED).shuffle
        self._turn(arms[0], 0, SETTLE_S)
        while rounds < MAX_ROUNDS:
            # A new order each round: an arm that always followed one other would carry its heat.
            shuffle(order)
            rounds += 1
            for arm in order:
                self._turn(arm, rounds, WARM_S)
            spent = self.clock.now() - start
            if self._enough(arms, rounds, spent):
                break
        return rounds

    def _turn(self, arm: Arm, number: int, warm_s: Mapping[str, float]) -> None:
        """One arm's part of a round; in round 0 the card is brought to its working state only."""
        self.begin(arm.key, number)
        try:
            self._warm(arm, warm_s)
            if number:
                with self.during(arm.key):
                    arm.blocks.append(self._block(arm))
        except Exception as error:
            raise ArmFailed(arm) from error

    def _enough(self, arms: Sequence[Arm], rounds: int, spent_s: float) -> bool:
        if spent_s >= self.budget_s and rounds >= FEWEST_ROUNDS:
            return True
        if rounds < MIN_ROUNDS:
            return False
        return all(arm.settled(self.timer.resolution_s) for arm in arms)

    def _warm(self, arm: Arm, seconds_by_weight: Mapping[str, float]) -> None:
        if self.regime == "burst" or self.timer.name == "clock":
            return
        per_run = max(1, int(WARM_RUN_S / max(arm.estimate_s, 1e-6)))
        end = self.clock.now() + seconds_by_weight[arm.weight]
        while self.clock.now() < end:
            self.timer.run(arm.launch, per_run)

    def _block(self, arm: Arm) -> Block:
        if self.regime == "burst" and arm.weight == "heavy" and self.timer.name != "clock":
            return self._burst_block(arm)
        least, most = BLOCK_SAMPLES[arm.weight]
        if arm.estimate_s + self.timer.flush_s > BLOCK_S["heavy"] / least:
            least = 1
        wanted = int(BLOCK_S[arm.weight] / (arm.estimate_s + self.timer.flush_s))
        return self.timer.block(arm.launch, min(most, max(least, wanted)))

    def _burst_block(self, arm: Arm) -> Block:
        # One launch at a time on a rested card, as a profiler that replays kernels sees it.
        taken: list[Block] = []
        for _ in range(BURST_SAMPLES):
            self.clock.sleep(max(BURST_IDLE_MIN_S, BURST_IDLE_FACTOR * arm.estimate_s))
            taken.append(self.timer.block(arm.launch, 1))
        clocks = [block.sm_clock_mhz for block in taken if block.sm_clock_mhz]
        return Block(
            tuple(t for block in taken for t in block.times_s),
            sum(clocks) / len(clocks) if clocks else None,
        )
