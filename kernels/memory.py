"""Bandwidth-bound operations: a copy within device memory."""

from __future__ import annotations

from collections.abc import Callable

from kernels.case import Target

COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 27}  # of the source; far beyond any cache


def copy(target: Target) -> tuple[Callable[[], object], int]:
    """(launch, bytes per launch) of a copy within device memory: bytes read plus bytes written.

    torch.OutOfMemoryError where two buffers of COPY_BYTES do not fit.
    """
    import torch

    size = COPY_BYTES[target.kind]
    source = torch.ones(size // 4, dtype=torch.int32, device=target.torch_device)
    destination = torch.empty_like(source)
    return (lambda: destination.copy_(source)), 2 * size
