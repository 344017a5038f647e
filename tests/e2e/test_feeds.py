"""Variants that share a loader, and what is known of its waits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from select import select
from subprocess import PIPE, Popen
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from samples.fetching import drawn
from samples.processes import wait_for

from e2e.case import TrainCase
from e2e.data.datasets.images import InMemory
from e2e.data.sources.cifar10 import NORMAL
from e2e.data.types import Arrays, LoadSpec
from e2e.results.types import Training
from e2e.training.feeds import Feeds, TimedFeed
from e2e.training.step_timer import StepBlock
from e2e.training.variant import Part, Variant

CPU = torch.device("cpu")
FED = TrainCase(
    "cnn-cifar", "fp32", 4, "3x32x32", data="generated", loader="torchvision", workers=1
)


@pytest.fixture
def data() -> InMemory:
    """Twelve pictures, each of its number as a grey."""
    pixels = torch.arange(12, dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 3, 32, 32)
    images = Arrays(pixels.contiguous(), torch.arange(12))
    return InMemory("generated", images, images, NORMAL, 12)


@pytest.fixture
def opened(data: InMemory) -> Iterator[Callable[..., TimedFeed]]:
    """Opens feeds of cases like FED, which share loaders; closes them when a test ends."""
    feeds = Feeds(data, CPU, seed=1)
    with ExitStack() as stack:
        yield lambda **changes: stack.enter_context(closing(feeds.open(replace(FED, **changes))))


def classes(feed: TimedFeed) -> list[int]:
    """Of the next batch."""
    return feed.to_device(next(feed))[1].tolist()


def in_order(data: InMemory, count: int) -> list[list[int]]:
    """The classes of the first batches of FED's loader."""
    own = data.load(LoadSpec(4, CPU, 1, "torchvision"))
    return [targets.tolist() for _, targets in drawn(own, count)]


# ---------------------------------------------------------------- sharing


def test_arms_that_load_alike_take_turns_with_one_loader(
    data: InMemory, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[LoadSpec] = []
    monkeypatch.setattr(data, "load", lambda spec: asked.append(spec) or InMemory.load(data, spec))
    one, other = opened(), opened(recipe="amp-bf16", layout="nhwc")
    assert len(asked) == 1, "none is opened just to place batches"
    found = [classes(feed) for feed in (one, other, other, one)]
    assert found == in_order(data, 4), "no batch twice, none left out"
    images, _ = other.to_device(next(other), channels_last=True)
    assert images.is_contiguous(memory_format=torch.channels_last)
    one.close()
    one.close()
    next(other)  # the loader is there while anybody needs it
    assert len(classes(opened(workers=0, batch=2))) == 2, "who loads otherwise has another"


def test_what_lies_ready_is_thrown_away(data: InMemory, opened: Any) -> None:
    feed, order = opened(), in_order(data, 8)
    assert classes(feed) == order[0]
    time.sleep(0.5)  # for the worker to get ahead
    feed.skip_ready()
    assert 2 <= order.index(classes(feed)) <= 3, "at most as many as the worker may be ahead"
    assert feed.tally.waited_s > 0


def test_a_loader_whose_batches_are_thrown_away_runs_once_it_is_started(opened: Any) -> None:
    feed = opened(cached=True)
    first = feed.to_device(next(feed))
    assert not feed.tally.came_s
    feed.refill()  # it never rests, and is not waited for
    feed.start()
    wait_for(lambda: len(feed.tally.came_s) >= 3)
    again = feed.to_device(next(feed))
    assert torch.equal(first[0], again[0]), "it trains on one batch"


WORKS_THEN_RESTS = """
import time
print("works", flush=True)
while time.process_time() < 0.4:
    pass
print("rests", flush=True)
time.sleep(60)
"""


def test_a_refill_lasts_until_the_workers_rest() -> None:
    """Once of three times, as a busy machine may keep a worker waiting."""
    rested = 0
    for _ in range(3):
        with Popen([sys.executable, "-c", WORKS_THEN_RESTS], stdout=PIPE) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == b"works\n"
            TimedFeed(SimpleNamespace(pids=(worker.pid,)), lambda: None).refill()  # type: ignore[arg-type]
            rested += len(select([worker.stdout], [], [], 0)[0])
            worker.kill()
    assert rested


def test_who_waits_for_its_loader_is_known_by_its_blocks() -> None:
    parts = (Part("", lambda: None, 0.01),)
    fed = Variant(Training(FED, "ok"), None, None, parts)  # type: ignore[arg-type]
    assert fed.waits, "nothing is known yet"
    for waited_s, waits in ((0.0, False), (0.01, False), (0.2, True), (0.0, True)):
        fed.blocks.append(StepBlock((0.1,), None, (0.1,), 1.0, 10, waited_s))
        assert fed.waits == waits, "once is enough: after that it begins with nothing ready"
