"""Networks whose kernels fault or do not end: under autocast, at once, or late in a training.

`samples.bad_gpu_networks:FAULT_WHEN`, such as endless_in_amp.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from samples.bad_gpu_kernels import FAULTS

CALLS = 3  # passes in which it is built and traced
LATE = 20_000  # more passes than a short timing has
WHEN = {
    "in_amp": {"after": CALLS, "in_amp": True},
    "at_once": {"after": 0},
    "traced": {"after": 0, "in_steps": True},
    "in_training": {"after": LATE},
}
Built = tuple[nn.Module, Tensor]
Fault = Callable[[Tensor], None]


class Faulty(nn.Module):
    """A classifier of 64 numbers with a fault on a GPU: from a call on, or under autocast alone.

    `in_steps`: only where gradients are wanted, so not when it is tried.
    """

    def __init__(
        self, fault: Fault, after: int, in_amp: bool = False, in_steps: bool = False
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


def _built(fault: Fault, how: dict[str, int]) -> Built:
    return Faulty(fault, **how), torch.randn(2, 64)


def __getattr__(name: str) -> Callable[[], Built]:
    for fault, function in FAULTS.items():
        for when, how in WHEN.items():
            if name == f"{fault}_{when}":
                return partial(_built, function, how)
    raise AttributeError(name)
