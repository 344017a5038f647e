"""Runs work in the thread that a backward pass has, as autograd gives a device one.

cuDNN's algorithms are searched once a thread of a process: what is launched where a training
launches it leaves what it found for a training that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any, TypeVar

import torch

T = TypeVar("T")
Within = Callable[[Callable[[], Any]], Any]  # runs a function in some thread, gives what it gives


Threads = tuple[Within, Within]  # of the forward pass and all else; of the backward pass


def by_thread(
    calls: Iterable[T], is_backward: Callable[[T], bool], threads: Threads
) -> Iterator[tuple[Within, list[T]]]:
    """As many calls in a row as the same thread launches, with that thread."""
    for backward, some in groupby(calls, is_backward):
        yield threads[backward], list(some)


def forward_thread(work: Callable[[], T]) -> T:
    """In the caller's own."""
    return work()


def backward_thread(device: torch.device) -> Within:
    """In autograd's for this device. What the work raises is raised here."""

    def within(work: Callable[[], T]) -> T:
        return in_backward(work, device)()

    return within


def in_backward(work: Callable[[], T], device: torch.device) -> Callable[[], T]:
    """The work as a backward pass that can be run once, on the stream that is current now; running
    it launches nothing else.
    """
    done: list[T] = []
    with torch.enable_grad():
        root = torch.zeros((), device=device, requires_grad=True)
        output = _Backward.apply(root, lambda: done.append(work()))
    gradient = torch.ones((), device=device)

    def run() -> T:
        torch.autograd.backward(output, gradient)
        return done[0]

    return run


class _Backward(torch.autograd.Function):
    """Nothing but work in its backward pass."""

    @staticmethod
    def forward(ctx: Any, root: torch.Tensor, work: Callable[[], object]) -> torch.Tensor:
        ctx.work = work
        return root.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.work()
        return None, None
