"""What a device's cache still holds when a call of a step begins: the last things touched.

A call that is measured again and again finds its arguments in the cache, if they are small enough;
in a step it finds only what was touched shortly before. So a recording notes which arguments are
not there any more, and which results leave it, and so go to memory, before they are freed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, cast

import torch

from kernels.gpus import architecture


class Cache:
    """Least recently touched, first let go. Storages are told apart by a number.

    Results that were let go are in `written_back`, by the number of the call that wrote them.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.written_back: set[int] = set()
        self._held: OrderedDict[int, int] = OrderedDict()
        self._total = 0
        self._written: dict[int, int] = {}  # storage -> the call that wrote it

    def holds(self, storage: int) -> bool:
        """Whether what was last touched of it is still there."""
        return storage in self._held

    def touch(self, storage: int, size: int, *, new_of: int | None = None) -> None:
        """A call has read or written so many bytes of it, and made it, if it is `new_of` it."""
        if new_of is not None:
            self._written[storage] = new_of
        before = self._held.pop(storage, 0)
        self._held[storage] = max(size, before)  # of a part, the rest stays
        self._total += self._held[storage] - before
        while self._total > self.size:
            oldest, gone = self._held.popitem(last=False)
            self._total -= gone
            call = self._written.pop(oldest, None)
            if call is not None:
                self.written_back.add(call)

    def forget(self, storage: int) -> None:
        """It was freed: what takes its memory next finds it there."""
        self._total -= self._held.pop(storage, 0)
        self._written.pop(storage, None)

    def begin(self) -> None:
        """Calls are counted anew."""
        self.written_back.clear()
        self._written.clear()


def cache_bytes(device: torch.device) -> int:
    """Bytes that stay in a device's cache; 0 for a CPU, whose calls are not told apart by it."""
    if device.type != "cuda":
        return 0
    facts = cast(
        Any,
        torch.cuda.get_device_properties(device),  # pyright: ignore[reportUnknownMemberType]
    )
    halves = 2 if architecture((facts.major, facts.minor)).l2_in_halves else 1
    return int(facts.L2_cache_size) // halves
