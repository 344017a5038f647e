"""What doctor says: one finding a check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from microbench.device.doctor.facts import Facts

GIB = 1024**3

Level = Literal["ok", "note", "warning", "problem"]
LEVELS: tuple[Level, ...] = ("ok", "note", "warning", "problem")


@dataclass(frozen=True)
class Finding:
    """One fact, judged.

    "note" is worth knowing, a "warning" makes numbers worse or unsteady, a "problem" makes them
    wrong or impossible. `what` holds the fact with its numbers; `remedy` what the user may do.
    """

    name: str
    level: Level
    what: str
    remedy: str | None = None


Check = Callable[[Facts], Finding | None]  # None: does not apply here, or nobody can tell
