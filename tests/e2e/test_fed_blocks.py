"""Steps that a loader feeds, on a clock of our own: the slower of the two is measured."""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from samples.train_cases import quietly

from e2e.case import TrainCase
from e2e.data.types import PREFETCH, Loader
from e2e.results.types import FEWEST_FED_ROUNDS, Training
from e2e.training.feeds import TimedFeed
from e2e.training.ranks import Ranks
from e2e.training.step_timer import RUN_AHEAD, CpuSteps, StepBlock
from e2e.training.timing import Watch, time_interleaved
from e2e.training.variant import TimedPart, Variant

FAST_S, SLOW_S = 0.042, 0.081  # of a step on a batch that is there
LAUNCH_S = 0.02  # the host's, of a step on a GPU
BUDGET_S = 5.0
UNEVEN = 0.03  # standard deviation of what a worker needs for a batch
SEEDS = range(3)


class Clock:
    """Seconds so far."""

    now_s = 0.0

    def until(self, then_s: float) -> None:
        self.now_s = max(self.now_s, then_s)

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds


class Workers(Loader):
    """Each loads a batch in about `seconds` and is PREFETCH ahead; batches come in their order."""

    def __init__(self, clock: Clock, count: int, seconds: float, seed: int) -> None:
        self._clock, self._seconds, self._chance = clock, seconds, random.Random(seed)
        self._free_s = [0.0] * count
        self._ready_s: deque[float] = deque()
        self._turn = itertools.cycle(range(count))
        self.taken, self.work_s = 0, 0.0
        for _ in range(self.queue_depth):
            self._ask()

    def _ask(self) -> None:
        worker, took_s = next(self._turn), self._seconds * self._chance.gauss(1, UNEVEN)
        self._free_s[worker] = max(self._clock.now_s, self._free_s[worker]) + took_s
        self._ready_s.append(self._free_s[worker])
        self.work_s += took_s

    def __next__(self) -> None:
        self._clock.until(self._ready_s.popleft())
        self._ask()
        self.taken += 1

    @property
    def queue_depth(self) -> int:
        return PREFETCH * len(self._free_s)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(range(len(self._free_s)))

    @property
    def rest(self) -> bool:
        return max(self._free_s) <= self._clock.now_s

    def cpu_s(self, _pids: object) -> float:
        return self.work_s - sum(max(0.0, free_s - self._clock.now_s) for free_s in self._free_s)


class Gpu:
    """Runs steps one after another while the host, at most RUN_AHEAD steps ahead, launches more."""

    resolution_s = 1e-6

    def __init__(self, clock: Clock) -> None:
        self._clock, self._ends_s = clock, deque([0.0], maxlen=RUN_AHEAD)

    def step(self, feed: TimedFeed, seconds: float) -> None:
        if len(self._ends_s) == RUN_AHEAD:
            self._clock.until(self._ends_s[0])
        next(feed)
        self._clock.pass_by(LAUNCH_S)
        self._ends_s.append(max(self._clock.now_s, self._ends_s[-1]) + seconds)

    def run(self, launch: Any, times: int) -> None:
        for _ in range(times):
            launch()
        self._clock.until(self._ends_s[-1])

    def block(self, launch: Any, samples: int, lead: int = 1) -> StepBlock:
        self._clock.until(self._ends_s[-1])
        for _ in range(lead):
            launch()
        ends_s = [self._ends_s[-1]]
        for _ in range(samples):
            launch()
            ends_s.append(self._ends_s[-1])
        self._clock.until(ends_s[-1])
        times_s = tuple(after - before for before, after in itertools.pairwise(ends_s))
        return StepBlock(times_s, None, times_s, ends_s[-1] - ends_s[0], samples)


class Cpu(CpuSteps):
    """Trains on the host."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def step(self, feed: TimedFeed, seconds: float) -> None:
        next(feed)
        self._clock.pass_by(seconds)


Device = type[Gpu] | type[Cpu]


def measured(
    device: Device, steps_s: list[float], count: int, batch_s: float, seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> list[float]:  # fmt: skip
    """Seconds of each step, in blocks that one worker after another feeds a batch in `batch_s`.

    Timing begins with all batches ready. Alone, a step throws away few more once they are gone;
    beside another, one that never waits begins when the workers rest.
    """
    random.seed(seed)
    clock = Clock()
    workers, timer = Workers(clock, count, count * batch_s, seed), device(clock)
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now_s)
    monkeypatch.setattr(time, "sleep", clock.pass_by)
    monkeypatch.setattr("e2e.training.feeds.cpu_seconds", workers.cpu_s)
    trainer: Any = SimpleNamespace(skipped_steps=0, set_backend_flags=lambda: None)
    variants: list[Variant] = []
    launched = itertools.count()

    def step(feed: TimedFeed, step_s: float) -> None:
        next(launched)
        timer.step(feed, step_s)

    def turn(key: str) -> nullcontext[None]:
        alone = len(variants) == 1
        assert alone or workers.rest or any(v.waits for v in variants if v.key == key)
        return nullcontext()

    for step_s in steps_s:
        case = TrainCase("own", f"{step_s}", 1, "1", data="made", loader="own", workers=count)
        feed = TimedFeed(workers, lambda: None)
        part = TimedPart(case.key, partial(step, feed, step_s), max(batch_s, step_s))
        variants.append(Variant(Training(case, "ok", step_units=1), trainer, feed, (part,)))
    clock.pass_by(30.0)
    ranks = Ranks.alone(torch.device("cuda" if device is Gpu else "cpu"))
    time_interleaved(variants, BUDGET_S, timer, ranks, Watch(turn, quietly))  # type: ignore[arg-type]
    rounds = len(variants[0].blocks)
    assert rounds >= FEWEST_FED_ROUNDS
    if len(steps_s) == 1:
        thrown_away = workers.taken - next(launched)
        assert thrown_away <= 2 * workers.queue_depth + rounds * (count + 1)
    blocks = [variant.blocks for variant in variants]
    return [sum(b.wall_s for b in each) / sum(b.wall_steps for b in each) for each in blocks]


@pytest.mark.parametrize("device", [Gpu, Cpu])
@pytest.mark.parametrize("workers", [2, 4, 16])
@pytest.mark.parametrize("steps_s", [[FAST_S], [SLOW_S, FAST_S]])
def test_a_fed_step_takes_as_long_as_the_slower_of_loader_and_training(
    device: Device, workers: int, steps_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    for slower in (0.75, 0.9, 1.03, 1.1, 1.6):  # the loader, as many times as the fast step
        batch_s = slower * FAST_S
        runs = [measured(device, steps_s, workers, batch_s, seed, monkeypatch) for seed in SEEDS]
        for step_s, *times_s in zip(steps_s, *runs, strict=True):
            expected_s = max(step_s, batch_s)
            assert sum(times_s) / len(times_s) == pytest.approx(expected_s, rel=0.02), slower
            assert times_s == pytest.approx([expected_s] * len(times_s), rel=0.04), slower
