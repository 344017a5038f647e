"""Networks that do what a user's may do, on any device: raise, crash, hang or take all memory.

Each is fine for its first CALLS forward passes of a process, so that it can be built and tried.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

CALLS = 3
STARTS = "BAD_NETWORKS_STARTS"  # a file that counts the processes that built `crashes_in_another`
LATE = 5_000  # more passes than a timing of 0.1 s has
CLASSES = 10
Built = tuple[nn.Module, Tensor]


class Bad(nn.Module):
    """A linear classifier of 8 numbers that calls `then` in each forward pass after CALLS."""

    def __init__(self, then: Callable[[Tensor], object], calls: int = CALLS) -> None:
        super().__init__()
        self.linear = nn.Linear(8, CLASSES)
        self._then, self._left = then, calls

    def forward(self, samples: Tensor) -> Tensor:
        """Logits [batch, CLASSES]."""
        self._left -= 1
        if self._left < 0:
            self._then(samples)
        return self.linear(samples)


def _built(then: Callable[[Tensor], object], calls: int = CALLS) -> Built:
    return Bad(then, calls), torch.randn(2, 8)


def _raise(_: Tensor) -> None:
    raise ValueError("the third layer takes 7 channels")


def good() -> Built:
    """Nothing is wrong with it."""
    return _built(lambda _: None)


def raises() -> Built:
    """Its forward raises later."""
    return _built(_raise)


def raises_at_once() -> Built:
    """Its forward raises in the first pass."""
    return _built(_raise, 0)


def crashes() -> Built:
    """A segmentation fault."""
    return _built(lambda _: os.kill(os.getpid(), signal.SIGSEGV))


def crashes_at_once() -> Built:
    """A segmentation fault in the first pass."""
    return _built(lambda _: os.kill(os.getpid(), signal.SIGSEGV), 0)


def crashes_in_training() -> Built:
    """A segmentation fault long after it was timed."""
    return _built(lambda _: os.kill(os.getpid(), signal.SIGSEGV), LATE)


def raises_in_training() -> Built:
    """Its forward raises long after it was timed."""
    return _built(_raise, LATE)


def crashes_in_another() -> Built:
    """A segmentation fault, but not in the process that is tried, nor the first that measures."""
    with Path(os.environ[STARTS]).open("a") as file:
        file.write(f"{os.getpid()} ")
    pids = set(Path(os.environ[STARTS]).read_text().split())
    return crashes() if len(pids) > 2 else good()


def leaves() -> Built:
    """The process ends."""
    return _built(lambda _: os._exit(7))


def sleeps() -> Built:
    """It never returns."""
    return _built(lambda _: time.sleep(3600))


def sleeps_at_once() -> Built:
    """It never returns, from the first pass on."""
    return _built(lambda _: time.sleep(3600), 0)


def _no_memory(_: Tensor) -> None:
    raise MemoryError


def has_no_memory() -> Built:
    """An allocation fails."""
    return _built(_no_memory)


def bad_loss(output: Tensor, target: Tensor) -> Tensor:
    """A loss that raises."""
    raise KeyError("weights of class 11")
