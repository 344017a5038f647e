"""Networks whose kernels fault or do not end: under autocast, at once, or late in a training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from samples.bad_gpu_kernels import ask_for_too_much, fail_an_assertion, spin, wild_store

CALLS = 3  # passes in which it is built and traced
LATE = 20_000  # more passes than a short timing has
Built = tuple[nn.Module, Tensor]
Fault = Callable[[Tensor], None]


class Faulty(nn.Module):
    """A classifier of 64 numbers with a fault on a GPU: from a call on, or under autocast alone.

    `in_steps`: only where gradients are wanted, so not when it is tried.
    """

    def __init__(
        self, fault: Fault, after: int, *, in_amp: bool = False, in_steps: bool = False
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self._fault, self._left, self._in_amp = fault, after, in_amp
        self._in_steps = in_steps

    def forward(self, samples: Tensor) -> Tensor:
        """Logits [batch, 10]."""
        self._left -= torch.is_grad_enabled() or not self._in_steps
        meant = not self._in_amp or torch.is_autocast_enabled("cuda")
        if self._left < 0 and meant and samples.is_cuda:
            self._fault(samples)
        return self.layers(samples)


def _built(fault: Fault, after: int = 0, *, in_amp: bool = False, in_steps: bool = False) -> Built:
    return Faulty(fault, after, in_amp=in_amp, in_steps=in_steps), torch.randn(2, 64)


def illegal_address_in_amp() -> Built:
    """A store to an address outside all allocations."""
    return _built(wild_store, CALLS, in_amp=True)


def assertion_in_amp() -> Built:
    """A device-side assertion."""
    return _built(fail_an_assertion, CALLS, in_amp=True)


def endless_in_amp() -> Built:
    """A kernel that does not end."""
    return _built(spin, CALLS, in_amp=True)


def too_much_in_amp() -> Built:
    """More memory than any card has."""
    return _built(ask_for_too_much, CALLS, in_amp=True)


def illegal_address_at_once() -> Built:
    """A store to an address outside all allocations in the first pass."""
    return _built(wild_store)


def too_much_at_once() -> Built:
    """More memory than any card has in the first pass."""
    return _built(ask_for_too_much)


def illegal_address_traced() -> Built:
    """A store to an address outside all allocations when its step is traced."""
    return _built(wild_store, in_steps=True)


def endless_traced() -> Built:
    """A kernel that does not end when its step is traced."""
    return _built(spin, in_steps=True)


def assertion_at_once() -> Built:
    """A device-side assertion in the first pass."""
    return _built(fail_an_assertion)


def endless_at_once() -> Built:
    """A kernel that does not end in the first pass."""
    return _built(spin)


def illegal_address_in_training() -> Built:
    """A store to an address outside all allocations, long after it was timed."""
    return _built(wild_store, LATE)


def endless_in_training() -> Built:
    """A kernel that does not end, long after it was timed."""
    return _built(spin, LATE)


def assertion_in_training() -> Built:
    """A device-side assertion, long after it was timed."""
    return _built(fail_an_assertion, LATE)


def too_much_in_training() -> Built:
    """More memory than any card has, long after it was timed."""
    return _built(ask_for_too_much, LATE)
