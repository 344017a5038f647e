"""How large a network is: in memory, and as a file."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import nn


def model_bytes(module: nn.Module) -> int:
    """Bytes of parameters and buffers; what two layers share counts once."""
    tensors = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def saved_bytes(state: Any) -> int | None:
    """The size of the file that torch.save makes of `state`, without writing one.

    None where torch cannot save it, as a user's network may hold what cannot be pickled.
    Of a file opened by the caller. Saved by its path, the file's name is in it once for each
    tensor, which makes it some bytes longer or shorter.
    """
    counter = _Counter()
    try:
        torch.save(state, counter)  # pyright: ignore[reportArgumentType]
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
    return counter.bytes


class _Counter(io.RawIOBase):
    """A file that keeps nothing of what is written but its length."""

    def __init__(self) -> None:
        self.bytes = 0

    def writable(self) -> bool:
        """Whether it can be written: always."""
        return True

    def write(self, data: Any) -> int:
        """Count the bytes."""
        count = memoryview(data).nbytes
        self.bytes += count
        return count
