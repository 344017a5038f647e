"""Signs of life of the ranks: one that was stopped is missed whatever the others are doing.

A rank that hangs in an exchange is known from that (`ranks.EXCHANGE_S`). In what each does for
itself a rank may take long, so there it is missed only if its process does not run at all: it was
stopped, its machine is gone, or something holds Python's lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

BEAT_S = 2.0  # between two signs of life
MISSED = 20  # looks without a new one, after which a rank is lost: 40 s


def watch(store: Any, rank: int, world: int, lost: Callable[[str], None]) -> Callable[[], None]:
    """Send this rank's signs of life from now on, in a thread, and look for those of the others.

    `store` is torch's, and not used by another thread. Rank 0 looks for all ranks, the others for
    rank 0. Where some are missed, `lost` is called with one line, and this process ends. What is
    returned ends the watch: ranks that leave are not missed.
    """
    over = threading.Event()
    others = range(1, world) if rank == 0 else range(1)
    thread = threading.Thread(
        target=_run, args=(store, rank, others, lost, over), name="signs of life", daemon=True
    )
    thread.start()
    return over.set


def _run(
    store: Any, rank: int, others: Sequence[int], lost: Callable[[str], None],
    over: threading.Event,
) -> None:  # fmt: skip
    seen, looks = dict.fromkeys(others, 0), dict.fromkeys(others, 0)
    with suppress(RuntimeError):  # the store has ended, and all ranks with it
        while not over.wait(BEAT_S):
            store.add(_key(rank), 1)
            for other in others:
                now = store.add(_key(other), 0)
                looks[other] = looks[other] + 1 if now == seen[other] else 0
                seen[other] = now
            silent = [str(other) for other in others if looks[other] >= MISSED]
            if silent:
                try:
                    lost(missed(silent))
                finally:
                    os._exit(1)


def missed(ranks: Sequence[str]) -> str:
    """What is said of ranks that are missed."""
    several = len(ranks) > 1
    names = ", ".join(rank.strip() for rank in ranks)
    return f"rank{'s' * several} {names} do{'es' * (not several)} not answer"


def _key(rank: int) -> str:
    return f"sign of life {rank}"
