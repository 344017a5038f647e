"""Interleaves arms over several ranks: rank 0 takes the turns, the others follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from e2e.training.distributed.ranks import Ranks
from e2e.training.step_timer import StepBlock
from microbench.timing.stats import median
from microbench.timing.timers import Launch, Timer

BEGIN, RUN, BLOCK, DONE = "begin", "run", "block", "done"


class TogetherTimer:
    """A `Timer` whose blocks and runs are of all ranks. A block is that of the slowest one.

    Where a rank fails RanksLost is raised on all, or UserError if that was the reason.
    """

    overhead_s = 0.0

    def __init__(self, timer: Timer, ranks: Ranks) -> None:
        self._timer, self._ranks = timer, ranks
        self.name, self.l2 = timer.name, timer.l2
        self.resolution_s, self.flush_s = timer.resolution_s, timer.flush_s

    def block(self, launch: Launch, samples: int) -> StepBlock:
        """Time `samples` steps on every rank; see `StepBlock`."""
        if self._ranks.leads:
            self._ranks.tell((BLOCK, samples))
        with self._ranks.part(exchanges=True):
            own = self._timer.block(launch, samples)
        assert isinstance(own, StepBlock)
        blocks = self._ranks.gather(own)
        medians = [median(block.times_s) for block in blocks]
        return replace(blocks[medians.index(max(medians))], ranks_s=tuple(medians))

    def run(self, launch: Launch, times: int) -> None:
        """Run steps untimed on every rank."""
        if self._ranks.leads:
            self._ranks.tell((RUN, times))
        with self._ranks.part(exchanges=True):
            self._timer.run(launch, times)

    def forget(self) -> None:
        """Nothing is kept."""


def follow(
    ranks: Ranks,
    begin: Callable[[str, int], None],
    run: Callable[[int], None],
    block: Callable[[int], None],
) -> None:
    """Do what rank 0 says, on another rank, until its turns are over. RanksLost, UserError."""
    does = {BEGIN: begin, RUN: run, BLOCK: block}
    while (message := ranks.hear())[0] != DONE:
        does[message[0]](*message[1:])
