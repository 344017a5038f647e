"""Launches whose arguments are not in the device's cache, as those of a step often are not.

Launched again and again, a call finds small arguments in the cache, and writes its results where
the last ones lay. So some arguments take turns in lying at places of a pool that are together more
than the cache holds, and results are held for a while, which makes the next ones lie elsewhere.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.utils._pytree import tree_leaves

ROUND_CACHES = 4.0  # a round of turns touches so many times what the cache holds,
MOST_TURNS = 128  # unless it would have more turns than these


@dataclass(frozen=True)
class Distant:
    """What the cache does not hold: arguments, by their places in `Call.tensors`, and whether
    `results` leave it before they are freed. `cache_bytes` is what it does hold.

    `small` are further arguments, of which a launch only finds that the first bytes come late: no
    other call for that, but in a step each launch has its own (see `materialise`).
    """

    arguments: tuple[int, ...] = ()
    results: bool = False
    cache_bytes: int = 0
    small: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.arguments or self.results)

    @property
    def key(self) -> str:
        """As part of a name: what is measured so differs from what is not; "" for nothing."""
        named = [*map(str, self.arguments), *(["results"] if self.results else [])]
        return f"distant {','.join(named)}" if named else ""

    def turns(self, turn_bytes: int) -> int:
        """How many turns of so many bytes leave none of them in the cache; MOST_TURNS at most."""
        wanted = math.ceil(ROUND_CACHES * self.cache_bytes / max(1, turn_bytes))
        return max(1, min(MOST_TURNS, wanted))


NEAR = Distant()


class Held:
    """The last results of all calls that share it: so many bytes of them, and the last one."""

    def __init__(self) -> None:
        self._results: deque[tuple[object, int]] = deque()
        self._bytes = 0

    def hold(self, result: object, most_bytes: int) -> None:
        """Let go of the oldest until `most_bytes` are left."""
        size = sum(leaf.nbytes for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        self._results.append((result, size))
        self._bytes += size
        while self._bytes > most_bytes and len(self._results) > 1:
            self._bytes -= self._results.popleft()[1]


def in_turns(
    launches: Sequence[Callable[[], object]], distant: Distant, held: Held
) -> Callable[[], object]:
    """The next of `launches` at each call; what it returns is held where results are distant."""
    following: Iterable[Callable[[], object]] = itertools.cycle(launches)
    next_launch = iter(following).__next__
    if not distant.results:
        return lambda: next_launch()()
    most_bytes = int(ROUND_CACHES * distant.cache_bytes)

    def launch() -> None:
        held.hold(next_launch()(), most_bytes)

    return launch
