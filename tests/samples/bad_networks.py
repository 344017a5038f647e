"""Networks that do what a user's may do, on any device: raise, crash, hang or take all memory.

`samples.bad_networks:FAULTWHEN`, such as crashes_at_once: without WHEN each is fine for its first
CALLS forward passes of a process, so that it can be built and tried.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor, nn

CALLS = 3
STARTS = "BAD_NETWORKS_STARTS"  # a file that counts the processes that built `crashes_in_another`
LATE = 5_000  # more passes than a timing of 0.1 s has
CLASSES = 10
Built = tuple[nn.Module, Tensor]


class Bad(nn.Module):
    """A linear classifier of 8 numbers that calls `then` in each forward pass after `calls`."""

    def __init__(self, then: Callable[[Tensor], object], calls: int) -> None:
        super().__init__()
        self.linear = nn.Linear(8, CLASSES)
        self._then, self._left = then, calls

    def forward(self, samples: Tensor) -> Tensor:
        """Logits [batch, CLASSES]."""
        self._left -= 1
        if self._left < 0:
            self._then(samples)
        return self.linear(samples)


def _built(then: Callable[[Tensor], object], calls: int) -> Built:
    return Bad(then, calls), torch.randn(2, 8)


def _raise(error: Exception) -> NoReturn:
    raise error


def _crash(_: Tensor) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


FAULTS: dict[str, Callable[[Tensor], object]] = {
    "raises": lambda _: _raise(ValueError("the third layer takes 7 channels")),
    "crashes": _crash,
    "leaves": lambda _: os._exit(7),
    "sleeps": lambda _: time.sleep(3600),
    "has_no_memory": lambda _: _raise(MemoryError()),
}
WHEN = {"": CALLS, "_at_once": 0, "_in_training": LATE}


def __getattr__(name: str) -> Callable[[], Built]:
    for fault, function in FAULTS.items():
        for when, calls in WHEN.items():
            if name == f"{fault}{when}":
                return partial(_built, function, calls)
    raise AttributeError(name)


def good() -> Built:
    """Nothing is wrong with it."""
    return _built(lambda _: None, CALLS)


def crashes_in_another() -> Built:
    """A segmentation fault, but not in the first process, in which it is tried and measured."""
    with Path(os.environ[STARTS]).open("a") as file:
        file.write(f"{os.getpid()} ")
    pids = set(Path(os.environ[STARTS]).read_text().split())
    return _built(_crash, CALLS) if len(pids) > 1 else good()
