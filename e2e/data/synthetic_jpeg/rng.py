"""Random numbers that are the same on every machine: NumPy promises to keep PCG64's raw stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

UNIT_BITS = 53  # of a random fraction: what float64 holds


class Draws:
    """Whole numbers one after another, of the stream that `key` names."""

    def __init__(self, *key: int) -> None:
        self._source = np.random.PCG64(key)

    def below(self, limit: int) -> int:
        """From 0 to limit - 1."""
        return int(self._source.random_raw()) % limit

    def between(self, ends: tuple[int, int]) -> int:
        """From one end to the other, both included."""
        return ends[0] + self.below(ends[1] - ends[0] + 1)

    def sign(self) -> int:
        """-1 or 1."""
        return 1 - 2 * self.below(2)

    def chance(self, pct: int) -> bool:
        """True in `pct` per cent of the cases."""
        return self.below(100) < pct

    def quantile(self, steps: Sequence[int]) -> int:
        """Of a distribution whose quantiles, equally far apart, are `steps`; linear between."""
        at, part = divmod(self.below((len(steps) - 1) << 16), 1 << 16)
        return steps[at] + ((steps[at + 1] - steps[at]) * part >> 16)


def fractions(count: int, *key: int) -> NDArray[np.floating]:
    """`count` random numbers from 0 to below 1."""
    raw = np.asarray(np.random.PCG64(key).random_raw(count))
    return (raw >> np.uint64(64 - UNIT_BITS)) * 2.0**-UNIT_BITS
