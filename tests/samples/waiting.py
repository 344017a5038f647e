"""Whether the host waits for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

CYCLES = 2_000_000_000  # about a second, in which a busy host too has launched a few kernels


@contextmanager
def no_waits() -> Iterator[None]:
    """What torch sees wait inside raises RuntimeError."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@contextmanager
def while_busy() -> Iterator[None]:
    """What is inside must have been launched before a kernel ends that runs before it on the
    current stream: nothing may wait for that, whether torch sees it or not.
    """
    torch.cuda._sleep(CYCLES)
    asleep = torch.cuda.Event()
    asleep.record()
    yield
    assert not asleep.query(), "it waited for the device"
