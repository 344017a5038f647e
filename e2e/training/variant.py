"""A variant of a comparison on the device: its trainer, its feed, and what was timed of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from e2e.data.loaders.device_copy import FixedBatch
from e2e.data.types import Loader
from e2e.results.types import Training
from e2e.training.feeds import TimedFeed
from e2e.training.step_timer import StepBlock
from e2e.training.trainer import Trainer
from microbench.timing import interleave

LOCAL, ALONE = "/local", "/alone"  # what keys of parts beside a step end in
WAITS_SHARE = 0.02  # of the time: with more of it in any block, steps wait for their loader


@dataclass
class TimedPart(interleave.Variant):
    """What takes turns: a variant's step, or what is timed beside it to know its exchange.

    `estimate_s` is the same on all ranks.
    """

    blocks: list[Any] = field(default_factory=list[StepBlock])


@dataclass
class Variant:
    """One that is set up. Over several ranks it has two parts more: its step without the exchange
    of gradients, and the exchange alone, of `buckets` like those of a step.
    """

    training: Training
    trainer: Trainer
    feed: TimedFeed
    parts: tuple[TimedPart, ...] = ()
    buckets: Sequence[Tensor] = ()
    skipped_before: int = 0  # updates that were skipped before timing began

    @property
    def key(self) -> str:
        """Of its case."""
        return self.training.case.key

    @property
    def blocks(self) -> list[StepBlock]:
        """What was timed of its whole step."""
        return self.parts[0].blocks

    def step(self) -> object:
        """Launch one step; returns the loss, a scalar on the device."""
        return self.trainer.step(self.feed)

    def step_alone(self, *, uncaptured: bool = False) -> Callable[[], object]:
        """The step without its loader: of a fed case on a preloaded batch."""
        feed: Loader = self.feed
        if self.training.case.loads_data:
            feed = FixedBatch(*feed.to_device(next(feed)))
        return lambda: self.trainer.step(feed, uncaptured=uncaptured)

    @property
    def waits(self) -> bool:
        """Whether it waited for its loader in any block; True until a block has been timed.

        The first block begins without ready batches.
        """
        waited = (block.waited_s > WAITS_SHARE * block.wall_s for block in self.blocks)
        return not self.blocks or any(waited)
